//! fio, and fio-plot, which draws fio's output, as judges of our logs and our JSON.
//!
//! Invariant: fio-plot is installed into a Python environment below the target directory, never into the system; if it cannot be
//! installed, the judge fails and says so.

use crate::host::{built, target_dir};
use crate::judge::{Finding, Judge, Judges};
use crate::place::Place;
use crate::steps::take;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All judges of fio's formats.
pub const JUDGES: Judges = Judges { subject: "fio", all: &ALL };

const ALL: [Judge; 2] = [
    ("logs", "names, columns and counts of logs as fio writes them", logs),
    ("fio-plot", "bars of our JSON and lines of our logs", draws),
];

/// Jobs with all kinds of logs.
const LOGS: &str = "[global]
ioengine=null
rw=randrw
bs=4k
size=256k
write_bw_log=x
write_lat_log=x
[a]
[b]
stonewall
numjobs=2
write_iops_log
log_offset=1
[c]
stonewall
per_job_logs=0
write_bw_log=c
write_lat_log
rw=write
[d]
stonewall
rate_iops=2000
time_based
runtime=1
log_avg_msec=100
write_bw_log=d
write_lat_log=d
write_iops_log=d
rw=read
";

/// Name of the package for `pip`.
const FIO_PLOT: &str = "fio-plot";

/// Queue depths that are drawn.
const DEPTHS: [u32; 3] = [1, 4, 16];

/// Path of the program, which is installed if it is missing.
fn fio_plot() -> Result<PathBuf, String> {
    let place = target_dir().join("fio-plot");
    let program = place.join("bin/fio-plot");
    if !program.exists() {
        let needs = |error: String| {
            format!(
                "fio-plot cannot be installed; it takes python3 with venv, and pip with its package index: {error}"
            )
        };
        take(Command::new("python3").args(["-m", "venv"]).arg(&place)).map_err(needs)?;
        take(Command::new(place.join("bin/pip")).args(["install", "--quiet", FIO_PLOT])).map_err(needs)?;
    }
    Ok(program)
}

/// Shapes of logs, without times and values, by name: numbers of columns, directions, sizes or offsets, and the number of
/// lines unless they are averages of windows.
type Shape = BTreeMap<String, (BTreeSet<usize>, BTreeSet<u64>, BTreeSet<u64>, Option<usize>)>;

fn shape(directory: &Path) -> Result<Shape, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut shape = Shape::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The null engine of fio 3.33 has no submission latencies to log.
        if !name.ends_with(".log") || name.contains("_slat") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let number =
            |word: &str| word.trim().parse::<u64>().map_err(|_| format!("{name}: no number: {word:?}"));
        let lines: Result<Vec<Vec<u64>>, String> =
            text.lines().map(|line| line.split(',').map(number).collect()).collect();
        let lines = lines?;
        let column =
            |at: usize| lines.iter().filter_map(|line| line.get(at).copied()).collect::<BTreeSet<u64>>();
        let is_window = column(3) == BTreeSet::from([0]);
        // If offsets are logged, all of them occur, because each is used once.
        let places = if lines.iter().all(|line| line.len() == 6) { column(4) } else { column(3) };
        let count = (!is_window).then_some(lines.len());
        shape.insert(name, (lines.iter().map(Vec::len).collect(), column(2), places, count));
    }
    Ok(shape)
}

fn logs(place: &Place) -> Finding {
    let mut shapes = Vec::new();
    for (name, program) in [("theirs", Path::new("fio").to_path_buf()), ("ours", built("weir"))] {
        let directory = place.dir().join(name);
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        std::fs::write(directory.join("logs.fio"), LOGS).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        if name == "ours" {
            command.args(["fio", "--device", "sata-mlc", "--quiet"]);
        }
        take(command.arg("logs.fio").current_dir(&directory))?;
        shapes.push(shape(&directory)?);
    }
    let [theirs, ours] = &shapes[..] else { unreachable!("two programs ran") };
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for name in &names {
        if theirs.get(*name) != ours.get(*name) {
            return Err(format!("{name}: fio has {:?}, we have {:?}", theirs.get(*name), ours.get(*name)));
        }
    }
    Ok(format!("{} files alike", names.len()))
}

fn draws(place: &Place) -> Finding {
    let fio_plot = fio_plot()?;
    let [json, logs] = ["json", "logs"].map(|name| place.dir().join(name));
    for directory in [&json, &logs] {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    for depth in DEPTHS {
        let name = format!("randread-iodepth-{depth}-numjobs-1");
        let job = format!(
            "[j]\nrw=randread\nbs=4k\niodepth={depth}\ntime_based\nruntime=1s\nlog_avg_msec=50\nwrite_bw_log={name}\n\
             write_lat_log={name}\nwrite_iops_log={name}\n"
        );
        std::fs::write(logs.join("job.fio"), job).map_err(|error| error.to_string())?;
        let mut weir = Command::new(built("weir"));
        weir.args(["fio", "job.fio", "--device", "sata-mlc", "--quiet", "--output", "json", "--out"]);
        take(weir.arg(json.join(format!("{name}.json"))).current_dir(&logs))?;
    }
    let mut drawn = Vec::new();
    let kinds: [(&str, &Path, &[&str]); 2] =
        [("bars", &json, &["-l"]), ("lines", &logs, &["-g", "-t", "bw", "iops", "lat"])];
    for (name, input, what) in kinds {
        let picture = place.dir().join(format!("{name}.png"));
        let mut command = Command::new(&fio_plot);
        command
            .current_dir(place.dir())
            .env("MPLBACKEND", "Agg")
            .arg("-i")
            .arg(input)
            .args(["-T", "weir", "-r", "randread"]);
        command
            .args(["-n", "1", "-d"])
            .args(DEPTHS.map(|depth| depth.to_string()))
            .args(what)
            .arg("-o")
            .arg(&picture);
        let said = take(&mut command)?;
        let bytes = std::fs::read(&picture)
            .map_err(|error| format!("{name}: no picture: {error}: {}", said.trim()))?;
        if !bytes.starts_with(b"\x89PNG") || bytes.len() < 10_000 {
            return Err(format!("{name}: {} bytes are no picture: {}", bytes.len(), said.trim()));
        }
        drawn.push(format!("{name} of {} bytes", bytes.len()));
    }
    Ok(drawn.join(", "))
}
