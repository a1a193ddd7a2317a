//! The example `tree` of `flashweir-fs`: it fills and changes trees on mounted volumes, and lists them, by system calls
//! or from an image as our code reads it. Judges compare the lists.

use crate::host;
use crate::place::Place;
use crate::steps::take;
use std::process::Command;

/// Path of a program that [`crate::builds::weir_builds`] builds.
pub(crate) fn built(name: &str) -> String {
    host::built(name).display().to_string()
}

/// Path of the program.
pub(crate) fn program() -> String {
    built("examples/tree")
}

/// List of the files that our code finds in an image.
pub(crate) fn list_image(image: &str) -> Result<String, String> {
    take(Command::new(program()).args(["list-image", image]))
}

/// Checks that we read in the directory `files` of an image what Linux listed there. Returns the number of names.
pub(crate) fn same(place: &Place, image: &str, listed: &str) -> Result<usize, String> {
    let ours = list_image(image)?;
    let mut ours: Vec<&str> = ours.lines().filter_map(|line| line.strip_prefix("/files")).collect();
    let mut theirs: Vec<&str> = listed.lines().collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    if let Some((ours, theirs)) = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs) {
        let _ = place.write("ours", ours.as_bytes());
        return Err(format!("we read `{ours}`, Linux `{theirs}`"));
    }
    match (ours.len(), theirs.len()) {
        (ours, theirs) if ours == theirs && ours > 1000 => Ok(ours),
        (ours, theirs) => Err(format!("we read {ours} names, Linux {theirs}")),
    }
}
