//! `weir completions` and `weir man`: what shells and `man` know of the command line, from its own definition.

use crate::error::{Failure, Outcome};
use crate::output::print;
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir man | man -l -                                  read it
  weir man --out-dir ~/.local/share/man/man1           a page for each command: weir.1, weir-fio.1, ...")]
pub(crate) struct ManArgs {
    /// Write the pages of `weir` and of all its commands into this directory, which is made if need be
    #[arg(long, value_name = "DIR")]
    out_dir: Option<PathBuf>,
}

/// `weir completions`.
pub(crate) fn completions(args: &CompletionsArgs, mut cli: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "weir", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// `weir man`.
pub(crate) fn man(args: &ManArgs, cli: Command) -> Outcome {
    let Some(dir) = &args.out_dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(cli).render(&mut page).map_err(Failure::run)?;
        return print(&String::from_utf8_lossy(&page));
    };
    let failed =
        |error: std::io::Error| Failure::Run(format!("{} cannot be written: {error}", dir.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(cli, dir).map_err(failed)
}
