//! Writers that remember what was synced, for judges that stop the disk in the middle of the work.
//!
//! A writer runs in a thread of its own until the disk fails. Synced data must be there afterwards; later data may be
//! there, but only as they were written.

use crate::random::Random;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::thread::{JoinHandle, spawn};

/// Bytes of one record: a mapping unit of the device.
const RECORD_BYTES: usize = 4096;

/// Records in an area of a raw disk: each is a whole mapping unit with its number and bytes made from its place and number.
#[derive(Debug)]
pub(super) struct Records {
    seed: u64,
    /// First byte of the area.
    offset: u64,
    /// For each place, the last synced number and the last written one; 0 is none.
    places: Vec<(u64, u64)>,
    /// Last number that was used.
    last: u64,
    synced: u64,
}

impl Records {
    pub(super) fn new(seed: u64, offset: u64, places: usize) -> Self {
        Self { seed, offset, places: vec![(0, 0); places], last: 0, synced: 0 }
    }

    /// Number of records that were synced so far.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    /// Writes at random places, and syncs now and then, until the disk fails.
    pub(super) fn write(mut self, disk: &str) -> JoinHandle<Self> {
        let disk = disk.to_owned();
        spawn(move || {
            let mut random = Random::new(self.seed, self.last);
            let Ok(file) = OpenOptions::new().read(true).write(true).open(disk) else { return self };
            loop {
                let burst: Vec<usize> =
                    (0..=random.below(12)).map(|_| random.below(self.places.len() as u64) as usize).collect();
                for &place in &burst {
                    self.last += 1;
                    self.places[place].1 = self.last;
                    let at = self.offset + (place * RECORD_BYTES) as u64;
                    if file.write_all_at(&self.record(place, self.last), at).is_err() {
                        return self;
                    }
                }
                if file.sync_all().is_err() {
                    return self;
                }
                for &place in &burst {
                    self.places[place].0 = self.places[place].1;
                }
                self.synced += burst.len() as u64;
            }
        })
    }

    fn record(&self, place: usize, number: u64) -> Vec<u8> {
        let mut record = Random::new(self.seed, place as u64 ^ number << 20).bytes(RECORD_BYTES);
        record[..8].copy_from_slice(&number.to_le_bytes());
        record
    }

    /// Checks that each place has a whole record that is not older than the last synced one. The found records count as
    /// synced from now on.
    pub(super) fn verify(&mut self, disk: &str) -> Result<(), String> {
        let file = File::open(disk).map_err(|error| format!("{disk}: {error}"))?;
        let mut found = vec![0; RECORD_BYTES];
        for place in 0..self.places.len() {
            let (synced, written) = self.places[place];
            let at = self.offset + (place * RECORD_BYTES) as u64;
            file.read_exact_at(&mut found, at).map_err(|error| format!("{disk}: {error}"))?;
            let number = u64::from_le_bytes(std::array::from_fn(|i| found[i]));
            let is_whole = match number {
                0 => found.iter().all(|byte| *byte == 0),
                number => found == self.record(place, number),
            };
            if !is_whole {
                return Err(format!("byte {at}: neither zeroes nor a record that was written there"));
            }
            if number < synced || number > written {
                return Err(format!(
                    "byte {at}: record {number}, but {synced} was synced, {written} written"
                ));
            }
            self.places[place] = (number, number);
        }
        Ok(())
    }
}

/// Files of a mounted file system, each of which is synced before the next one is made.
#[derive(Debug)]
pub(super) struct SyncedFiles {
    seed: u64,
    /// Number of files that were tried; no name is used twice.
    tried: u64,
    synced: Vec<u64>,
}

impl SyncedFiles {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, tried: 0, synced: Vec::new() }
    }

    /// Number of files that were synced so far.
    pub(super) fn count(&self) -> usize {
        self.synced.len()
    }

    /// Makes and syncs files in `dir` until the disk fails, and with each of them one that is not synced.
    pub(super) fn write(mut self, dir: &str) -> JoinHandle<Self> {
        let dir = dir.to_owned();
        spawn(move || {
            loop {
                self.tried += 1;
                if self.write_one(&dir, self.tried).is_err() {
                    return self;
                }
                self.synced.push(self.tried);
            }
        })
    }

    fn write_one(&self, dir: &str, number: u64) -> io::Result<()> {
        let content = self.content(number);
        std::fs::write(format!("{dir}/loose{number}"), &content)?;
        let file = File::create(format!("{dir}/synced{number}"))?;
        file.write_all_at(&content, 0)?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    }

    fn content(&self, number: u64) -> Vec<u8> {
        let mut random = Random::new(self.seed, number);
        let length = random.below(24 << 10) as usize;
        random.bytes(length)
    }

    /// Checks that every synced file is in `dir` as it was written.
    pub(super) fn verify(&self, dir: &str) -> Result<(), String> {
        for &number in &self.synced {
            let path = format!("{dir}/synced{number}");
            let found = std::fs::read(&path).map_err(|error| format!("{path} was synced: {error}"))?;
            if found != self.content(number) {
                return Err(format!("{path} was synced, but holds something else"));
            }
        }
        Ok(())
    }
}
