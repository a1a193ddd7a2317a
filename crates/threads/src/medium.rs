//! The medium, in memory or in a file: what is left after the power was cut.
//!
//! In memory programs of a block take place in the order of its pages, erases when nothing else is under way. A unit counts as written
//! when its out-of-band record is there, which is the last thing that a program puts down; a program that loses its power leaves some
//! units. In a file a program is there as a whole or not at all; [`crate::file`] says how. Out-of-band records are in memory in
//! either case, 16 bytes a unit.
//!
//! Deliberately absent: time in memory. A program takes as long as a copy.

use crate::assembly::{Geometry, GeometryError};
use crate::content::{Content, Unit};
use crate::fault::OpenError;
use crate::file::{Found, Store};
use crate::queue::Queue;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Backoff, Ordering};
use flashweir_core::{Lpn, Ppa};
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// The power is off, or the device has failed: see [`Medium::failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PowerLost;

/// Who owns a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The content of a logical unit.
    Unit(Lpn),
    /// A logical unit that is deallocated by this record.
    Trim(Lpn),
    /// Nobody: it fills up a program.
    Pad,
}

impl Owner {
    /// As the out-of-band area has it; 0 is a unit that was not written.
    pub(crate) fn pack(self) -> u64 {
        match self {
            Self::Unit(lpn) => lpn.0 << 2 | 1,
            Self::Trim(lpn) => lpn.0 << 2 | 2,
            Self::Pad => 3,
        }
    }

