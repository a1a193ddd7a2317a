//! Signals to programs that wait for a mounted file system.

use super::mounted::{FORMATS, Mount, compiled, image, is_good, synced};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run as program;

/// Options of a mount whose device takes seconds where others take milliseconds.
const SLOW: &str = "--speed 0.004";

/// Checks that no call is interrupted by a signal that its program handles, that a killed program ends while the device still works, and
/// that acknowledged data survive.
pub(super) fn judge(place: &Place) -> Finding {
    let waits = compiled(place, "interrupts", &[])?;
    let mut said = String::new();
    for format in FORMATS {
        let image = image(place, format)?;
        let mount = Mount::new(place, &image, "--speed max")?;
        said =
            program(place, &[&waits, &mount.dir, "storm"]).map_err(|error| format!("{format}: {error}"))?;
        // The files of the second part are made at full speed.
        for name in ["long", "alarm", "killed"] {
            drop(synced(&mount, name, b"-")?);
        }
        mount.unmount()?;
        let mount = Mount::new(place, &image, SLOW)?;
        program(place, &[&waits, &mount.dir, "slow"]).map_err(|error| format!("{format}: {error}"))?;
        mount.cut(place.seed())?;
        for (name, kib) in [("long", 16 << 10), ("alarm", 64)] {
            let found = std::fs::read(mount.path(name)).map_err(|error| format!("{name}: {error}"))?;
            if found != [name.as_bytes()[0]].repeat(kib << 10) {
                let bytes = found.len();
                return Err(format!("{format}: {name} was acknowledged, and is not whole: {bytes} bytes"));
            }
        }
        mount.unmount()?;
        is_good(place, format, &image)?;
    }
    Ok(format!("{} on each format; a killed sync is gone before one that was begun earlier", said.trim()))
}
