//! `cargo xtask dist`: the archive that is published of a commit, in `target/xtask/dist`.
//!
//! An archive has the program, its completions, its manual pages, and the texts that a user needs without the repository; its SHA-256
//! is beside it. The same commit, compiler and machine give the same archive: names are sorted and times are those of the commit.

use flashweir_judges::builds::cargo;
use flashweir_judges::host::{commit, out_dir, output, published, root};
use flashweir_judges::steps::{show, take};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Shells, with the file names of their completions.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "weir.bash"), ("zsh", "_weir"), ("fish", "weir.fish")];

/// Texts in the archive.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Makes the archive; an uncommitted change is a failure, because the archive could not be reproduced.
pub(crate) fn run(args: &[&str]) -> Result<bool, String> {
    let may_differ = match args {
        [] => false,
        ["--uncommitted"] => true,
        other => {
            return Err(format!("unknown argument {:?}: expected --uncommitted or nothing", other.join(" ")));
        }
    };
    let commit = commit();
    if commit.ends_with("+changes") && !may_differ {
        return Err("the checkout differs from its commit: commit first, or say --uncommitted".into());
    }
    take(cargo(0).args(["build", "--locked", "--profile", "dist", "--quiet", "--bin", "weir"]))?;
    let weir = published("weir");
    let said = take(Command::new(&weir).arg("--version"))?;
    let version = said.split(' ').nth(1).unwrap_or_default().trim().to_owned();
    let host = output("rustc", &["-vV"]).unwrap_or_default();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?;
    let name = format!("weir-{version}-{host}");
    let out = out_dir()?.join("dist");
    let dir = out.join(&name);
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(failed(&dir))?;
    }
    let completions = dir.join("completions");
    fs::create_dir_all(&completions).map_err(failed(&completions))?;
    for (from, to) in [(weir.clone(), dir.join("weir"))]
        .into_iter()
        .chain(TEXTS.map(|text| (root().join(text), dir.join(text))))
    {
        fs::copy(&from, &to).map_err(failed(&from))?;
    }
    for (shell, file) in COMPLETIONS {
        let script = take(Command::new(&weir).args(["completions", shell]))?;
        fs::write(completions.join(file), script).map_err(failed(&completions))?;
    }
    take(Command::new(&weir).args(["man", "--out-dir"]).arg(dir.join("man/man1")))?;
    let archive = format!("{name}.tar.gz");
    let time = output("git", &["log", "-1", "--format=%ct"]).unwrap_or_else(|| "0".into());
    let mut tar = Command::new("tar");
    tar.current_dir(&out).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{time}")).args(["--use-compress-program", "gzip -9n", "-cf", &archive, &name]);
    if let flashweir_judges::steps::Verdict::Failed(why) = show(&mut tar) {
        return Err(why);
    }
    let sum = take(Command::new("sha256sum").current_dir(&out).arg(&archive))?;
    let sums = out.join(format!("{archive}.sha256"));
    fs::write(&sums, &sum).map_err(failed(&sums))?;
    let bytes = |path: &Path| fs::metadata(path).map_err(failed(path)).map(|data| data.len());
    println!(
        "{}: {} bytes, weir {} bytes",
        out.join(&archive).display(),
        bytes(&out.join(&archive))?,
        bytes(&weir)?
    );
    print!("{said}{sum}");
    Ok(true)
}
