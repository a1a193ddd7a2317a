//! What programs see of each other's changes, and of the limits of a file system.

use super::mounted::{FORMATS, Mount, compiled, image, is_good};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run as program;

/// With the kernel's cache of writes and without; a write reports a lack of room only if the kernel hands it on.
const MOUNTS: [(&str, &[&str]); 2] =
    [("", &["stale", "blocks", "set-id", "limits"]), ("--write-back", &["stale", "blocks", "set-id"])];

pub(super) fn judge(place: &Place) -> Finding {
    // It runs from the mount, where there are no libraries for a user that may read nothing else.
    let coherence = compiled(place, "coherence", &["-static"])?;
    for format in FORMATS {
        for (options, parts) in MOUNTS {
            let image = image(place, format)?;
            let mount = Mount::new(place, &image, &format!("--speed max --allow-other {options}"))?;
            program(place, &["chmod", "777", &mount.dir])?;
            for part in parts {
                program(place, &[&coherence, &mount.dir, part])
                    .map_err(|error| format!("{format} {options}, {part}: {error}"))?;
            }
            mount.unmount()?;
            is_good(place, format, &image)?;
        }
    }
    Ok("asynchronous direct writes, blocks, set-ID bits and limits, two mounts of each format".into())
}
