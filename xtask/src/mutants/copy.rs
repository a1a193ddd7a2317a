//! The mutated copy of the workspace: it is written and built, and mutants that the compiler refuses are left out.
//!
//! Place: the files of [`super::layers`], mutated by [`super::rules`], become programs with all mutants.
//!
//! Invariants: the copy has the checkout's files as they are, committed or not, except those that are mutated; a file whose text
//! stays the same is not written again, so that cargo builds only what changed.

use super::layers::{LAYERS, Suite, Tests};
use super::rules::{Mutants, Operator, Rendered, mutants_of};
use flashweir_judges::builds::cargo;
use flashweir_judges::host::{root, target_dir};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Limit of the mutants' numbers in `flashweir_core::mutant`.
const NUMBERS: u32 = 1 << 15;

/// Most rounds of builds.
const ROUNDS_MAX: usize = 40;

/// A mutated file of a layer.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) layer: &'static str,
    pub(crate) path: &'static str,
    /// Number of its first mutant; the numbers of the others follow.
    pub(crate) first: u32,
    pub(crate) mutants: Mutants,
}

/// The built copy.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) files: Vec<File>,
    /// Mutants that the compiler refused.
    pub(crate) refused: BTreeSet<u32>,
    pub(crate) weir: PathBuf,
    /// Test binaries by package and target.
    pub(crate) tests: BTreeMap<(String, String), PathBuf>,
}

/// Directory of the copy and of all that is made from it.
pub(crate) fn dir() -> PathBuf {
    target_dir().join("mutants")
}

/// Directory of the copied workspace.
pub(crate) fn source() -> PathBuf {
    dir().join("source")
}

/// All mutants of the layers' files, numbered from 1.
pub(crate) fn find() -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    let mut first = 1;
    for layer in &LAYERS {
        for path in layer.files {
            let text = read(&root().join(path))?;
            let mutants = mutants_of(&text).map_err(|error| format!("{path}: {error}"))?;
            let count = mutants.all.len() as u32;
            files.push(File { layer: layer.name, path, first, mutants });
            first += count;
        }
    }
    if first > NUMBERS {
        return Err(format!("there are {first} mutants: `flashweir_core::mutant` counts below {NUMBERS}"));
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file, unless it already has these bytes.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let dir = path.parent().expect("a file is in a directory");
    let done = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(path, bytes));
    done.map_err(|error| format!("{}: {error}", path.display()))
}

/// Names of the checkout's files.
fn checkout() -> Result<Vec<String>, String> {
    let what = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let output = Command::new("git").args(what).current_dir(root()).output();
    let output = output.map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(String::from).collect())
}

/// Copies all files except the mutated ones; files that are gone from the checkout are removed from the copy.
fn copy_rest(files: &[File]) -> Result<(), String> {
    let mutated: BTreeSet<&str> = files.iter().map(|file| file.path).collect();
    let names: BTreeSet<String> = checkout()?.into_iter().collect();
    for name in &names {
        let from = root().join(name);
        // A listed file may have been deleted without a commit.
        if !mutated.contains(name.as_str()) && from.is_file() {
            let mut bytes = std::fs::read(&from).map_err(|error| format!("{name}: {error}"))?;
            if name == "Cargo.toml" {
                bytes = with_feature(&String::from_utf8_lossy(&bytes))?.into_bytes();
            }
            write(&source().join(name), &bytes)?;
        }
    }
    let list = dir().join("copied");
    let old = std::fs::read_to_string(&list).unwrap_or_default();
    for gone in old.lines().filter(|name| !names.contains(*name)) {
        let _ = std::fs::remove_file(source().join(gone));
    }
    write(&list, names.into_iter().collect::<Vec<_>>().join("\n").as_bytes())
}

/// The workspace's manifest with the feature, and without warnings, because mutants have unnecessary parentheses.
fn with_feature(manifest: &str) -> Result<String, String> {
    let plain = "flashweir-core = { path = \"crates/core\" }";
    let lints = "[workspace.lints.rust]\n";
    if !manifest.contains(plain) || !manifest.contains(lints) {
        return Err(format!("Cargo.toml: expected the lines `{plain}` and `{}`", lints.trim()));
    }
    let with = "flashweir-core = { path = \"crates/core\", features = [\"mutants\"] }";
    let manifest =
        manifest.replace(plain, with).replace(lints, "[workspace.lints.rust]\nwarnings = \"allow\"\n");
    // No suite runs a server; only unit tests of its crate are run.
    Ok(manifest + "\n[profile.release.package.flashweir-serve]\nopt-level = 0\n")
}

