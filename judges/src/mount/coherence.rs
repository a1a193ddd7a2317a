//! Visibility of changes between programs, and limits of a file system.

use super::mounted::{FORMATS, Mount, compiled, image, is_good};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run as program;

/// Mount options without and with the kernel's write-back cache, and parts; a full disk is only reported if the kernel passes writes on.
const MOUNTS: [(&str, &[&str]); 2] = [
    ("", &["stale", "blocks", "set-id", "attributes", "room", "limits"]),
    ("--write-back", &["stale", "blocks", "set-id", "room"]),
];

pub(super) fn judge(place: &Place) -> Finding {
    // It runs from the mount, where a user that may read nothing else has no libraries.
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
    Ok("asynchronous direct writes, blocks, set-ID bits, attributes, room and limits, two mounts of each format".into())
}
