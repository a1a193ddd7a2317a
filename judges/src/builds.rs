//! The programs that judges and other steps run: cargo in the workspace, `weir`, and examples.
//!
//! Invariant: all programs for judges are built by the one command of [`weir_builds`], so that cargo builds them once.

use crate::host::{built, root};
use std::process::Command;

/// Name of the step that builds the programs for later ones.
pub const BUILD: &str = "build weir";

/// A cargo command in the workspace; tests that draw random cases use the seed.
pub fn cargo(seed: u64) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command.env("FLASHWEIR_SEED", seed.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
    command
}

/// Builds `weir` and the examples for judges, all at once, so that cargo uses the same features for all.
pub fn weir_builds(seed: u64) -> Command {
    let mut command = cargo(seed);
    command.args(["build", "--locked", "--release", "--quiet", "--bin", "weir"]);
    command.args(["--example", "live_cuts", "--example", "tree"]);
    command
}

/// `weir` as [`weir_builds`] builds it.
pub fn weir(seed: u64) -> Command {
    let mut command = Command::new(built("weir"));
    command.current_dir(root()).env("FLASHWEIR_SEED", seed.to_string());
    command
}