    fn unpack(record: u64) -> Option<Self> {
        match record & 3 {
            1 => Some(Self::Unit(Lpn(record >> 2))),
            2 => Some(Self::Trim(Lpn(record >> 2))),
            3 => Some(Self::Pad),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Record {
    owner: AtomicU64,
    seq: AtomicU64,
}

/// Where contents are.
#[derive(Debug)]
enum Place {
    Memory(Box<[Content]>),
    File(Box<Store>),
}

/// Whether a program is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It is.
    Ended,
    /// It is on its way, under a number in the order of all.
    UnderWay(u64),
}

/// The medium.
#[derive(Debug)]
pub struct Medium {
    geometry: Geometry,
    place: Place,
    records: Box<[Record]>,
    /// Next program of each block.
    next: Box<[AtomicU32]>,
    /// Number of the opening of each block's line, which its programs record.
    openings: Box<[AtomicU64]>,
    is_off: AtomicBool,
    failure: OnceLock<io::Error>,
}

impl Medium {
    /// An erased medium in memory.
    pub fn new(geometry: Geometry) -> Self {
        let units = (0..geometry.physical_units()).map(|_| Content::default());
        Self::of(geometry, Place::Memory(units.collect()))
    }

    /// An erased medium in a new file, which gets all of its room at once where the file system can do that, or on a block device, whose first and last MiB are
    /// zeros unless its content is to be destroyed. `volume` is a number that no other volume has.
    ///
    /// # Errors
    /// The file is there already, the block device has content or is too small, or the system's reason. A file that cannot be made whole is
    /// removed.
    pub fn create(path: &Path, geometry: Geometry, volume: u64, destroys: bool) -> io::Result<Self> {
        Self::created(path, geometry, volume, destroys, None)
    }

    /// The same in a new file that keeps the rules of a zoned device, with zones of so many bytes: for tests. Write pointers are in another file
    /// beside it.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_zoned_file(
        path: &Path,
        geometry: Geometry,
        volume: u64,
        zone_bytes: u64,
    ) -> io::Result<Self> {
        Self::created(path, geometry, volume, false, Some(zone_bytes))
    }

    fn created(
        path: &Path,
        geometry: Geometry,
        volume: u64,
        destroys: bool,
        zone_bytes: Option<u64>,
    ) -> io::Result<Self> {
        geometry
            .check_numbers()
            .map_err(|GeometryError(what)| io::Error::new(io::ErrorKind::InvalidInput, what))?;
        let store = Store::create(path, geometry, volume, destroys, zone_bytes)?;
        Ok(Self::of(geometry, Place::File(Box::new(store))))
    }

    /// The medium in a file, for so many CPUs and handles.
    ///
    /// # Errors
    /// It has no volume, or the system's reason.
    pub fn open(path: &Path, cpus: u32, workers: u32) -> io::Result<Self> {
        let store = Store::open(path, (cpus, workers))?;
        Ok(Self::of(*store.geometry(), Place::File(Box::new(store))))
    }

    /// The same for another number of CPUs, which is the process's and not the volume's.
    pub fn with_cpus(mut self, cpus: u32) -> Self {
        self.geometry.cpus = cpus;
        self
    }

    fn of(geometry: Geometry, place: Place) -> Self {
        Self {
            geometry,
            place,
            records: (0..geometry.physical_units()).map(|_| Record::default()).collect(),
            next: (0..geometry.blocks()).map(|_| AtomicU32::new(0)).collect(),
            openings: (0..geometry.blocks()).map(|_| AtomicU64::new(0)).collect(),
            is_off: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Shape of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Why the device works no more, if it has failed.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.get()
    }

    /// A thread's queue for so many operations at a time; memory needs none.
    pub(crate) fn queue<'a>(&self, depth: usize) -> Option<Queue<'a>> {
        match &self.place {
            Place::Memory(_) => None,
            Place::File(store) => Some(Queue::new(store.file.clone(), depth)),
        }
    }

    /// Whether operations go through io_uring; `None` in memory.
    pub fn is_uring(&self) -> Option<bool> {
        self.queue(1).map(|queue| queue.is_uring())
    }

    /// Cuts the power: every operation that is not over fails.
    pub(crate) fn power_off(&self) {
        self.is_off.store(true, Ordering::SeqCst);
    }

    /// Nothing is under way any more; a file is read, as long as `progress` says so.
    pub(crate) fn power_on(&self, progress: &mut dyn FnMut(f64) -> bool) -> Result<(), OpenError> {
        self.is_off.store(false, Ordering::SeqCst);
        let Place::File(store) = &self.place else { return Ok(()) };
        for record in &self.records {
            record.owner.store(0, Ordering::Relaxed);
        }
        let written = store.load(progress, |Found { block, program, opening, list, .. }| {
            self.openings[block as usize].store(opening, Ordering::Relaxed);
            self.set_records(self.ppa(block, program), &list);
        })?;
        for block in 0..self.geometry.blocks() {
            self.openings[block as usize].fetch_max(store.void(block), Ordering::Relaxed);
        }
        if let Some(written) = written {
            for (next, was_written) in self.next.iter().zip(written) {
                next.store(if was_written { self.geometry.programs_per_block } else { 0 }, Ordering::Release);
            }
        }
        Ok(())
    }

    /// The device has failed, for a reason that is not the system's.
    pub(crate) fn fail(&self, why: &'static str) {
        let _ = self.failure.set(io::Error::other(why));
        self.power_off();
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Ordering::Acquire)
    }

    /// The first error of the system is a power cut.
    fn checked<T>(&self, result: io::Result<T>) -> Result<T, PowerLost> {
        result.map_err(|error| {
            let _ = self.failure.set(error);
            self.power_off();
            PowerLost
        })
    }

    fn power(&self) -> Result<(), PowerLost> {
        if self.is_off() { Err(PowerLost) } else { Ok(()) }
    }

    /// First unit of a program.
    pub(crate) fn ppa(&self, block: u32, program: u32) -> Ppa {
        let programs = u64::from(block) * u64::from(self.geometry.programs_per_block) + u64::from(program);
        Ppa(programs * u64::from(self.geometry.units_per_program))
    }

    pub(crate) fn block_of(&self, ppa: Ppa) -> u32 {
        (ppa.0 / self.geometry.block_units()) as u32
    }

    fn program_of(&self, ppa: Ppa) -> u32 {
        (ppa.0 % self.geometry.block_units()) as u32 / self.geometry.units_per_program
    }

    /// Whether a program may begin: programs of a zone do so when the one before has ended.
    pub(crate) fn may_begin(&self, ppa: Ppa) -> Result<bool, PowerLost> {
        self.power()?;
        let Place::File(store) = &self.place else { return Ok(true) };
        let next = &self.next[self.block_of(ppa) as usize];
        Ok(!store.is_in_order() || next.load(Ordering::Acquire) == self.program_of(ppa))
    }

    /// Programs the units from `ppa` on, after all earlier programs of the block. `list` has owner and number of each unit; `content`
    /// has the content, if there is one; `opening` is the number of the line's opening. In a file it is only begun, and
    /// [`Self::completed`] says when it is over.
    pub(crate) fn program<'a>(
        &'a self,
        queue: &mut Option<Queue<'a>>,
        tag: u64,
        ppa: Ppa,
        list: &'a Content,
        opening: u64,
        content: impl Fn(u32) -> Option<&'a Content>,
    ) -> Result<Begun, PowerLost> {
        let (block, program) = (self.block_of(ppa), self.program_of(ppa));
        self.power()?;
        match (&self.place, queue) {
            (Place::Memory(units), _) => {
                let next = &self.next[block as usize];
                let mut backoff = Backoff::default();
                while next.load(Ordering::Acquire) != program {
                    self.power()?;
                    backoff.wait();
                }
                self.openings[block as usize].store(opening, Ordering::Release);
                for at in 0..self.geometry.units_per_program {
                    self.power()?;
                    if let Some(content) = content(at) {
                        units[(ppa.0 + u64::from(at)) as usize].copy(content);
                    }
                    self.set_record(ppa, at, list);
                }
                next.store(program + 1, Ordering::Release);
                Ok(Begun::Ended)
            }
            (Place::File(store), Some(queue)) => {
                self.openings[block as usize].store(opening, Ordering::Release);
                let begun = store.program(queue, tag, (block, program), list, opening, content);
                Ok(Begun::UnderWay(self.checked(begun)?))
            }
            (Place::File(_), None) => unreachable!("a file has queues"),
        }
    }

