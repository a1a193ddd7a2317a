//! A running `weir serve`.
//!
//! Invariant: it is killed when its guard is dropped.

use crate::builds::weir;
use crate::place::Place;
use crate::program::{self, Program, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A phone's device of 604 MB: it has room for each file system, and GC begins before a judge has finished.
pub(super) const SMALL: &[&str] = &[
    "mobile-ufs",
    "--set=geometry.blocks_per_plane=32",
    "--set=geometry.pages_per_block=192",
    "--set=ftl.over_provisioning=0.25",
];

/// The same with 151 MB, so that whole images are copied quickly.
pub(super) const TINY: &[&str] = &[
    "mobile-ufs",
    "--set=geometry.blocks_per_plane=32",
    "--set=geometry.pages_per_block=48",
    "--set=ftl.over_provisioning=0.25",
];

/// A server of one place, on a unix socket and, if the arguments say so, elsewhere.
#[derive(Debug)]
pub(super) struct Server {
    program: Program,
    socket: String,
}

/// Counts that a server reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) size: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) trims: u64,
    pub(super) zeroes: u64,
    pub(super) flushes: u64,
    pub(super) errors: u64,
    pub(super) erases: u64,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub(super) fn start(place: &Place, args: &[&[&str]]) -> Result<Self, String> {
        Self::start_as(place, "serve", &args.concat())
    }

    /// The same with another command that serves a disk.
    pub(super) fn start_as(place: &Place, command: &str, args: &[&str]) -> Result<Self, String> {
        let (program, socket) = (weir_path(), place.path("disk.sock"));
        let mut line = vec![program.as_str(), command, "--unix", &socket];
        line.extend(args);
        let mut program = Program::start(place, &line)?;
        wait_until("a listening server", || {
            if !program.is_running() {
                return Err(format!("weir {command} ended at once: {}", program.output().trim()));
            }
            Ok(UnixStream::connect(&socket).is_ok())
        })?;
        Ok(Self { program, socket })
    }

    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    /// Address of its default export, for NBD tools.
    pub(super) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }

    /// Its TCP address, `127.0.0.1:PORT`, which it prints after it has begun to listen.
    pub(super) fn tcp(&self) -> Result<String, String> {
        let mut found = None;
        wait_until("the name of a TCP address", || {
            let output = self.program.output();
            let address = output.lines().find_map(|line| line.strip_prefix("clients: nbd://"));
            // A line without a line end is not complete yet.
            found = address.filter(|_| output.ends_with('\n')).map(str::to_owned);
            Ok(found.is_some())
        })?;
        Ok(found.expect("it was waited for"))
    }

    /// Asks for its counts.
    pub(super) fn counts(&self) -> Result<Counts, String> {
        let failed = |error: std::io::Error| format!("control socket: {error}");
        let mut stream = UnixStream::connect(format!("{}.control", self.socket)).map_err(failed)?;
        stream.write_all(b"\"status\"\n").map_err(failed)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map_err(failed)?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))?;
        let disk = &answer["status"]["disks"][0];
        let number = |value: &Value| value.as_u64().ok_or_else(|| format!("no number: {value} in {line}"));
        let kinds = disk["kinds"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |kind: &str| kinds.iter().find(|row| row["kind"] == kind);
        let requests = |kind: &str| of(kind).map_or(Ok(0), |row| number(&row["requests"]));
        let mut errors = 0;
        for row in kinds {
            errors += number(&row["errors"])?;
        }
        Ok(Counts {
            size: number(&disk["size"])?,
            reads: requests("read")?,
            writes: requests("write")?,
            trims: requests("trim")?,
            zeroes: requests("zero")?,
            flushes: requests("flush")?,
            errors,
            erases: number(&disk["erases"])?,
        })
    }

    /// Cuts the device's power.
    pub(super) fn cut(&self, place: &Place, args: &[&str]) -> Result<String, String> {
        let program = weir_path();
        let mut line = vec![program.as_str(), "cut", &self.socket];
        line.extend(args);
        program::run(place, &line)
    }

    /// Stops it as Ctrl-C does; returns its output.
    pub(super) fn stop(mut self) -> Result<String, String> {
        let id = self.program.id();
        let interrupt = std::process::Command::new("sh").args(["-c", &format!("kill -INT {id}")]).status();
        if !interrupt.is_ok_and(|status| status.success()) {
            return Err("weir serve could not be interrupted".into());
        }
        let status = self.program.wait(Duration::from_secs(60))?;
        let output = self.program.output();
        match status.success() {
            true => Ok(output),
            false => Err(format!("weir serve ended with {status}: {}", output.trim())),
        }
    }

    /// Kills it as `kill -9` does.
    pub(super) fn kill(mut self) -> Result<(), String> {
        match self.program.is_running() {
            true => self.program.kill(),
            false => return Err(format!("weir serve ended by itself: {}", self.program.output().trim())),
        }
        Ok(())
    }
}

/// Runs `weir` with these arguments, which has to succeed.
pub(super) fn run_weir(place: &Place, args: &[&str]) -> Result<String, String> {
    let program = weir_path();
    let mut line = vec![program.as_str()];
    line.extend(args);
    program::run(place, &line)
}

fn weir_path() -> String {
    weir(0).get_program().to_string_lossy().into_owned()
}
