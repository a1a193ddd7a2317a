//! Plans the files of a fileset (paths, lengths, and which exist at the beginning), and creates them.
//!
//! The tree is filebench's: the mean depth is `ln(entries) / ln(dirwidth)`; each directory draws a depth and a width,
//! both gamma-distributed; a directory at its own drawn depth holds files, the others hold directories. The root gets
//! as many directories as all files require.
//!
//! Invariant: a plan depends only on the fileset, the seed and the name of the run.

use super::error::RunError;
use super::model::{Fileset, Gamma};
use flashweir_core::RandomStream;
use flashweir_fs::vfs::{Errno, Follow, Fs, Kind, OpenFlags, Process, Source};

/// A file of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedFile {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) exists: bool,
}

/// All files of a fileset, and its directories, parents first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) dirs: Vec<String>,
    pub(super) files: Vec<PlannedFile>,
}

/// Number of bytes written at once when files are created.
const CHUNK_BYTES: u64 = 1 << 20;

struct Planner<'a> {
    fileset: &'a Fileset,
    mean_depth: f64,
    shape: RandomStream,
    size: RandomStream,
    prealloc: RandomStream,
    plan: Plan,
}

impl Plan {
    /// Plans the files; `stream` is the prefix of the random streams' names.
    pub(super) fn new(fileset: &Fileset, seed: u64, stream: &str) -> Self {
        let named = |what: &str| RandomStream::new(seed, &format!("{stream}.{}.{what}", fileset.name));
        let mut planner = Planner {
            fileset,
            mean_depth: (fileset.entries as f64).ln() / (fileset.dir_width as f64).ln(),
            shape: named("tree"),
            size: named("size"),
            prealloc: named("prealloc"),
            plan: Self::default(),
        };
        let root = format!("{}/{}", fileset.path.trim_end_matches('/'), fileset.name);
        if fileset.is_file {
            planner.add_file(root);
        } else {
            planner.add_dir(root, 1, true);
        }
        planner.plan
    }
}

impl Planner<'_> {
    /// Draws a gamma-distributed number around the mean, or returns the mean where nothing varies.
    fn draw(&mut self, mean: f64) -> f64 {
        if self.fileset.dir_gamma > 0.0 && mean > 0.0 {
            Gamma::new(mean, self.fileset.dir_gamma).draw(&mut self.shape)
        } else {
            mean
        }
    }

    fn is_full(&self) -> bool {
        self.plan.files.len() as u64 >= self.fileset.entries
    }

    fn add_dir(&mut self, path: String, depth: u64, is_root: bool) {
        let depth_wanted = self.draw(self.mean_depth) as u64;
        let width = (self.draw(self.fileset.dir_width as f64).ceil() as u64).max(1);
        let holds_files = !is_root && depth >= depth_wanted.max(1);
        self.plan.dirs.push(path.clone());
        let mut serial = 0;
        while !self.is_full() && (is_root || serial < width) {
            serial += 1;
            let path = format!("{path}/{serial:08}");
            if holds_files {
                self.add_file(path);
            } else {
                self.add_dir(path, depth + 1, false);
            }
        }
    }

    fn add_file(&mut self, path: String) {
        let size = self.fileset.size.draw(&mut self.size);
        let exists = self.prealloc.chance(f64::from(self.fileset.prealloc_percent) / 100.0);
        self.plan.files.push(PlannedFile { path, size, exists });
    }
}

/// Creates the files of a plan and makes them durable. Existing files under the fileset's name are removed first, or
/// used if the fileset says so. `operation` numbers the contents.
pub(super) async fn make<F: Fs>(
    process: &Process<F>,
    fileset: &Fileset,
    plan: &Plan,
    operation: u64,
) -> Result<(), RunError> {
    let failed =
        |path: &str, errno| RunError::Files { fileset: fileset.name.clone(), path: path.to_owned(), errno };
    make_path(process, &fileset.path).await.map_err(|(path, errno)| failed(&path, errno))?;
    if !fileset.reuse {
        let root = plan.dirs.first().or(plan.files.first().map(|file| &file.path));
        if let Some(root) = root {
            remove_tree(process, root.clone()).await.map_err(|(path, errno)| failed(&path, errno))?;
        }
    }
    for dir in &plan.dirs {
        make_dir(process, dir).await.map_err(|errno| failed(dir, errno))?;
    }
    for (index, file) in plan.files.iter().enumerate() {
        if file.exists {
            let made = make_file(process, file, operation + index as u64).await;
            made.map_err(|errno| failed(&file.path, errno))?;
        } else if fileset.reuse {
            // It may exist from an earlier run.
            match process.unlink(&file.path).await {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(failed(&file.path, errno)),
            }
        }
    }
    process.vfs().sync_all().await.map_err(|errno| failed(&fileset.path, errno))
}