    /// The tags of programs that have ended; with `wait` at least one, if any is under way.
    pub(crate) fn completed(
        &self,
        queue: &mut Queue<'_>,
        wait: bool,
        mut each: impl FnMut(u64),
    ) -> Result<(), PowerLost> {
        let mut result = Ok(());
        queue.completed(wait, |tag, ended| match self.checked(ended) {
            Ok(()) => each(tag),
            Err(lost) => result = Err(lost),
        });
        result
    }

    /// A program in a file has ended.
    pub(crate) fn ended(&self, number: u64, ppa: Ppa, list: &Content) -> Result<(), PowerLost> {
        if let Place::File(store) = &self.place {
            let (block, program) = (self.block_of(ppa), self.program_of(ppa));
            self.set_records(ppa, list);
            self.checked(store.ended(number, (block, program)))?;
            if store.is_in_order() {
                self.next[block as usize].store(program + 1, Ordering::Release);
            }
        }
        Ok(())
    }

    fn set_records(&self, ppa: Ppa, list: &Content) {
        for at in 0..self.geometry.units_per_program {
            self.set_record(ppa, at, list);
        }
    }

    fn set_record(&self, ppa: Ppa, at: u32, list: &Content) {
        let unit = ppa.0 + u64::from(at);
        let record = &self.records[unit as usize];
        assert_eq!(record.owner.load(Ordering::Relaxed), 0, "unit {unit} is programmed twice");
        record.seq.store(list.word(2 * at as usize + 1), Ordering::Relaxed);
        record.owner.store(list.word(2 * at as usize), Ordering::Release);
    }

