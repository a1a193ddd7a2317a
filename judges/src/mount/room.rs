//! An image on a host disk without room for it, and mounts without root.

use super::mounted::{END, Mount, is_good};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::{Program, run as program, wait_until};
use crate::tree::built;
use std::os::unix::fs::PermissionsExt as _;

/// Size of the image, and of the host disk with it.
const IMAGE: &str = "64MiB";
const DISK: &str = "size=100m";

/// A mount that could not write its image back is refused; one that skips this check loses nothing.
pub(super) fn judge(place: &Place) -> Finding {
    let weir = built("weir");
    let disk = place.make_dir("disk")?;
    program(place, &["mount", "-t", "tmpfs", "-o", DISK, "disk", &disk])?;
    let found = on_small_disk(place, &weir, &disk);
    program(place, &["umount", &disk])?;
    found
}

fn on_small_disk(place: &Place, weir: &str, disk: &str) -> Finding {
    let image = format!("{disk}/disk.img");
    program(place, &[weir, "mkfs", "ext4", &image, "--size", IMAGE])?;
    // Another file takes up room.
    let ballast = format!("{disk}/ballast");
    program(place, &["fallocate", "-l", "60MiB", &ballast])?;
    let refused = Program::start(place, &[weir, "mount", &image, &place.make_dir("mnt")?])?;
    let (status, said) = ended(refused)?;
    if status != Some(2) || !said.contains("--no-reserve") {
        return Err(format!("a mount that cannot be written back ended with {status:?}: {said}"));
    }
    let mut mount = Mount::new(place, &image, "--speed max --no-reserve")?;
    program(
        place,
        &["dd", "if=/dev/urandom", &format!("of={}", mount.path("file")), "bs=1M", "count=40", "conv=fsync"],
    )?;
    let sum = |path: &str| program(place, &["sh", "-c", "md5sum < \"$1\"", "sh", path]);
    let before = sum(&mount.path("file"))?;
    let control = format!("{}.control", mount.dir);
    program(place, &["umount", &mount.dir])?;
    wait_until("a word about the image", || Ok(mount.program.output().contains("nothing is lost yet")))?;
    if !mount.program.is_running() {
        return Err("a mount that could not write its image has given it up".into());
    }
    let saved = place.path("saved.img");
    program(place, &[weir, "save", &control, &saved])?;
    let status = mount.program.wait(END)?;
    if !status.success() {
        return Err(format!("a mount whose image was saved elsewhere ended with {status}"));
    }
    is_good(place, "ext4", &saved)?;
    let mount = Mount::new(place, &saved, "--speed max")?;
    let after = sum(&mount.path("file"))?;
    if after != before {
        return Err("another content is in the image that was saved elsewhere".into());
    }
    // Then there is room again.
    program(place, &["rm", &ballast])?;
    mount.unmount()?;
    Ok("refused with its reason, and saved elsewhere".into())
}

/// Exit code and output of a program.
fn ended(mut program: Program) -> Result<(Option<i32>, String), String> {
    let status = program.wait(END)?;
    Ok((status.code(), program.output()))
}

/// A mount and a check by a user other than root.
pub(super) fn without_root(place: &Place) -> Finding {
    let (weir, dir) = (built("weir"), place.make_dir("theirs")?);
    // Other users can enter neither the directory of the judge nor that of the build.
    let own = format!("{dir}/weir");
    program(place, &["cp", &weir, &own])?;
    program(place, &["chown", "-R", "nobody:nogroup", &dir])?;
    let dir_of_judge = place.dir().display().to_string();
    let mode_of = |path: &str| {
        let metadata = std::fs::metadata(path).map_err(|error| format!("{path}: {error}"))?;
        Ok::<_, String>(format!("{:o}", metadata.permissions().mode() & 0o7777))
    };
    let (above, fuse) = (mode_of(&dir_of_judge)?, mode_of(FUSE)?);
    program(place, &["chmod", "o+x", &dir_of_judge])?;
    // udev sets this mode; a machine without udev may have another.
    program(place, &["chmod", "666", FUSE])?;
    let as_nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"];
    let said = program(place, &[&as_nobody[..], &["sh", "-c", AS_NOBODY, "sh", &dir]].concat());
    program(place, &["chmod", &fuse, FUSE])?;
    program(place, &["chmod", &above, &dir_of_judge])?;
    said?;
    Ok("mounted, cut and checked by nobody, for whom nobody else's rights are needed".into())
}

/// Device of FUSE requests.
const FUSE: &str = "/dev/fuse";

const AS_NOBODY: &str = r#"
set -e
cd "$1"
mkdir mnt
TMPDIR=$1; export TMPDIR
./weir mkfs ext4 disk.img --size 256MiB
./weir mount disk.img mnt --speed max > log 2>&1 &
for _ in $(seq 200); do grep -q '^control' log && break; sleep 0.05; done
echo content > mnt/file
sync mnt/file mnt
./weir cut mnt.control
test "$(cat mnt/file)" = content
fusermount3 -u mnt
wait
./weir fsck disk.img
./weir check --verify 'test ! -s {}/a || grep -q whole {}/a' -- sh -c 'cd "$1" && echo whole > b && sync b && mv b a' sh {}
"#;
