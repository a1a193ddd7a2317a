//! Where results go: standard output, or files that appear whole or not at all.
//!
//! Invariant: a file is written beside its place and then renamed, so that a reader never sees half of it, and a
//! failure leaves what was there before.

use crate::error::{Failure, Outcome, say};
use flashweir_lab::results::TERMINAL_WIDTH;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => Failure::Run(format!("standard output cannot be written: {error}")),
    })
}

/// Width of a table on a terminal; a reader of a pipe wants whole names.
pub(crate) fn width() -> Option<usize> {
    std::io::stdout().is_terminal().then_some(TERMINAL_WIDTH)
}

/// A number with commas.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The user has stopped what is not through: prints what there is of it, on standard output, since files appear whole.
pub(crate) fn stopped(
    through: usize,
    all: usize,
    in_part: usize,
    text: impl FnOnce() -> Outcome<String>,
) -> Outcome {
    if through + in_part > 0 {
        let more = if in_part == 0 { String::new() } else { format!(", {in_part} in part") };
        say(format!("stopped: {through} of {all} runs are through{more}"));
        print(&text()?)?;
    }
    Err(Failure::Interrupted)
}

/// Prints to standard output, or writes to a file where one is named.
pub(crate) fn print_or_write(out: Option<&Path>, text: &str) -> Outcome {
    match out {
        None => print(text),
        Some(path) => write(path, text),
    }
}

/// Writes one file.
pub(crate) fn write(path: &Path, content: impl Into<Vec<u8>>) -> Outcome {
    let mut files = Files::default();
    files.add(path, content);
    files.write()
}

/// Whether a file can be written at `path`, as far as one can tell before there is something to write.
pub(crate) fn check(path: &Path) -> Outcome {
    let shown = path.display();
    if path.is_dir() {
        return Err(Failure::Usage(format!("{shown} is a directory: expected the name of a file to write")));
    }
    let parent = directory(path);
    if !parent.is_dir() {
        let parent = parent.display();
        return Err(Failure::Usage(format!("{shown} cannot be written: there is no directory {parent}")));
    }
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    // What a run of hours ends with is tried before it begins.
    let trial = temporary(path, "trial");
    let made = std::fs::File::create(&trial).and_then(|_| std::fs::remove_file(&trial));
    made.map_err(|error| Failure::Usage(format!("{shown} cannot be written: {error}")))
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A name beside `path` for a temporary file that replaces it.
pub(crate) fn temporary(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    directory(path).join(format!(".{name}.{}.{ending}", std::process::id()))
}

/// Files that appear together.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<(PathBuf, Vec<u8>)>);

impl Files {
    /// One more file.
    pub(crate) fn add(&mut self, path: impl Into<PathBuf>, content: impl Into<Vec<u8>>) {
        self.0.push((path.into(), content.into()));
    }

    /// Writes all of them beside their places, then renames them.
    pub(crate) fn write(self) -> Outcome {
        let mut waiting = Waiting(Vec::new());
        for (path, content) in &self.0 {
            let failed = |error: std::io::Error| {
                Failure::Run(format!("{} cannot be written: {error}", path.display()))
            };
            if path.exists() && !path.is_file() {
                // A pipe or a terminal has no half-written state, and must not be replaced by a file.
                std::fs::write(path, content).map_err(failed)?;
                continue;
            }
            let temporary = temporary(path, "part");
            waiting.0.push((temporary.clone(), path.clone()));
            let mut file = std::fs::File::create(&temporary).map_err(failed)?;
            file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        for (temporary, path) in &waiting.0 {
            std::fs::rename(temporary, path)
                .map_err(|error| Failure::Run(format!("{} cannot be written: {error}", path.display())))?;
        }
        waiting.0.clear();
        Ok(())
    }
}

/// Temporary files and their places; they are removed when they did not get there.
struct Waiting(Vec<(PathBuf, PathBuf)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        for (path, _) in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
