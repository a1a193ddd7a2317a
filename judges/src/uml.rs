//! A Linux kernel that runs as a program and has F2FS, whether this machine's kernel has it or not.
//!
//! Its root is this machine's, read-only; its disks are files. It has a `/run` of its own.

use crate::place::Place;
use crate::program::{LIMIT, Program, run};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::env::consts::ARCH;

/// The number of `ptrace` on x86-64, the only 64-bit machine that User-Mode Linux runs on.
const PTRACE: i64 = 101;
/// The request that reads a set of registers (linux/ptrace.h).
const PTRACE_GETREGSET: u64 = 0x4204;
/// What keeps the C library of the programs inside from registers beyond SSE. Linux hands it to the first of them.
const NO_AVX: &str =
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load";
/// The error "Input/output error", which a kernel without the request answers.
const EIO: u32 = 5;

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
    line.extend(["con=null", "con0=fd:0,fd:1", "con1=null", "quiet", "selinux=0", NO_AVX, &init]);
    line.extend(disks.iter().map(String::as_str));
    let mut linux = without_extended_registers(|| Program::start(place, &line))?;
    let status = linux.wait(LIMIT)?;
    let said = linux.output();
    let good = said.lines().skip_while(|line| line.trim_end() != "RESULT good");
    // Sometimes the program aborts after its kernel is down, which says nothing about the work before.
    match good.skip(1).any(|line| line.contains("reboot: Power down")) {
        true => Ok(said),
        false => Err(format!("User-Mode Linux, at `{work}`, ended with {status}: {}", said.trim())),
    }
}

/// Runs `start` so that programs that it starts find no extended processor state.
///
/// The User-Mode Linux of Debian 12 has room for 2,696 bytes of that state. On a processor with AMX there are over
/// 11,000, the kernel below refuses to restore a part of them, and no process starts. Where it cannot ask for them, it
/// saves what every x86-64 has; a page fault then loses the upper half of an AVX register ([`NO_AVX`]).
fn without_extended_registers<T: Send>(
    start: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let filter = refuse_getregset().map_err(|error| format!("the filter for User-Mode Linux: {error}"))?;
    // A filter stays with its thread and is inherited by what the thread starts.
    let filtered = || {
        seccompiler::apply_filter(&filter).map_err(|error| format!("seccomp: {error}"))?;
        start()
    };
    std::thread::scope(|scope| scope.spawn(filtered).join()).expect("the thread only starts a program")
}

fn refuse_getregset() -> Result<BpfProgram, seccompiler::BackendError> {
    let equal = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, PTRACE_GETREGSET)?;
    let rules = [(PTRACE, vec![SeccompRule::new(vec![equal])?])].into();
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(EIO), ARCH.try_into()?)?.try_into()
}