/// Arguments of the builds: the program, if a suite runs it, and the unit tests and integration tests of the suites.
fn builds(suites: &[Suite]) -> Vec<Vec<&'static str>> {
    let mut builds = Vec::new();
    let has_program = suites.iter().any(|suite| matches!(suite, Suite::Weir(_)));
    if has_program {
        builds.push(vec!["build", "--keep-going", "--bin", "weir"]);
    }
    let tests: Vec<Tests> = suites
        .iter()
        .filter_map(|suite| match suite {
            Suite::Tests(tests) => Some(*tests),
            Suite::Weir(_) => None,
        })
        .collect();
    for is_lib in [true, false] {
        let of_it = tests.iter().filter(|tests| (tests.target == "lib") == is_lib);
        let packages: BTreeSet<&str> = of_it.clone().map(|tests| tests.package).collect();
        let targets: BTreeSet<&str> = of_it.map(|tests| tests.target).filter(|_| !is_lib).collect();
        if !packages.is_empty() {
            let mut what = vec!["test", "--no-run", "--no-fail-fast"];
            what.extend(is_lib.then_some("--lib"));
            what.extend(targets.into_iter().flat_map(|target| ["--test", target]));
            // With the program's package, dependencies have the same features as in the program, and are built once.
            let packages = packages.into_iter().chain(has_program.then_some("flashweir-cli"));
            what.extend(packages.flat_map(|package| ["--package", package]));
            builds.push(what);
        }
    }
    builds
}

impl Copy {
    /// Writes the copy with the mutants of these layers and builds it for these suites until the compiler accepts it.
    pub(crate) fn build(
        files: Vec<File>,
        layers: &[&str],
        seed: u64,
        suites: &[Suite],
    ) -> Result<Self, String> {
        copy_rest(&files)?;
        let remembered = dir().join("refused.json");
        let mut copy = Self { files, refused: BTreeSet::new(), weir: PathBuf::new(), tests: BTreeMap::new() };
        copy.recall(&remembered);
        let builds = builds(suites);
        for round in 1..=ROUNDS_MAX {
            let rendered = copy.render(layers)?;
            let mut errors = Vec::new();
            for what in &builds {
                if errors.is_empty() {
                    copy.cargo(seed, what, &mut errors)?;
                }
            }
            if errors.is_empty() {
                return Ok(copy);
            }
            let before = copy.refused.len();
            for error in &errors {
                copy.blame(error, &rendered);
            }
            copy.remember(&remembered)?;
            let (more, errors_len) = (copy.refused.len() - before, errors.len());
            println!("   round {round}: {errors_len} errors, {more} mutants left out");
            if more == 0 {
                let text = errors[0]["rendered"].as_str().unwrap_or_default();
                return Err(format!("the mutated copy does not compile, by no mutant's fault:\n{text}"));
            }
        }
        Err(format!("the mutated copy does not compile after {ROUNDS_MAX} rounds"))
    }

