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

/// The arguments of this program, to be shown: what is no UTF-8 is replaced.
pub(crate) fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned())
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
    if in_place(path) {
        return Ok(());
    }
    let path = &resolved(path);
    // What a run of hours ends with is tried before it begins.
    let trial = temporary(path, "trial");
    let made = std::fs::File::create(&trial).and_then(|_| std::fs::remove_file(&trial));
    made.map_err(|error| Failure::Usage(format!("{shown} cannot be written: {error}")))
}

/// Whether what is at `path` takes what is written, and must not be replaced by a file: a pipe, a terminal, or what a process has open.
pub(crate) fn in_place(path: &Path) -> bool {
    let is_open = ["/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name))
        || ["/dev/fd", "/proc"].iter().any(|dir| path.starts_with(dir));
    is_open || path.exists() && !path.is_file()
}

/// The file that a path means: a symbolic link stays, and what it leads to is replaced.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Whether two paths mean one file, which need not be there.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let whole =
            || directory(path).canonicalize().ok().map(|dir| dir.join(path.file_name().unwrap_or_default()));
        path.canonicalize().ok().or_else(whole).unwrap_or_else(|| path.to_owned())
    };
    place(one) == place(other)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A name beside `path` for a temporary file that replaces it; of what cannot be replaced, elsewhere.
pub(crate) fn temporary(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let elsewhere = in_place(path).then(std::env::temp_dir);
    elsewhere
        .as_deref()
        .unwrap_or_else(|| directory(path))
        .join(format!(".{name}.{}.{ending}", std::process::id()))
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
            if in_place(path) {
                let mut file = std::fs::File::options().append(true).open(path).map_err(failed)?;
                file.write_all(content).map_err(failed)?;
                continue;
            }
            let path = &resolved(path);
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
