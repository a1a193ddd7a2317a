//! Contents that are made from a seed, and are compared with those that come back.

use crate::random::Random;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Makes an image of `size` bytes with data in a few places, aligned to 512 bytes, and holes between them. Returns the
/// number of bytes of data.
pub(super) fn image(path: &str, seed: u64, number: u64, size: u64) -> Result<u64, String> {
    const PARTS: u64 = 24;
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut random = Random::new(seed, number);
    let mut file = File::create(path).map_err(failed)?;
    file.set_len(size).map_err(failed)?;
    let (part, mut data) = (size / PARTS, 0);
    for at in 0..PARTS {
        let length = random.below((part / 4).min(2 << 20)) / 512 * 512;
        let offset = at * part / 512 * 512 + random.below(part / 4) / 512 * 512;
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        file.write_all(&random.bytes(length as usize)).map_err(failed)?;
        data += length;
    }
    Ok(data)
}

/// Checks that two files have the same content; an error gives the first difference.
pub(super) fn compare(one: &str, other: &str) -> Result<(), String> {
    const CHUNK: usize = 1 << 20;
    let open = |path: &str| File::open(path).map_err(|error| format!("{path}: {error}"));
    let (mut a, mut b) = (open(one)?, open(other)?);
    let chunk = |file: &mut File| {
        let mut bytes = Vec::new();
        Read::by_ref(file).take(CHUNK as u64).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok::<_, String>(bytes)
    };
    for number in 0.. {
        let (x, y) = (chunk(&mut a)?, chunk(&mut b)?);
        if x != y {
            let same = x.iter().zip(&y).take_while(|(x, y)| x == y).count();
            return Err(format!("what came back differs at byte {}", number * CHUNK + same));
        }
        if x.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Expected files of a file system, with the seeds of their contents.
#[derive(Debug)]
pub(super) struct Tree {
    random: Random,
    /// Seed and length of the content, by path.
    files: BTreeMap<String, (u64, usize)>,
    made: u32,
}

impl Tree {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed, 77), files: BTreeMap::new(), made: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|(_, length)| *length as u64).sum()
    }

    /// Makes new files in `root`, most of them small.
    pub(super) fn fill(&mut self, root: &str, files: u32) -> Result<(), String> {
        for _ in 0..files {
            let name = format!("d{}/f{}", self.made % 16, self.made);
            self.made += 1;
            self.put(root, name)?;
        }
        Ok(())
    }

    /// Removes a third of the files, rewrites another third, and renames some of the rest.
    pub(super) fn churn(&mut self, root: &str) -> Result<(), String> {
        let names: Vec<String> = self.files.keys().cloned().collect();
        for name in names {
            let path = Path::new(root).join(&name);
            let failed = |error: std::io::Error| format!("{}: {error}", path.display());
            match self.random.below(6) {
                0 | 1 => {
                    std::fs::remove_file(&path).map_err(failed)?;
                    self.files.remove(&name);
                }
                2 | 3 => self.put(root, name)?,
                4 => {
                    let other = format!("{name}.moved");
                    std::fs::rename(&path, Path::new(root).join(&other)).map_err(failed)?;
                    let content = self.files.remove(&name).expect("it is one of the names");
                    self.files.insert(other, content);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, root: &str, name: String) -> Result<(), String> {
        let length = match self.random.below(8) {
            0 => self.random.below(1 << 20),
            1 => 0,
            _ => self.random.below(32 << 10),
        } as usize;
        let seed = self.random.next();
        let path = Path::new(root).join(&name);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(path.parent().expect("it is in a directory")).map_err(failed)?;
        std::fs::write(&path, Random::new(seed, 0).bytes(length)).map_err(failed)?;
        self.files.insert(name, (seed, length));
        Ok(())
    }

    /// Checks that these files and no others are in `root`, with their contents.
    pub(super) fn verify(&self, root: &str) -> Result<(), String> {
        for (name, (seed, length)) in &self.files {
            let path = Path::new(root).join(name);
            let found = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            if found != Random::new(*seed, 0).bytes(*length) {
                return Err(format!("{}: its content is another one", path.display()));
            }
        }
        let found = count(Path::new(root)).map_err(|error| format!("{root}: {error}"))?;
        if found != self.files.len() {
            return Err(format!("{root}: {found} files, expected {}", self.files.len()));
        }
        Ok(())
    }
}

/// Number of files in a directory and those below it.
fn count(dir: &Path) -> std::io::Result<usize> {
    let (mut files, mut dirs) = (0, vec![PathBuf::from(dir)]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => dirs.push(entry.path()),
                false => files += 1,
            }
        }
    }
    Ok(files)
}
