//! Signals to processes that wait for a sync on a slow device.

use super::{FORMATS, Mount, image, is_good, synced};
use crate::host::root;
use crate::judges::Finding;
use crate::serve::place::Place;
use crate::serve::program::run as program;

/// A device that takes seconds for what others do in milliseconds.
const SLOW: &str = "--speed 0.004";

/// Who waits gets his signal at once, with EINTR or as his end; and what was acknowledged before and afterwards survives.
pub(super) fn judge(place: &Place) -> Finding {
    let (waits, source) = (place.path("interrupts"), root().join("xtask/src/mount/interrupts.c"));
    let source = source.display().to_string();
    program(place, &["cc", "-Wall", "-Wextra", "-Werror", "-o", &waits, &source])?;
    for format in FORMATS {
        let image = image(place, format)?;
        // The files are made at full speed.
        let mount = Mount::new(place, &image, "--speed max")?;
        for name in ["long", "alarm", "killed"] {
            drop(synced(&mount, name, b"-")?);
        }
        mount.unmount()?;
        let mount = Mount::new(place, &image, SLOW)?;
        program(place, &[&waits, &mount.dir]).map_err(|error| format!("{format}: {error}"))?;
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
    Ok("EINTR and a kill in both formats, before a sync that was begun earlier was through".into())
}
