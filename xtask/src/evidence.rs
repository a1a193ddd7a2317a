//! `cargo xtask evidence`: the full counts behind a claim, in `docs/evidence/NAME.json`.
//!
//! Work is divided into chunks. Each finished chunk is in the file before the next one begins, so that a stopped
//! run continues where it was; with another seed, or when the code that it judges has changed, it starts again.

use crate::file_pairs;
use crate::freshness;
use crate::mutants;
use flashweir_judges::builds::{cargo, weir, weir_builds};
use flashweir_judges::host::{commit, machine, root, seed};
use flashweir_judges::live_cuts;
use flashweir_judges::steps::take;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Kind of a count.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Worlds of each tiny device, with three random histories each, `chunk` of them in a chunk.
    CrashWorlds { chunk: u64, wanted: u64 },
    /// Devices whose features are drawn, `chunk` of them in a chunk.
    CrashDrawn { chunk: u64, wanted: u64 },
    /// Campaigns of power cuts of a file system in turn, until `wanted` distinct states are reached.
    FileCuts { campaigns: &'static [&'static str], wanted: u64 },
    /// Sequences of every pair of format, family and device.
    FilePairs,
    /// Power cuts below SQLite, `wanted` in each campaign.
    SqliteCuts { campaigns: &'static [&'static str], wanted: u64 },
    /// Power cuts of running servers, `wanted` under our client and as many under fio, `chunk` of each in a chunk; of all cases, or of one.
    LiveCuts { chunk: u32, wanted: u64, case: Option<&'static str> },
    /// Power cuts under a database on a mount, by a script of `examples/databases`, `chunk` of them in a chunk.
    DatabaseCuts { script: &'static str, setting: (&'static str, &'static str), chunk: u64, wanted: u64 },
    /// Claims of a paper at full scale, one study after the other.
    Claims { paper: &'static str, seeds: u32, studies: &'static [&'static str] },
    /// Mutants by rule.
    Mutants { wanted: usize },
    /// Lines `what: ours X, theirs Y, Z %` of integration tests with `filter` in their names.
    Comparisons { filter: &'static str },
}

const ALL: [(&str, Kind); 14] = [
    ("crash-devices", Kind::CrashWorlds { chunk: 17, wanted: 340 }),
    ("crash-drawn", Kind::CrashDrawn { chunk: 500, wanted: 5_000 }),
    ("file-cuts", Kind::FileCuts { campaigns: &FILE_CUTS, wanted: 100_000 }),
    ("file-cuts-ext4", Kind::FileCuts { campaigns: &EXT4_CUTS, wanted: 100_000 }),
    ("file-pairs", Kind::FilePairs),
    ("sqlite-cuts", Kind::SqliteCuts { campaigns: &SQLITE_CUTS, wanted: 10_000 }),
    ("live-cuts", Kind::LiveCuts { chunk: 50, wanted: 1_000, case: None }),
    ("live-cuts-qblke", Kind::LiveCuts { chunk: 50, wanted: 1_000, case: Some("qblke") }),
    ("live-cuts-threads", Kind::LiveCuts { chunk: 50, wanted: 1_000, case: Some("threads-file") }),
    (
        "mariadb-cuts",
        Kind::DatabaseCuts { script: "mariadb.sh", setting: ("ATOMIC", "1"), chunk: 50, wanted: 1_000 },
    ),
    ("mutants", Kind::Mutants { wanted: 210 }),
    ("claims-rflush", Kind::Claims { paper: "rflush", seeds: 1, studies: RFLUSH }),
    ("waf-theory", Kind::Comparisons { filter: "theory" }),
    ("mqsim", Kind::Comparisons { filter: "mqsim" }),
];

/// Gathers the named evidence, or all.
pub(crate) fn run(names: &[&str]) -> Result<bool, String> {
    for name in names {
        if !ALL.iter().any(|(known, _)| known == name) {
            let known: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
            return Err(format!("no evidence {name:?}; there are {}", known.join(", ")));
        }
    }
    let mut good = true;
    for (name, kind) in ALL.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        println!("── {name}");
        let mut file = Evidence::open(name, kind)?;
        good &= match *kind {
            Kind::CrashWorlds { chunk, wanted } => file.crash_worlds(false, chunk, wanted)?,
            Kind::CrashDrawn { chunk, wanted } => file.crash_worlds(true, chunk, wanted)?,
            Kind::FileCuts { campaigns, wanted } => file.file_cuts(campaigns, wanted)?,
            Kind::FilePairs => {
                let pairs = file_pairs::of_evidence();
                file.file_cuts(&pairs.iter().map(String::as_str).collect::<Vec<_>>(), 0)?
            }
            Kind::SqliteCuts { campaigns, wanted } => file.sqlite_cuts(campaigns, wanted)?,
            Kind::LiveCuts { chunk, wanted, case } => file.live_cuts(chunk, wanted, case)?,
            Kind::DatabaseCuts { script, setting, chunk, wanted } => {
                file.database_cuts(script, setting, chunk, wanted)?
            }
            Kind::Claims { paper, seeds, studies } => file.claims(paper, seeds, studies)?,
            Kind::Mutants { wanted } => file.mutants(wanted)?,
            Kind::Comparisons { filter } => file.comparisons(filter)?,
        };
    }
    Ok(good)
}

/// Studies of the RFLUSH paper, in the order of its figures.
const RFLUSH: &[&str] = &[
    "threads",
    "threads-one-lock",
    "fileserver-tpcc-direct",
    "fileserver-linkbench-direct",
    "tpcc-linkbench-direct",
    "fileserver-tpcc-buffered",
    "fileserver-linkbench-buffered",
];

/// Campaigns of power cuts of F2FS; the last four have order in place of waiting.
const FILE_CUTS: [&str; 11] = [
    "--sequences random --states 55000 --fsck-every 400",
    "--sequences seq-1 --states-each 25 --fsck-every 200",
    "--sequences cleaning --count 60 --states-each 25 --fsck-every 5",
    "--sequences random --count 100 --states-each 80 --on device --fsck-every 40",
    "--sequences seq-1 --states-each 12 --on device --fsck-every 100",
    "--sequences seq-2 --states 25000 --fsck-every 400",
    "--sequences random --states 22000 --flush flush --fsck-every 400",
    "--format f2fs-dual --sequences random --on late --states 12000 --fsck-every 200",
    "--format f2fs-dual --sequences reuse --on late --states 15000 --fsck-every 200",
    "--format f2fs-dual --sequences random --states 12000 --flush flush --fsck-every 200",
    "--format f2fs-dual --sequences seq-1 --states-each 12 --fsck-every 200",
];

/// The same of ext4, with ordered data, with data in the journal, and with order in place of waiting.
const EXT4_CUTS: [&str; 10] = [
    "--format ext4 --sequences random --states 20000 --fsck-every 200 --kernel-every 1000",
    "--format ext4 --sequences seq-1 --states-each 12 --fsck-every 200 --kernel-every 1000",
    "--format ext4 --sequences seq-2 --states 10000 --fsck-every 200 --kernel-every 1000",
    "--format ext4 --sequences reuse --on late --states 15000 --fsck-every 200 --kernel-every 1000",
    "--format ext4 --sequences random --count 60 --on device --fsck-every 40 --kernel-every 100",
    "--format ext4-journal --sequences random --states 10000 --fsck-every 200 --kernel-every 1000",
    "--format ext4-journal --sequences reuse --states 10000 --fsck-every 200 --kernel-every 1000",
    "--format ext4-dual --sequences random --on late --states 12000 --fsck-every 200 --kernel-every 1000",
    "--format ext4-dual --sequences reuse --on late --states 15000 --fsck-every 200 --kernel-every 1000",
    "--format ext4-dual --sequences seq-1 --states-each 12 --fsck-every 200 --kernel-every 1000",
];

/// Campaigns of power cuts below SQLite, one for each kind of promise: its journal modes with waiting, with order where durability is
/// kept, and with order alone, on both file systems.
const SQLITE_CUTS: [&str; 16] = [
    "--format ext4 --journal delete --sync full --order none",
    "--format ext4 --journal delete --sync extra --order none",
    "--format ext4 --journal truncate --sync full --order none",
    "--format ext4 --journal persist --sync full --order none",
    "--format ext4 --journal wal --sync full --order none",
    "--format ext4 --journal wal --sync normal --order none",
    "--format ext4-dual --journal delete --sync extra --order durable",
    "--format ext4-dual --journal persist --sync full --order durable",
    "--format ext4-dual --journal wal --sync full --order durable",
    "--format ext4-dual --journal delete --sync full --order all",
    "--format ext4-dual --journal persist --sync full --order all",
    "--format ext4-dual --journal wal --sync full --order all",
    "--format f2fs-dual --journal persist --sync full --order durable",
    "--format f2fs-dual --journal wal --sync full --order all",
    "--format ext4-sdj --journal batch-atomic --sync full --order none",
    "--format f2fs-ssc --journal batch-atomic --sync full --order none",
];

/// Result of one campaign of power cuts of a file system.
fn file_chunk(seed: u64, report: &Value) -> Value {
    let totals = &report["totals"];
    json!({
        "seed": seed, "on": report["on"], "sequences": report["sequences"],
        "format": report["format"], "sequences_all": report["sequences_all"], "flushes": report["mode"],
        "states": totals["distinct"], "fsck": totals["outside"], "kernel": totals["replayed"],
        "violations": report["violations"].as_array().map_or(0, Vec::len),
        "totals": totals,
    })
}

struct Evidence {
    path: PathBuf,
    seed: u64,
    content: Value,
}

impl Evidence {
    /// Continues the file of this name if the code that it judges and what is to be run are as they were, and if it is of the given seed where
    /// there is one; otherwise begins a new one. A continued run keeps its seed and the commit that it began with.
    fn open(name: &str, kind: &Kind) -> Result<Self, String> {
        let dir = root().join("docs/evidence");
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let path = dir.join(format!("{name}.json"));
        let old: Option<Value> =
            std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
        let plan = format!("{kind:?}");
        let fixed = std::env::var_os("FLASHWEIR_SEED").is_some();
        if let Some(old) = old
            && old["plan"] == json!(plan)
            && freshness::age(name, &old)?.is_none()
            && let Some(seed) = old["seed"].as_u64()
            && (!fixed || seed == self::seed()?)
        {
            println!("   continues {}", path.display());
            return Ok(Self { path, seed, content: old });
        }
        let seed = seed()?;
        let content = json!({
            "name": name, "plan": plan, "commit": commit(), "seed": seed, "machine": machine(), "complete": false, "chunks": [],
        });
        Ok(Self { path, seed, content })
    }

    fn chunks(&self) -> &[Value] {
        self.content["chunks"].as_array().map_or(&[], Vec::as_slice)
    }

    fn save(&self) -> Result<(), String> {
        let next = self.path.with_extension("json.part");
        let write = std::fs::write(&next, format!("{:#}\n", self.content));
        write
            .and_then(|()| std::fs::rename(&next, &self.path))
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn add_chunk(&mut self, chunk: Value) -> Result<(), String> {
        self.content["chunks"].as_array_mut().expect("open made it a list").push(chunk);
        self.save()
    }

    fn finish(&mut self, sums: Value) -> Result<(), String> {
        self.content["complete"] = json!(true);
        self.content["sums"] = sums;
        self.save()
    }

    fn sum(&self, key: &str) -> u64 {
        self.chunks().iter().filter_map(|chunk| chunk[key].as_u64()).sum()
    }

    /// Runs `wanted` worlds of each tiny device, or one world of each of `wanted` drawn ones.
    fn crash_worlds(&mut self, is_drawn: bool, chunk: u64, wanted: u64) -> Result<bool, String> {
        take(&mut weir_builds(self.seed))?;
        let (each, unit) = match is_drawn {
            true => (1, "drawn devices"),
            false => (chunk, "worlds of each device"),
        };
        let done = |file: &Self| file.chunks().len() as u64 * chunk;
        while done(self) < wanted {
            // Worlds of a chunk have consecutive seeds, so seeds of chunks are far apart.
            let seed = self.seed + 1_000 * self.chunks().len() as u64;
            let (seed_text, count) = (seed.to_string(), chunk.to_string());
            let of: &[&str] = match is_drawn {
                true => &["--drawn", &count, "--worlds", "1"],
                false => &["--worlds", &count],
            };
            let what = ["crash", "--seed", &seed_text, "--output", "json"];
            let text = take(weir(seed).args(what).args(of))?;
            let answer: Value =
                serde_json::from_str(&text).map_err(|error| format!("weir crash: {error}"))?;
            let count = |key: &str| answer["totals"][key].as_u64().unwrap_or(0);
            let violations = answer["violations"].as_array().map_or(0, Vec::len);
            self.add_chunk(json!({
                "seed": seed, "worlds_each": each, "devices": answer["devices"].as_object().map_or(0, |all| all.len()),
                "worlds": count("worlds"), "deep": answer["deep"], "histories": count("histories"),
                "states": count("distinct"), "in_recovery": count("distinct_nested"), "judged": count("judged"),
                "moments": count("moments"), "moments_left_out": count("moments_left_out"), "violations": violations,
            }))?;
            println!("   {} of {wanted} {unit}", done(self));
        }
        let sums = ["devices", "worlds", "histories", "states", "moments", "moments_left_out", "violations"];
        let mut sums: serde_json::Map<String, Value> =
            sums.map(|key| (key.to_owned(), json!(self.sum(key)))).into_iter().collect();
        if !is_drawn {
            // Every chunk has the same devices.
            sums.insert("devices".into(), self.chunks()[0]["devices"].clone());
        }
        self.finish(Value::Object(sums))?;
        Ok(self.sum("violations") == 0)
    }

    /// Campaigns take turns, each run is a chunk. `fsck.f2fs` or `e2fsck` checks some of the images.
    fn file_cuts(&mut self, campaigns: &[&str], wanted: u64) -> Result<bool, String> {
        take(&mut weir_builds(self.seed))?;
        while self.chunks().len() < campaigns.len() || self.sum("states") < wanted {
            let chunk = self.chunks().len();
            let seed = self.seed + chunk as u64;
            let seed_text = seed.to_string();
            let what = ["crash", "files", "--quiet", "--output", "json", "--seed", &seed_text];
            // A violation is in the output, and is counted below.
            let output =
                weir(self.seed).args(what).args(campaigns[chunk % campaigns.len()].split(' ')).output();
            let output = output.map_err(|error| format!("weir crash files: {error}"))?;
            let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
                format!("weir crash files: {}", String::from_utf8_lossy(&output.stderr).trim())
            })?;
            self.add_chunk(file_chunk(seed, &report))?;
            let (states, chunks) = (self.sum("states"), self.chunks().len());
            match wanted {
                0 => println!("   {chunks} of {} campaigns, {states} states", campaigns.len()),
                _ => println!("   {states} of {wanted} states"),
            }
        }
        let (violations, fsck, kernel) = (self.sum("violations"), self.sum("fsck"), self.sum("kernel"));
        let states = self.sum("states");
        self.finish(json!({ "states": states, "violations": violations, "fsck": fsck, "kernel": kernel }))?;
        Ok(violations == 0)
    }

    /// Runs one chunk for each campaign.
    fn sqlite_cuts(&mut self, campaigns: &[&str], wanted: u64) -> Result<bool, String> {
        take(&mut weir_builds(self.seed))?;
        for what in &campaigns[self.chunks().len().min(campaigns.len())..] {
            let (seed, cuts) = (self.seed.to_string(), wanted.to_string());
            let all = ["crash", "sqlite", "--quiet", "--output", "json", "--seed", &seed, "--cuts", &cuts];
            // A violation is in the output, and is counted below.
            let output = weir(self.seed).args(all).args(what.split(' ')).output();
            let output = output.map_err(|error| format!("weir crash sqlite: {error}"))?;
            let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
                format!("weir crash sqlite: {}", String::from_utf8_lossy(&output.stderr).trim())
            })?;
            let run = &answer["runs"][0];
            let violations = run["violations"].as_array().map_or(0, Vec::len);
            let chunk = json!({
                "format": run["format"], "plan": run["plan"], "cuts": run["totals"]["made"],
                "violations": violations, "totals": run["totals"],
            });
            self.add_chunk(chunk)?;
            println!("   {what}: {} cuts, {violations} violations", run["totals"]["made"]);
        }
        let violations = self.sum("violations");
        self.finish(json!({ "cuts": self.sum("cuts"), "violations": violations }))?;
        Ok(violations == 0)
    }

    /// Runs one chunk for each mutant. Explanations of survivors are looked up again at the end.
    fn mutants(&mut self, wanted: usize) -> Result<bool, String> {
        let before: BTreeSet<u32> =
            self.chunks().iter().filter_map(|chunk| chunk["id"].as_u64()?.try_into().ok()).collect();
        if before.len() < wanted {
            let plan = mutants::evidence_plan(self.seed, wanted);
            let mut prepared = mutants::prepare(&plan)?;
            self.content["mutants"] = json!(prepared.mutants);
            prepared.run(&plan, &before, |outcome| self.add_chunk(mutants::outcome_json(outcome)))?;
        }
        let mut chunks = self.chunks().to_vec();
        mutants::explain(&mut chunks)?;
        self.content["chunks"] = json!(chunks);
        let report = mutants::sums(self.chunks());
        println!("{}", report.text);
        self.finish(report.sums)?;
        Ok(report.unexplained == 0)
    }

    fn live_cuts(&mut self, chunk: u32, wanted: u64, case: Option<&str>) -> Result<bool, String> {
        take(&mut weir_builds(self.seed))?;
        let mut sums = json!({});
        self.chunks().iter().for_each(|chunk| live_cuts::add(&mut sums, &chunk["counts"]));
        while ["client", "fio"].iter().any(|by| live_cuts::total(&sums, by, "cuts") < wanted) {
            let seed = self.seed + 1_000 * self.chunks().len() as u64;
            // A state that the contract forbids is an error, which ends the run.
            let counts = live_cuts::campaign(seed, (chunk, chunk), case)?;
            live_cuts::add(&mut sums, &counts);
            self.add_chunk(json!({ "seed": seed, "violations": 0, "counts": counts }))?;
            println!("   {} of {wanted} cuts under each", live_cuts::total(&sums, "fio", "cuts"));
        }
        self.finish(json!({ "violations": 0, "counts": sums }))?;
        Ok(true)
    }

    /// Runs the script with `setting` in its environment. A lost transaction or a torn page is an error, which ends the run.
    fn database_cuts(
        &mut self,
        script: &str,
        setting: (&str, &str),
        chunk: u64,
        wanted: u64,
    ) -> Result<bool, String> {
        take(&mut weir_builds(self.seed))?;
        let program = weir(self.seed).get_program().to_owned();
        while self.sum("cuts") < wanted {
            // Cuts of a chunk have consecutive seeds; the pauses before them, which a script draws, differ from those of other chunks.
            let seed = self.seed + 1_001 * self.chunks().len() as u64;
            let mut run = Command::new(root().join("examples/databases").join(script));
            run.env("WEIR", &program).env("CUTS", chunk.to_string()).env("SEED", seed.to_string());
            let said = take(run.env(setting.0, setting.1))?;
            let said = said.lines().last().unwrap_or_default();
            self.add_chunk(json!({ "seed": seed, "setting": setting, "cuts": chunk, "said": said }))?;
            println!("   {} of {wanted} cuts", self.sum("cuts"));
        }
        self.finish(json!({ "cuts": self.sum("cuts"), "violations": 0 }))?;
        Ok(true)
    }

    /// Runs the studies. A claim outside its band is a result; this fails only if a study does.
    fn claims(&mut self, paper: &str, seeds: u32, studies: &[&str]) -> Result<bool, String> {
        take(&mut weir_builds(self.seed))?;
        for study in studies {
            if self.chunks().iter().any(|chunk| chunk["study"] == json!(study)) {
                continue;
            }
            let seeds = seeds.to_string();
            let what = ["reproduce", paper, "--scale", "full", "--seeds", &seeds, "--study", study];
            let text = take(weir(self.seed).args(what).args(["--jobs", "1", "--quiet", "--output", "json"]))?;
            let answer: Value =
                serde_json::from_str(&text).map_err(|error| format!("weir reproduce: {error}"))?;
            let claim = |claim: &Value| json!({ "id": claim["id"], "ours": claim["ours"], "verdict": claim["verdict"] });
            let claims: Vec<Value> = answer["claims"].as_array().into_iter().flatten().map(claim).collect();
            claims
                .iter()
                .for_each(|claim| println!("   {}: {}, {}", claim["id"], claim["ours"], claim["verdict"]));
            let rows = &answer["studies"][0]["rows"];
            self.add_chunk(
                json!({ "study": study, "seeds": answer["seeds"], "claims": claims, "rows": rows }),
            )?;
        }
        let verdicts =
            self.chunks().iter().flat_map(|chunk| chunk["claims"].as_array().into_iter().flatten());
        let (inside, outside): (Vec<_>, Vec<_>) =
            verdicts.partition(|claim| claim["verdict"] == json!("reproduced"));
        let sums = json!({ "reproduced": inside.len(), "outside": outside.len() });
        self.finish(sums)?;
        Ok(true)
    }

    fn comparisons(&mut self, filter: &str) -> Result<bool, String> {
        if self.content["complete"] == json!(true) {
            println!("   complete already");
            return Ok(true);
        }
        let what = ["test", "--locked", "--release", "--quiet", "-p", "flashweir-lab", "--test", "it", "--"];
        let text = take(cargo(self.seed).args(what).args(["--nocapture", "--test-threads", "1", filter]))?;
        for (what, ours, theirs) in text.lines().filter_map(comparison) {
            println!("   {what}: ours {ours}, theirs {theirs}");
            self.add_chunk(json!({ "what": what, "ours": ours, "theirs": theirs }))?;
        }
        let count = self.chunks().len();
        if count == 0 {
            return Err(format!("no test of flashweir-lab named {filter} printed a comparison"));
        }
        self.finish(json!({ "comparisons": count }))?;
        Ok(true)
    }
}

/// Parts of a line `what: ours X, theirs Y, …`.
fn comparison(line: &str) -> Option<(&str, f64, f64)> {
    let (what, rest) = line.split_once(": ours ")?;
    let (ours, rest) = rest.split_once(", theirs ")?;
    let theirs = rest.split(',').next()?;
    Some((what.trim_start_matches('.'), ours.trim().parse().ok()?, theirs.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::comparison;

    #[test]
    fn a_line_of_a_test_is_read() {
        let line = "read QD1 ns: ours 102441, theirs 102442, -0.00 %";
        assert_eq!(comparison(line), Some(("read QD1 ns", 102_441.0, 102_442.0)));
        assert_eq!(comparison("test answers ... ok"), None);
    }
}