    /// Writes the files of all layers, mutated where the layer is one of these: the others build faster as they are.
    fn render(&self, layers: &[&str]) -> Result<BTreeMap<&'static str, Rendered>, String> {
        let mut all = BTreeMap::new();
        for file in &self.files {
            let is_wanted = layers.contains(&file.layer);
            let id = |at: usize| {
                let id = file.first + at as u32;
                (is_wanted && !self.refused.contains(&id)).then_some(id)
            };
            let rendered = file.mutants.render(id);
            write(&source().join(file.path), rendered.text.as_bytes())?;
            all.insert(file.path, rendered);
        }
        Ok(all)
    }

    /// Runs cargo in the copy; notes the programs and gathers the compiler's errors.
    fn cargo(&mut self, seed: u64, what: &[&'static str], errors: &mut Vec<Value>) -> Result<(), String> {
        let mut command = cargo(seed);
        command.current_dir(source()).args(what);
        command.args(["--release", "--locked", "--quiet", "--message-format", "json"]);
        // Dependencies, which it shares with the checkout, are built once.
        command.env("CARGO_TARGET_DIR", dir().join("target")).env("CARGO_BUILD_BUILD_DIR", target_dir());
        let output = command.output().map_err(|error| format!("cargo: {error}"))?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            match message["reason"].as_str() {
                Some("compiler-message") if message["message"]["level"] == "error" => {
                    errors.push(message["message"].clone());
                }
                Some("compiler-artifact") => self.note(&message),
                _ => {}
            }
        }
        if !output.status.success() && errors.is_empty() {
            return Err(format!("cargo {}: {}", what.join(" "), String::from_utf8_lossy(&output.stderr)));
        }
        // "aborting due to 3 errors" is not an error of its own.
        errors.retain(|error| error["spans"].as_array().is_some_and(|spans| !spans.is_empty()));
        Ok(())
    }

    fn note(&mut self, artifact: &Value) {
        let Some(program) = artifact["executable"].as_str() else { return };
        let name = artifact["target"]["name"].as_str().unwrap_or_default();
        if artifact["profile"]["test"] != true {
            if name == "weir" {
                self.weir = program.into();
            }
            return;
        }
        let manifest = artifact["manifest_path"].as_str().unwrap_or_default();
        let package = Path::new(manifest).parent().and_then(Path::file_name).unwrap_or_default();
        let package = format!("flashweir-{}", package.to_string_lossy());
        let is_lib =
            artifact["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"));
        let target = if is_lib { "lib" } else { name };
        self.tests.insert((package, target.into()), program.into());
    }

    /// Refuses the mutants of the narrowest place that an error points to.
    fn blame(&mut self, error: &Value, rendered: &BTreeMap<&'static str, Rendered>) {
        let spans = error["spans"].as_array().map_or(&[][..], Vec::as_slice);
        let mut best: Option<(bool, usize, Vec<u32>)> = None;
        for span in spans {
            let Some(path) = span["file_name"].as_str() else { continue };
            let Some(file) = self.files.iter().find(|file| path.ends_with(file.path)) else { continue };
            let number = |key: &str| span[key].as_u64().unwrap_or(0) as usize;
            let (start, end) = (number("byte_start"), number("byte_end"));
            for (place, mutants) in &rendered[file.path].places {
                if place.start < end.max(start + 1) && start < place.end && !mutants.is_empty() {
                    let is_within = place.start <= start && end <= place.end;
                    let is_primary = span["is_primary"] == true;
                    // A place around the primary span of an error is better than others; then a narrower one is better.
                    let key = (!(is_within && is_primary), place.len());
                    if best.as_ref().is_none_or(|(not, length, _)| key < (*not, *length)) {
                        let ids = mutants.iter().map(|at| file.first + *at as u32).collect();
                        best = Some((key.0, key.1, ids));
                    }
                }
            }
        }
        match best {
            Some((.., ids)) => self.refused.extend(ids),
            None => self.blame_between(spans, rendered),
        }
    }

    /// Refuses skipped calls between the spans of an error: one that does not happen, such as the end of a borrow, is the cause.
    fn blame_between(&mut self, spans: &[Value], rendered: &BTreeMap<&'static str, Rendered>) {
        let path = spans.first().and_then(|span| span["file_name"].as_str()).unwrap_or_default();
        let Some(file) = self.files.iter().find(|file| path.ends_with(file.path)) else { return };
        let all = spans.iter().filter(|span| span["file_name"] == *path);
        let numbers = |key: &'static str| all.clone().filter_map(move |span| span[key].as_u64());
        let start = numbers("byte_start").min().unwrap_or(0) as usize;
        let end = numbers("byte_end").max().unwrap_or(0) as usize;
        for (place, mutants) in &rendered[file.path].places {
            let skips = |at: &&usize| file.mutants.all[**at].operator == Operator::CallSkipped;
            if start <= place.start && place.end <= end {
                self.refused.extend(mutants.iter().filter(skips).map(|at| file.first + *at as u32));
            }
        }
    }

    /// Recalls the mutants that were refused before in files that are the same, so that they need no further round.
    fn recall(&mut self, path: &Path) {
        let Ok(Ok(old)) = std::fs::read(path).map(|bytes| serde_json::from_slice::<Value>(&bytes)) else {
            return;
        };
        for file in &self.files {
            let entry = &old[file.path];
            if entry["text"].as_u64() == Some(file.mutants.print()) {
                let refused = entry["refused"].as_array().into_iter().flatten().filter_map(Value::as_u64);
                self.refused.extend(refused.map(|at| file.first + at as u32));
            }
        }
    }

    fn remember(&self, path: &Path) -> Result<(), String> {
        let mut all = serde_json::Map::new();
        for file in &self.files {
            let ids = file.first..file.first + file.mutants.all.len() as u32;
            let refused: Vec<u32> = self.refused.range(ids).map(|id| id - file.first).collect();
            all.insert(
                file.path.into(),
                serde_json::json!({ "text": file.mutants.print(), "refused": refused }),
            );
        }
        write(path, Value::Object(all).to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_layer_has_mutants_with_numbers_of_their_own() {
        let files = find().expect("the files are there");
        let mut next = 1;
        for file in &files {
            assert_eq!(file.first, next, "{}", file.path);
            assert!(!file.mutants.all.is_empty(), "{} has no mutant", file.path);
            next += file.mutants.all.len() as u32;
        }
    }

    #[test]
    fn the_manifest_of_this_workspace_takes_the_feature() {
        let manifest = read(&root().join("Cargo.toml")).expect("it is there");
        assert!(!manifest.contains("\"mutants\""), "no release has the feature");
        assert!(with_feature(&manifest).expect("it has the lines").contains("features = [\"mutants\"]"));
    }
}
