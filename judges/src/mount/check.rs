//! `weir check` itself: it finds the bugs of programs, none in those without, and Linux agrees.

use super::mounted::FORMATS;
use crate::host::root;
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{run as program, run_failing};
use crate::tree::built;

/// Command that makes the database.
const SETUP: &str = "sqlite3 {}/db 'create table t(a)'";

/// Script that inserts rows one after the other with the stock sqlite3; `$1` is the directory, `$2` the value of `synchronous`. With
/// less than EXTRA the last row may be lost, because the removal of its journal is not synced.
const LOAD: &str = r#"
set -e
for row in 1 2 3 4 5 6; do
  sqlite3 "$1/db" "pragma synchronous=$2; insert into t values($row)"
  echo "$row"
done
"#;

/// Script that checks that the database is whole and has every printed row; `$1` is the directory.
const ROWS: &str = r#"
rows=$(sqlite3 "$1/db" "pragma integrity_check; select a from t") || exit 1
case "$rows" in ok*) ;; *) echo "$rows"; exit 1 ;; esac
while read row; do echo "$rows" | grep -qx "$row" || { echo "row $row is missing"; exit 1; }; done
"#;

/// Script that looks at a kept state on Linux: `$1` is the image, `$2` its mount point, `$3` the store, `$4` the printed output.
const BY_LINUX: &str = r#"
set -e
mount -o loop "$1" "$2"
trap 'umount "$2"' EXIT
! "$3" check "$2" < "$4"
"#;

/// vim overwrites a text whose backup is not synced: ordered data may leave neither, journalled data do not.
fn vim(place: &Place, weir: &str) -> Result<(), String> {
    let script = root().join("examples/check/vim.sh").display().to_string();
    let (setup, verify) = (format!("{script} init {{}}"), format!("{script} check {{}}"));
    let checked = |format, is_right: bool| {
        let mut line =
            vec![weir, "check", "--quiet", "--format", format, "--courses", "1", "--states", "300"];
        line.extend(["--setup", &setup, "--verify", &verify, "--", &script, "fill", "{}", "3"]);
        if is_right { program(place, &line) } else { run_failing(place, &line) }
    };
    let said = checked("ext4", false)?;
    if !said.contains("neither the text nor its backup is whole") {
        return Err(format!("vim on ordered data: {said}"));
    }
    checked("ext4-sdj", true).map(drop)
}

/// Files that are committed together never differ; those that are synced one after the other do.
fn transfer(place: &Place, weir: &str) -> Result<(), String> {
    let (source, include) = (root().join("examples/transfer.c"), root().join("include"));
    let (source, include) = (source.display().to_string(), include.display().to_string());
    let (together, apart) = (place.path("transfer"), place.path("transfer-apart"));
    let compile = ["cc", "-Wall", "-Werror", "-I", &include, &source, "-o"];
    program(place, &[&compile[..], &[&together]].concat())?;
    program(place, &[&compile[..], &[&apart, "-DAPART"]].concat())?;
    for format in ["ext4-journal", "ext4-sdj", "f2fs-ssc-dual"] {
        let checked = |transfer: &str, is_right: bool| {
            let files = "{}/left {}/right";
            let (setup, verify) = (format!("{transfer} {files} 1"), format!("{transfer} --check {files}"));
            let mut line =
                vec![weir, "check", "--quiet", "--format", format, "--courses", "1", "--states", "300"];
            line.extend(["--setup", &setup, "--verify", &verify]);
            line.extend(["--", transfer, "{}/left", "{}/right", "7"]);
            if is_right { program(place, &line) } else { run_failing(place, &line) }
        };
        checked(&together, true)?;
        let said = checked(&apart, false)?;
        if !said.contains("of file 1 is of round") {
            return Err(format!("{format}: two files that are synced apart: {said}"));
        }
    }
    Ok(())
}

pub(super) fn judge(place: &Place) -> Finding {
    let (weir, seed) = (built("weir"), place.seed().to_string());
    let source = root().join("examples/check/kv.c").display().to_string();
    let (missing, right) = (place.path("kv"), place.path("kv-sync"));
    program(place, &["cc", "-Wall", "-Werror", "-o", &missing, &source])?;
    program(place, &["cc", "-Wall", "-Werror", "-DSYNC", "-o", &right, &source])?;
    let (load, rows) = (place.write("load.sh", LOAD.as_bytes())?, place.write("rows.sh", ROWS.as_bytes())?);
    let redis = root().join("examples/check/redis.sh").display().to_string();
    let line = [
        &weir,
        "check",
        "--quiet",
        "--verify",
        &format!("{redis} check {{}}"),
        "--",
        &redis,
        "fill",
        "{}",
        "5",
    ];
    let said = run_failing(place, &line)?;
    if !said.contains("Redis does not start: Bad file format")
        || said.contains("was acknowledged and is gone")
    {
        return Err(format!("README's Redis: {said}"));
    }
    vim(place, &weir)?;
    transfer(place, &weir)?;
    let kept = place.make_dir("kept")?;
    for format in FORMATS {
        let checked = |verify: &str, options: &[&str], command: &[&str], is_right: bool| {
            let mut line = vec![weir.as_str(), "check", "--quiet", "--format", format, "--seed", &seed];
            line.extend(["--courses", "1", "--states", "300", "--verify", verify]);
            line.extend(options);
            line.push("--");
            line.extend(command);
            if is_right { program(place, &line) } else { run_failing(place, &line) }
        };
        let verify = |store: &str| format!("{store} check {{}}");
        let said = checked(&verify(&missing), &["--keep", &kept], &[&missing, "fill", "{}", "6"], false)?;
        if !said.contains("the store is torn") || !said.contains("write store.new at 0") {
            return Err(format!("{format}: a missing sync is not what was found: {said}"));
        }
        checked(&verify(&right), &[], &[&right, "fill", "{}", "6"], true)?;
        let verify = format!("sh {rows} {{}}");
        checked(&verify, &["--setup", SETUP], &["sh", &load, "{}", "extra"], true)?;
        for sync in ["off", "full"] {
            let said = checked(&verify, &["--setup", SETUP], &["sh", &load, "{}", sync], false)?;
            if !said.contains("is missing") {
                return Err(format!("{format}: SQLite with {sync} lost something else: {said}"));
            }
        }
        if format == "ext4" {
            let (image, printed) = (format!("{kept}/1.img"), format!("{kept}/1.printed"));
            let at = place.make_dir("linux")?;
            program(place, &["sh", "-c", BY_LINUX, "sh", &image, &at, &missing, &printed])?;
        }
    }
    Ok("a store without a sync, Redis as in the README, and SQLite with less than EXTRA, vim on ordered data and two files that are synced apart are found, with them nothing is".into())
}
