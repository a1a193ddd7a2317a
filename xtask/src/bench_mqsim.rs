//! The bars of speed compared with MQSim: both simulators do the same work in turns, and the medians are compared.
//!
//! The work is in MQSim's own files in `data/mqsim` (8 KiB at random, queue depth 32, ten virtual seconds), and for `weir` in
//! its import of them; the CPU time of the whole process counts. MQSim is not ours to install: the variable `MQSIM` names its
//! program, and without it these bars are reported as not measured.

use crate::bench_turns::median;
use flashweir_judges::host::{published, root};
use flashweir_judges::steps::take;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of turns of each simulator; odd, so that there is a median.
const TURNS: usize = 5;

/// Name of each bar, with the file of its workload.
pub(crate) const SPEEDS: [(&str, &str); 2] = [("mqsim-read", "r8k-qd32"), ("mqsim-write", "w8k-qd32")];

/// Path of MQSim's program, if the environment names it.
pub(crate) fn program() -> Option<PathBuf> {
    std::env::var_os("MQSIM").map(PathBuf::from)
}

/// Requests per CPU second: the medians, and all turns.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    turns: [Vec<f64>; 2],
}

impl Speed {
    pub(crate) fn answer(&self) -> Value {
        let [ours, theirs] = &self.turns;
        json!({ "weir": self.ours, "mqsim": self.theirs, "weir_turns": ours, "mqsim_turns": theirs })
    }
}

/// Output of a command, and the CPU seconds of its process, user and system.
fn timed(command: &[String]) -> Result<(String, f64), String> {
    let script = r#"TIMEFORMAT="%U %S"; { time "$@" 2>/dev/null; } 2>&3"#;
    let script = format!("exec 3>&1; {script}");
    let text = take(Command::new("bash").args(["-c", &script, "time"]).args(command))?;
    let (rest, times) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
    let seconds: Option<Vec<f64>> = times.split(' ').map(|time| time.parse().ok()).collect();
    match seconds.as_deref() {
        Some([user, system]) => Ok((rest.to_owned(), user + system)),
        _ => Err(format!("no times of {} in {times:?}", command[0])),
    }
}

/// Number in an element of MQSim's output.
fn element(xml: &str, name: &str) -> Option<f64> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once('<')?.0.trim().parse().ok()
}

/// Requests per CPU second of MQSim with the files in `dir`.
fn theirs(program: &Path, dir: &Path, workload: &str) -> Result<f64, String> {
    let path = |name: String| dir.join(name).display().to_string();
    let (device, work) = (path("ssd-small-ideal.xml".into()), path(format!("{workload}.xml")));
    let program = program.display().to_string();
    let (_, seconds) = timed(&[program, "-i".into(), device, "-w".into(), work])?;
    let answer = path(format!("{workload}_scenario_1.xml"));
    let xml = std::fs::read_to_string(&answer).map_err(|error| format!("{answer}: {error}"))?;
    let requests = element(&xml, "Request_Count").filter(|count| *count > 0.0);
    Ok(requests.ok_or_else(|| format!("{answer}: no <Request_Count>"))? / seconds)
}

/// Requests per CPU second of `command`, a `weir fio` with the imported files.
fn ours(command: &[String]) -> Result<f64, String> {
    let (text, seconds) = timed(command)?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("weir fio: {error}"))?;
    let jobs = answer["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |kind: &str| jobs.iter().filter_map(|job| job[kind]["total_ios"].as_f64()).sum::<f64>();
    match count("read") + count("write") {
        requests if requests > 0.0 => Ok(requests / seconds),
        _ => Err("weir fio: no requests in its answer".into()),
    }
}

/// Measures one workload.
pub(crate) fn speed(program: &Path, workload: &str) -> Result<Speed, String> {
    let dir = std::env::temp_dir().join(format!("weir-bench-{}-mqsim", std::process::id()));
    let measured = measure(program, workload, &dir);
    let _ = std::fs::remove_dir_all(&dir);
    measured
}

fn measure(program: &Path, workload: &str, dir: &Path) -> Result<Speed, String> {
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for name in ["ssd-small-ideal.xml".to_owned(), format!("{workload}.xml")] {
        let (from, to) = (root().join("data/mqsim").join(&name), dir.join(&name));
        std::fs::copy(&from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    }
    let weir = published("weir").display().to_string();
    let imported = take(
        Command::new(&weir)
            .args(["import", "mqsim", "--quiet"])
            .arg(dir.join("ssd-small-ideal.xml"))
            .arg("--workload")
            .arg(dir.join(format!("{workload}.xml")))
            .arg("-o")
            .arg(dir.join("imported")),
    )?;
    let line = imported.lines().find_map(|line| line.trim().strip_prefix("weir "));
    let line = line.ok_or("weir import mqsim: it prints no command")?;
    let command: Vec<String> = std::iter::once(weir.as_str())
        .chain(line.split(' '))
        .chain(["--output", "json"])
        .map(str::to_owned)
        .collect();
    let mut turns = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        turns[0].push(ours(&command)?);
        turns[1].push(theirs(program, dir, workload)?);
    }
    let [ours, theirs] = turns.clone().map(median);
    Ok(Speed { ours, theirs, turns })
}

#[cfg(test)]
mod tests {
    use super::element;

    #[test]
    fn an_element_has_a_number() {
        let xml = "<Host.IO_Flow>\n<Request_Count>1415012</Request_Count>\n</Host.IO_Flow>";
        assert_eq!(element(xml, "Request_Count"), Some(1_415_012.0));
        assert_eq!(element(xml, "IOPS"), None);
    }
}