async fn make_file<F: Fs>(process: &Process<F>, file: &PlannedFile, operation: u64) -> Result<(), Errno> {
    let open = process.open(&file.path, OpenFlags::WRITE.create(), 0o644).await?;
    if open.size() > file.size {
        open.truncate(file.size).await?;
    }
    let mut at = open.size();
    while at < file.size {
        let wanted = (file.size - at).min(CHUNK_BYTES);
        let written = open.pwrite(at, Source::pattern(operation, wanted)).await?;
        if written == 0 {
            return Err(Errno::ENOSPC);
        }
        at += written;
    }
    open.close().await
}

async fn make_dir<F: Fs>(process: &Process<F>, path: &str) -> Result<(), Errno> {
    match process.mkdir(path, 0o755).await {
        Ok(_) => Ok(()),
        Err(Errno::EEXIST) if process.stat(path, Follow::Yes).await?.kind.is_dir() => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Creates the directory of this path and all its parents.
pub(crate) async fn make_path<F: Fs>(process: &Process<F>, path: &str) -> Result<(), (String, Errno)> {
    let mut so_far = String::from(if path.starts_with('/') { "/" } else { "" });
    for name in path.split('/').filter(|name| !name.is_empty()) {
        so_far.push_str(name);
        make_dir(process, &so_far).await.map_err(|errno| (so_far.clone(), errno))?;
        so_far.push('/');
    }
    Ok(())
}

/// Removes a file, or a directory with its contents; succeeds if it does not exist.
async fn remove_tree<F: Fs>(process: &Process<F>, root: String) -> Result<(), (String, Errno)> {
    let mut found = vec![root];
    let mut dirs = Vec::new();
    while let Some(path) = found.pop() {
        let fail = |errno| (path.clone(), errno);
        match process.stat(&path, Follow::No).await {
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(fail(errno)),
            Ok(attr) if attr.kind == Kind::Directory => {
                for entry in process.list(&path).await.map_err(fail)? {
                    found.push(format!("{path}/{}", String::from_utf8_lossy(&entry.name)));
                }
                dirs.push(path);
            }
            Ok(_) => process.unlink(&path).await.map_err(fail)?,
        }
    }
    // Parents were found before their contents.
    for dir in dirs.iter().rev() {
        process.rmdir(dir).await.map_err(|errno| (dir.clone(), errno))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filebench::Amount;

    fn fileset(entries: u64, dir_width: u64) -> Fileset {
        Fileset {
            name: "s".to_owned(),
            path: "/d/".to_owned(),
            is_file: false,
            entries,
            size: Amount::Gamma(Gamma::new(16_384.0, 1.5)),
            dir_width,
            dir_gamma: 1.5,
            prealloc_percent: 80,
            reuse: false,
            read_only: false,
            write_only: false,
        }
    }

    #[test]
    fn a_plan_has_the_files_the_widths_and_the_sizes_that_were_asked_for() {
        let plan = Plan::new(&fileset(10_000, 20), 1, "t");
        assert_eq!(plan, Plan::new(&fileset(10_000, 20), 1, "t"));
        assert_ne!(plan, Plan::new(&fileset(10_000, 20), 2, "t"));
        assert_eq!(plan.files.len(), 10_000);
        let parents: std::collections::BTreeSet<&str> =
            plan.files.iter().map(|file| file.path.rsplit_once('/').unwrap().0).collect();
        assert!(parents.iter().all(|&parent| parent != "/d/s" && plan.dirs.iter().any(|dir| dir == parent)));
        let width = 10_000.0 / parents.len() as f64;
        assert!((17.0..24.0).contains(&width), "{width} files in a directory");
        let there = plan.files.iter().filter(|file| file.exists).count();
        assert!((7_800..8_200).contains(&there), "{there} of 80 %");
        let mean = plan.files.iter().map(|file| file.size).sum::<u64>() / 10_000;
        assert!((15_500..17_300).contains(&mean), "{mean} bytes");
    }

    #[test]
    fn a_very_wide_tree_is_one_directory() {
        let plan = Plan::new(&fileset(1000, 1_000_000), 1, "t");
        assert_eq!(plan.dirs, ["/d/s", "/d/s/00000001"]);
        assert_eq!(plan.files[999].path, "/d/s/00000001/00001000");
        let file = Fileset { is_file: true, entries: 1, ..fileset(1, 2) };
        let plan = Plan::new(&file, 1, "t");
        assert_eq!((plan.dirs.len(), plan.files[0].path.as_str()), (0, "/d/s"));
    }
}
