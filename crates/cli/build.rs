//! Names the commit that `weir --version` shows.
//!
//! In a checkout git names it; in an archive that git made, `.git_archival.txt` does; elsewhere it is unknown, and the version is shown
//! alone. Only this crate depends on it, so a commit that changes nothing else compiles nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commit = of_checkout(&root).or_else(|| of_archive(&root));
    println!(
        "cargo::rustc-env=WEIR_COMMIT={}",
        commit.map_or(String::new(), |commit| format!(" ({commit})"))
    );
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// Hash and day of the commit that is checked out, if the checkout is ours and not one that we lie in.
fn of_checkout(root: &Path) -> Option<String> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // HEAD changes when another branch is checked out, the branch when something is committed; packed-refs when branches are packed.
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let Some(path) = git(root, &["rev-parse", "--git-path", name]) else { continue };
        let path = root.join(path);
        // Of a file that is not there cargo would believe that it always changes.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(root, &["log", "-1", "--format=%h %cs", "--abbrev=7"])
}

/// The same from a file that `git archive` fills in.
fn of_archive(root: &Path) -> Option<String> {
    let path = root.join(".git_archival.txt");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = std::fs::read_to_string(path).ok()?;
    let commit = text.lines().find_map(|line| line.strip_prefix("commit: "))?.trim().to_owned();
    (!commit.contains('$')).then_some(commit)
}
