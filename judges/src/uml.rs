//! A Linux kernel that runs as a program and has F2FS, whether this machine's kernel has it or not.
//!
//! Its root is this machine's, read-only; its disks are files. It has a `/run` of its own.

use crate::place::Place;
use crate::program::{LIMIT, Program, run};

/// Boots with these files as `/dev/ubda`, `/dev/ubdb` and so on, runs a shell command, and powers off without an unmount
/// except by the command. Returns its output; fails if the command does.
pub(crate) fn boot(place: &Place, disks: &[&str], work: &str) -> Result<String, String> {
    let init = format!(
        "#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/modules/lib/modules
ln -s /usr/lib/uml/modules/$(uname -r) /run/modules/lib/modules/
modprobe -d /run/modules f2fs && ( {work} ) && echo RESULT good
echo o >/proc/sysrq-trigger
sleep 5
"
    );
    let init = place.write("init.sh", init.as_bytes())?;
    run(place, &["chmod", "+x", &init])?;
    let disks: Vec<String> =
        disks.iter().enumerate().map(|(index, disk)| format!("ubd{index}={disk}")).collect();
    let init = format!("init={init}");
    let mut line = vec!["linux.uml", "mem=256M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"];
    line.extend(["con=null", "con0=fd:0,fd:1", "con1=null", "quiet", "selinux=0", &init]);
    line.extend(disks.iter().map(String::as_str));
    let mut linux = Program::start(place, &line)?;
    let status = linux.wait(LIMIT)?;
    let said = linux.output();
    let good = said.lines().skip_while(|line| line.trim_end() != "RESULT good");
    // Sometimes the program aborts after its kernel is down, which says nothing about the work before.
    match good.skip(1).any(|line| line.contains("reboot: Power down")) {
        true => Ok(said),
        false => Err(format!("User-Mode Linux, at `{work}`, ended with {status}: {}", said.trim())),
    }
}
