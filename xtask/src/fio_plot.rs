//! fio-plot, which draws what fio prints, before our JSON and our logs.
//!
//! Invariant: it is installed into a Python environment below the target directory, never into the system; what cannot be
//! installed is a failure that says so.

use crate::host::{built, target_dir};
use crate::judges::{Finding, Judge, Judges};
use crate::serve::place::Place;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All judges of fio's formats.
pub(crate) const JUDGES: Judges = Judges { subject: "fio", all: &ALL };

const ALL: [Judge; 1] = [("fio-plot", "bars of our JSON and lines of our logs", draws)];

/// What `pip` installs.
const FIO_PLOT: &str = "fio-plot";

/// Depths that are drawn.
const DEPTHS: [u32; 3] = [1, 4, 16];

fn run(command: &mut Command) -> Result<String, String> {
    let name = format!("{command:?}");
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    if output.status.success() { Ok(text) } else { Err(format!("{name}: {}", text.trim())) }
}

/// The program, installed if need be.
fn fio_plot() -> Result<PathBuf, String> {
    let place = target_dir().join("fio-plot");
    let program = place.join("bin/fio-plot");
    if !program.exists() {
        let needs = |error: String| {
            format!(
                "fio-plot cannot be installed; it takes python3 with venv, and pip with its package index: {error}"
            )
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&place)).map_err(needs)?;
        run(Command::new(place.join("bin/pip")).args(["install", "--quiet", FIO_PLOT])).map_err(needs)?;
    }
    Ok(program)
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
        run(weir.arg(json.join(format!("{name}.json"))).current_dir(&logs))?;
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
        let said = run(&mut command)?;
        let bytes = std::fs::read(&picture)
            .map_err(|error| format!("{name}: no picture: {error}: {}", said.trim()))?;
        if !bytes.starts_with(b"\x89PNG") || bytes.len() < 10_000 {
            return Err(format!("{name}: {} bytes are no picture: {}", bytes.len(), said.trim()));
        }
        drawn.push(format!("{name} of {} bytes", bytes.len()));
    }
    Ok(drawn.join(", "))
}