    /// Copies units of held lines, each into a buffer.
    pub(crate) fn read<'a>(
        &self,
        queue: &mut Option<Queue<'_>>,
        reads: impl Iterator<Item = (Ppa, &'a Content)>,
    ) -> Result<(), PowerLost> {
        self.power()?;
        match (&self.place, queue) {
            (Place::Memory(units), _) => {
                reads.for_each(|(ppa, buffer)| buffer.copy(&units[ppa.0 as usize]));
                Ok(())
            }
            (Place::File(store), Some(queue)) => {
                let offset = |ppa: Ppa| {
                    let unit = (ppa.0 % u64::from(self.geometry.units_per_program)) as u32;
                    store.offset_of((self.block_of(ppa), self.program_of(ppa)), unit)
                };
                self.checked(queue.read_all(reads.map(|(ppa, buffer)| (offset(ppa), buffer))))
            }
            (Place::File(_), None) => unreachable!("a file has queues"),
        }
    }

    /// Copies a unit of a held line, if the medium is in memory.
    pub(crate) fn read_memory(&self, ppa: Ppa, unit: &mut Unit) -> Result<bool, PowerLost> {
        self.power()?;
        let Place::Memory(units) = &self.place else { return Ok(false) };
        units[ppa.0 as usize].read(unit);
        Ok(true)
    }

    /// Makes durable what was programmed. In memory it is.
    pub(crate) fn sync(&self) -> Result<(), PowerLost> {
        self.power()?;
        match &self.place {
            Place::Memory(_) => Ok(()),
            Place::File(store) => self.checked(store.sync()),
        }
    }

    /// Opens a file although it is not as it was closed: what damaged records name reads as zeros, or as it was before.
    pub fn accepts_damage(mut self) -> Self {
        if let Place::File(store) = &mut self.place {
            store.accept_damage();
        }
        self
    }

    /// All threads have ended, and everything is durable: a file says so, and what it holds.
    pub(crate) fn seal(&self) -> io::Result<()> {
        match &self.place {
            Place::File(store) if !self.is_off() && self.failure().is_none() => store.seal(),
            _ => Ok(()),
        }
    }

    /// Whether [`Self::lose`] can take anything back.
    pub fn can_lose(&self) -> bool {
        matches!(&self.place, Place::File(store) if store.has_before())
    }

    /// Takes back units of programs that are not durable, as a power cut may: those for which `lose` says so. For tests, of a medium
    /// that [`Self::keeps_before`].
    ///
    /// # Errors
    /// The system's reason.
    pub fn lose(&self, lose: impl FnMut() -> bool) -> io::Result<()> {
        match &self.place {
            Place::Memory(_) => Ok(()),
            Place::File(store) => store.lose(lose),
        }
    }

    /// Keeps what is overwritten until the program is durable, for [`Self::lose`].
    pub fn keeps_before(mut self) -> Self {
        if let Place::File(store) = &mut self.place {
            store.keeps_before();
        }
        self
    }

    /// Owner and number of a unit, if it was written.
    pub(crate) fn record(&self, ppa: Ppa) -> Option<(Owner, u64)> {
        let record = &self.records[ppa.0 as usize];
        let owner = Owner::unpack(record.owner.load(Ordering::Acquire))?;
        Some((owner, record.seq.load(Ordering::Relaxed)))
    }

    /// Number of the opening of a unit's line.
    pub(crate) fn opening(&self, ppa: Ppa) -> u64 {
        self.openings[self.block_of(ppa) as usize].load(Ordering::Acquire)
    }

    /// The largest number of an opening.
    pub(crate) fn last_opening(&self) -> u64 {
        self.openings.iter().map(|opening| opening.load(Ordering::Acquire)).max().unwrap_or(0)
    }

    /// Whether a block takes programs from the first one on.
    pub(crate) fn is_erased(&self, block: u32) -> bool {
        let mut units = (0..self.geometry.block_units()).map(|at| self.ppa(block, 0).0 + at);
        self.next[block as usize].load(Ordering::Acquire) == 0
            && units.all(|unit| self.record(Ppa(unit)).is_none())
    }

