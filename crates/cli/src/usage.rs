//! Errors of the command line, in one line; help and version go to stdout.

use crate::args::Cli;
use crate::error::{Failure, Outcome};
use crate::output::print;
use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as _;
use std::io::Write as _;

/// Shows help, or says what is wrong.
pub(crate) fn explain(error: &clap::Error) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => print(&error.render().to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // An empty command line gets the help, but a script must notice.
            let _ = write!(std::io::stderr(), "{}", error.render());
            Err(Failure::Usage("a command is missing; the help is above".into()))
        }
        _ => Err(Failure::Usage(line(error))),
    }
}

fn line(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) if !texts.is_empty() => Some(texts.join(", ")),
        _ => None,
    };
    let near = |kind| text(kind).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    // `--seed <N>` is called `--seed`.
    let option = argument.split(' ').next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if option == "--json" => {
            "unknown argument `--json`: expected --output json, which every command has that gives JSON"
                .into()
        }
        ErrorKind::UnknownArgument => {
            format!("unknown argument `{argument}`{}", near(ContextKind::SuggestedArg))
        }
        ErrorKind::InvalidSubcommand => {
            let command = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            let hint = near(ContextKind::SuggestedSubcommand);
            // Of `weir crash` or of `weir`.
            let weir = Cli::command();
            let first = std::env::args_os().nth(1).and_then(|first| weir.find_subcommand(first));
            let above = first.filter(|first| first.has_subcommands());
            let above = above.map_or("weir".to_owned(), |above| format!("weir {}", above.get_name()));
            let hint = if hint.is_empty() { format!("; {above} --help lists the commands") } else { hint };
            format!("unknown command `{command}`{hint}")
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let value = text(ContextKind::InvalidValue).unwrap_or_default();
            if value.is_empty() && error.source().is_none() {
                return format!("{option} needs a value");
            }
            let expected = match (error.get(ContextKind::ValidValue), error.source()) {
                (Some(ContextValue::Strings(valid)), _) => format!(": expected {}", choice(valid)),
                (_, Some(source)) => format!(": {source}"),
                (_, None) => String::new(),
            };
            format!("{option} cannot be `{value}`{expected}{}", near(ContextKind::SuggestedValue))
        }
        ErrorKind::MissingRequiredArgument => format!("missing: {argument}"),
        ErrorKind::MissingSubcommand => "a command is missing".into(),
        ErrorKind::ArgumentConflict => {
            let other = text(ContextKind::PriorArg).unwrap_or_default();
            match other == argument {
                true => format!("{option} is given more than once"),
                // The argument that conflicts is a command.
                false if option.is_empty() => format!("{other} cannot be used with a command behind it"),
                false => format!("{option} cannot be used with {other}"),
            }
        }
        _ => {
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        }
    }
}

/// `a, b or c`.
fn choice(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
