//! Judge: a host FTL on threads above zones that Linux keeps the rules of.
//!
//! Debian's kernel runs in QEMU without this machine's help, since few machines have a zoned device or let one be made: its `null_blk`
//! refuses writes that are not at a write pointer, and zones beyond its limits. QEMU's own zoned device forgets its zones with each start.

use crate::host::built;
use crate::judge::Finding;
use crate::packages::apt;
use crate::place::Place;
use crate::program::{Program, run};
use std::time::Duration;

/// Longest time for the machine, whose processor is a program.
const LIMIT: Duration = Duration::from_secs(400);

/// What happens in the machine. `SEED` is set before.
const WORK: &str = r#"
bad() { echo "RESULT bad: $*"; dmesg | tail -5; cat /run/said; off; }
off() { echo o >/proc/sysrq-trigger; sleep 60; }
serve() {
    rm -f /run/s
    weir threads /dev/nullb0 --unix /run/s --output json "$@" >/run/said 2>&1 &
    SERVER=$!
    i=0
    until [ -S /run/s ]; do i=$((i + 1)); [ $i -lt 300 ] || bad "no server"; sleep 0.1; done
}
load() { fio --ioengine=nbd '--uri=nbd+unix:///?socket=/run/s' --randseed=$SEED --iodepth=16 --verify=crc32c "$@" >/run/fio 2>&1; }
kept() { load --name=kept --rw=randwrite --bs=4k --size=8m "$@" || bad "kept $*: $(grep err /run/fio | tail -1)"; }
over() { load --name=over --rw=randwrite --bs=16k --offset=8m --size=16m --do_verify=0 --time_based --runtime=$1; }

weir threads /dev/nullb0 --unix /run/s --create 1GiB >/run/said 2>&1
[ $? = 2 ] || bad "a size that does not fit"
grep "whole zones, expected" /run/said || bad "no word of zones"
serve --create 24MiB
kept --do_verify=0 --end_fsync=1
weir threads /dev/nullb0 --unix /run/t >/run/other 2>&1 && bad "served twice"
for life in 1 2 3; do
    over 60 &
    sleep 7
    kill -9 $SERVER
    wait
    serve
    kept --verify_only
done
over 10 || bad "overwrites: $(grep err /run/fio | tail -1)"
kill -INT $SERVER
wait $SERVER || bad "the server ended with $?"
grep -q '"lines_erased":[1-9]' /run/said || bad "GC has not erased anything"
serve
kept --verify_only
dmesg | grep -i "error" && bad "the kernel refused something"
echo "RESULT good $(grep -o '"recovered_units":[0-9]*' /run/said)"
off
"#;

/// A kernel and its modules, in a directory of the place: Debian's, for any machine.
fn kernel(place: &Place) -> Result<(String, String), String> {
    let depends = || run(place, &["apt-cache", "depends", "linux-image-amd64"]);
    let said = match depends() {
        Ok(said) if said.contains("Depends: linux-image-") => said,
        _ if apt(&["update"]) => depends()?,
        _ => return Err("apt-get update failed".into()),
    };
    let package = said.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let version = package.ok_or_else(|| format!("no kernel in {said:?}"))?.to_owned();
    let package = format!("linux-image-{version}");
    run(place, &["apt-get", "-qq", "download", &package])?;
    let kernel = place.make_dir("kernel")?;
    let modules = format!("./lib/modules/{version}/kernel");
    let unpack = format!(
        "dpkg-deb --fsys-tarfile {package}_*.deb | tar -x -C {kernel} ./boot/vmlinuz-{version} \
         {modules}/fs/configfs/configfs.ko {modules}/drivers/block/null_blk/null_blk.ko"
    );
    run(place, &["sh", "-c", &unpack])?;
    Ok((format!("{kernel}/boot/vmlinuz-{version}"), format!("{kernel}/lib/modules/{version}/kernel")))
}

/// A file system in memory with `weir`, fio and what they need; its path.
fn root(place: &Place, modules: &str) -> Result<String, String> {
    let weir = built("weir").display().to_string();
    let init = format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin SEED={}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
insmod /configfs.ko
insmod /null_blk.ko gb=1 bs=4096 memory_backed=1 zoned=1 zone_size=2 zone_capacity=1 zone_nr_conv=2 zone_max_open=16 zone_max_active=16
{WORK}",
        place.seed() % (1 << 31)
    );
    let init = place.write("init", init.as_bytes())?;
    // The loader's name stands alone in its line; a library's comes after an arrow.
    let fill = format!(
        "set -e
mkdir -p root/bin root/dev root/proc root/sys root/run root/tmp
cp {init} root/init
chmod +x root/init
cp $(command -v busybox) root/bin/busybox
cp $(command -v fio) {weir} root/bin/
cp {modules}/fs/configfs/configfs.ko {modules}/drivers/block/null_blk/null_blk.ko root/
for library in $(ldd {weir} $(command -v fio) | grep -o '/[^ :]*\\.so[^ :]*' | sort -u); do
    mkdir -p root$(dirname $library)
    cp -L $library root$library
done
cd root
find . | cpio --quiet -o -H newc >../root.cpio"
    );
    run(place, &["sh", "-c", &fill])?;
    Ok(place.path("root.cpio"))
}

/// The server is killed three times under fio, with GC, and what was flushed is there.
pub(super) fn killed(place: &Place) -> Finding {
    let (kernel, modules) = kernel(place)?;
    let root = root(place, &modules)?;
    let machine =
        ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2500"];
    let boot = ["-kernel", &kernel, "-initrd", &root, "-append", "console=ttyS0 quiet panic=-1"];
    let rest = ["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"];
    let mut machine = Program::start(place, &[&machine[..], &boot, &rest].concat())?;
    let status = machine.wait(LIMIT)?;
    let said = machine.output();
    match said.lines().find_map(|line| line.trim().strip_prefix("RESULT good")) {
        Some(_) => {
            Ok("three times killed under load, with GC: what was flushed is there, and no zone was misused"
                .into())
        }
        None => Err(format!("the machine ended with {status}: {}", said.trim())),
    }
}