    /// Erases blocks.
    pub(crate) fn erase(&self, blocks: impl Iterator<Item = u32>) -> Result<(), PowerLost> {
        let blocks: Vec<u32> = blocks.collect();
        if let Place::File(store) = &self.place {
            self.power()?;
            let opening = |&block: &u32| (block, self.openings[block as usize].load(Ordering::Acquire));
            self.checked(store.erase(&blocks.iter().map(opening).collect::<Vec<_>>()))?;
        }
        for block in blocks {
            let first = self.ppa(block, 0).0;
            for unit in first..first + self.geometry.block_units() {
                self.power()?;
                self.records[unit as usize].owner.store(0, Ordering::Release);
            }
            self.next[block as usize].store(0, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    const TINY: Geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        blocks_per_die: 3,
        programs_per_block: 2,
        units_per_program: 2,
        user_units: 4,
        cpus: 1,
        workers: 1,
    };

    /// A medium in a file that goes with it.
    struct InFile {
        path: std::path::PathBuf,
        medium: Medium,
    }

    impl InFile {
        fn new(name: &str) -> Self {
            Self::made(name, |path| Medium::create(path, TINY, 5, false))
        }

        /// With zones that have room for a unit more than a block.
        fn zoned(name: &str) -> Self {
            Self::made(name, |path| Medium::create_zoned_file(path, TINY, 5, 7 * 4096))
        }

        fn made(name: &str, make: impl FnOnce(&Path) -> io::Result<Medium>) -> Self {
            let path = std::env::temp_dir().join(format!("weir-threads-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let medium = make(&path).unwrap().keeps_before();
            medium.power_on(&mut |_| true).unwrap();
            Self { path, medium }
        }

        /// Programs two units of which every word is `number`.
        fn program(&self, block: u32, program: u32, opening: u64, number: u64) {
            let (list, content) = (Content::default(), Content::default());
            let mut queue = self.medium.queue(1);
            content.write(&[number; crate::content::WORDS]);
            for at in 0..2 {
                list.set_word(2 * at, Owner::Unit(Lpn(number)).pack());
                list.set_word(2 * at + 1, number);
            }
            let ppa = self.medium.ppa(block, program);
            let begun = self.medium.program(&mut queue, 3, ppa, &list, opening, |_| Some(&content)).unwrap();
            let Begun::UnderWay(number) = begun else { panic!("{begun:?}") };
            let mut tags = Vec::new();
            self.medium.completed(queue.as_mut().unwrap(), true, |tag| tags.push(tag)).unwrap();
            assert_eq!(tags, [3]);
            self.medium.ended(number, ppa, &list).unwrap();
        }

        /// After a power cut that takes everything it may.
        fn cut(mut self) -> Self {
            self.medium.lose(|| true).unwrap();
            self.open_again();
            self
        }

        fn open_again(&mut self) {
            // A file is one medium's at a time.
            self.medium = Medium::new(TINY);
            self.medium = Medium::open(&self.path, 1, 1).unwrap().keeps_before();
            self.medium.power_on(&mut |_| true).unwrap();
        }

        fn record(&self, block: u32, program: u32) -> Option<(Owner, u64)> {
            self.medium.record(self.medium.ppa(block, program))
        }
    }

    impl Drop for InFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_file(self.path.with_added_extension("zones"));
        }
    }

    /// A write pointer that went back leaves what was behind it, or something else, or zeros: it is not there, also when the zone is
    /// finished.
    #[test]
    fn what_a_zone_lost_does_not_come_back() {
        for kept in 0..3 {
            let mut file = InFile::zoned(&format!("zone-{kept}"));
            file.program(0, 0, 1, 11);
            file.medium.sync().unwrap();
            file.program(0, 1, 1, 12);
            let mut at = 0..;
            file.medium.lose(|| at.next() == Some(kept)).unwrap();
            for _ in 0..2 {
                file.open_again();
                assert_eq!(file.record(0, 0), Some((Owner::Unit(Lpn(11)), 11)), "{kept} kept");
                assert_eq!(file.record(0, 1), None, "{kept} kept");
                assert!(!file.medium.is_erased(0), "{kept} kept");
            }
            file.medium.erase([0].into_iter()).unwrap();
            file.program(0, 0, 1, 13);
        }
    }

    #[test]
    fn programs_of_a_zone_wait_for_each_other() {
        let file = InFile::zoned("zone-order");
        let may_begin = |program| file.medium.may_begin(file.medium.ppa(1, program)).unwrap();
        assert!(may_begin(0) && !may_begin(1));
        file.program(1, 0, 1, 11);
        assert!(!may_begin(0) && may_begin(1));
        file.program(1, 1, 1, 12);
        assert!(!may_begin(0));
        file.medium.erase([1].into_iter()).unwrap();
        assert!(may_begin(0));
        file.medium.power_off();
        assert_eq!(file.medium.may_begin(Ppa(0)), Err(PowerLost));
    }

    #[test]
    fn zones_that_do_not_suit_are_refused() {
        let path = std::env::temp_dir().join(format!("weir-threads-unsuitable-{}", std::process::id()));
        let error = Medium::create_zoned_file(&path, TINY, 5, 5 * 4096).unwrap_err().to_string();
        assert_eq!(error, "a zone of the device takes 20480 bytes, expected 24576");
        assert!(!path.exists());
        std::fs::remove_file(path.with_added_extension("zones")).unwrap();
    }

    #[test]
    fn what_is_synced_stays_and_what_is_not_may_go() {
        let file = InFile::new("synced");
        file.program(0, 0, 1, 11);
        file.medium.sync().unwrap();
        file.program(0, 1, 1, 12);
        let file = file.cut();
        assert_eq!(file.record(0, 0), Some((Owner::Unit(Lpn(11)), 11)));
        assert_eq!(file.record(0, 1), None);
        let buffer = Content::default();
        let mut queue = file.medium.queue(1);
        file.medium.read(&mut queue, [(Ppa(1), &buffer)].into_iter()).unwrap();
        assert_eq!(buffer.word(100), 11);
    }

    /// A copy is durable before its original is destroyed.
    #[test]
    fn an_erase_makes_earlier_programs_durable() {
        for file in [InFile::new("erase"), InFile::zoned("erase-zone")] {
            file.program(0, 0, 1, 11);
            file.medium.sync().unwrap();
            file.program(1, 0, 2, 11);
            file.medium.erase([0].into_iter()).unwrap();
            assert_eq!(file.record(0, 0), None);
            let file = file.cut();
            assert_eq!(file.record(0, 0), None);
            assert_eq!(file.record(1, 0), Some((Owner::Unit(Lpn(11)), 11)));
        }
    }

    /// Numbers of openings rise over the loss of all programs of the last one.
    #[test]
    fn openings_go_on_above_those_that_were_erased() {
        let file = InFile::new("openings");
        file.program(0, 0, 8, 11);
        file.medium.sync().unwrap();
        file.medium.erase([0].into_iter()).unwrap();
        let file = file.cut();
        assert_eq!(file.medium.last_opening(), 8);
        file.program(0, 0, 9, 12);
        file.medium.sync().unwrap();
        assert_eq!(file.cut().record(0, 0), Some((Owner::Unit(Lpn(12)), 12)));
    }

    /// A program is there as a whole or not at all, whichever of its units a power cut leaves; and for good.
    #[test]
    fn a_torn_program_is_none_for_ever() {
        for lost in 0..3 {
            let mut file = InFile::new(&format!("torn-{lost}"));
            file.program(0, 0, 1, 11);
            let mut at = 0..;
            file.medium.lose(|| at.next() == Some(lost)).unwrap();
            for _ in 0..2 {
                file.open_again();
                assert_eq!(file.record(0, 0), None, "without part {lost}");
                // Its record says that smaller numbers are durable.
                file.program(1, 0, 1, 12);
                file.medium.sync().unwrap();
                file.program(1, 1, 1, 13);
                file.medium.sync().unwrap();
                file.medium.erase([1].into_iter()).unwrap();
            }
        }
    }

    /// Contents that no record calls durable are read again when a volume is opened. If that fails and the volume is refused, it stays as it is:
    /// the record of the program was overwritten before, so the program was lost for good.
    #[test]
    fn regression_a_refused_volume_is_not_changed() {
        use std::os::unix::fs::FileExt as _;
        let mut file = InFile::new("refused");
        file.program(0, 0, 1, 11);
        file.medium.seal().unwrap();
        file.medium = Medium::new(TINY);
        let whole = std::fs::read(&file.path).unwrap();
        let raw = std::fs::File::options().write(true).open(&file.path).unwrap();
        // The superblock, a unit of openings, and the first unit of the program.
        let place = 2 * 4096;
        raw.write_all_at(&[whole[place] ^ 1], place as u64).unwrap();
        let damaged = std::fs::read(&file.path).unwrap();
        let refused = Medium::open(&file.path, 1, 1).unwrap().power_on(&mut |_| true);
        assert!(matches!(refused, Err(OpenError::Damaged)));
        assert!(std::fs::read(&file.path).unwrap() == damaged);
        raw.write_all_at(&whole[place..=place], place as u64).unwrap();
        file.open_again();
        assert_eq!(file.record(0, 0), Some((Owner::Unit(Lpn(11)), 11)));
    }

    #[test]
    fn a_recovery_that_is_stopped_can_be_begun_again() {
        let file = InFile::new("stopped");
        file.program(0, 0, 1, 11);
        let before = std::fs::read(&file.path).unwrap();
        let mut calls = 0;
        let stopped = file.medium.power_on(&mut |fraction| {
            calls += 1;
            fraction < 0.5
        });
        assert!(
            matches!(stopped, Err(OpenError::Stopped)) && calls == 4,
            "{calls} of {} blocks",
            TINY.blocks()
        );
        assert_eq!(std::fs::read(&file.path).unwrap(), before);
        file.medium.power_on(&mut |_| true).unwrap();
        assert_eq!(file.record(0, 0), Some((Owner::Unit(Lpn(11)), 11)));
    }

    #[test]
    fn a_device_that_fails_is_off() {
        let file = InFile::new("fails");
        file.program(0, 0, 1, 11);
        std::fs::File::options().write(true).open(&file.path).unwrap().set_len(4096).unwrap();
        let mut queue = file.medium.queue(1);
        let read = file.medium.read(&mut queue, [(Ppa(0), &Content::default())].into_iter());
        assert_eq!(read, Err(PowerLost));
        assert!(file.medium.failure().is_some() && file.medium.is_off());
        assert_eq!(file.medium.sync(), Err(PowerLost));
    }

    #[test]
    fn what_is_no_volume_is_refused() {
        let mut file = InFile::new("refused");
        let text = |path: &Path| Medium::open(path, 1, 1).unwrap_err().to_string();
        let again = Medium::create(&file.path, TINY, 5, false).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(text(&file.path), "another process has it");
        file.medium = Medium::new(TINY);
        let options = std::fs::File::options().write(true).clone();
        options.open(&file.path).unwrap().set_len(20_000).unwrap();
        assert!(text(&file.path).starts_with("20000 bytes long, expected "), "{}", text(&file.path));
        std::fs::write(&file.path, [7; 8192]).unwrap();
        assert_eq!(text(&file.path), "no volume of threads: its first 4 KiB are something else");
        std::fs::write(&file.path, "short").unwrap();
        assert_eq!(text(&file.path), "too short for a volume of threads");
    }
}
