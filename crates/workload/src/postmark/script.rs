//! Postmark's scripts: one command in a line.

use super::Options;
use crate::spelling::nearest;
use std::fmt;

/// Commands that say nothing about the work.
const OTHERS: [&str; 4] = ["run", "quit", "show", "help"];
/// Commands that would change what a run does, and are refused.
const REFUSED: [&str; 2] = ["load", "clear"];
/// Things that `set` sets here.
const SETTINGS: [&str; 10] = [
    "size",
    "number",
    "transactions",
    "subdirectories",
    "read",
    "write",
    "bias",
    "seed",
    "buffering",
    "location",
];
/// Largest file.
const BYTES_MAX: u64 = 1 << 40;
/// Most files, directories or transactions.
const COUNT_MAX: u64 = 1 << 32;

/// A script that cannot run: its name, the line, and the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    name: String,
    line: usize,
    what: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.name, self.line, self.what)
    }
}
impl std::error::Error for ScriptError {}

/// The first word of a script.
fn first_word(text: &str) -> Option<&str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).find_map(|line| line.split_whitespace().next())
}

/// Reads a script; `name` is for errors. Lines after `quit` are not read. Returns `None` if the first word is none of Postmark's
/// commands, so that the file is something else.
///
/// # Errors
/// The first line that makes no sense.
pub fn parse(name: &str, text: &str) -> Option<Result<Options, ScriptError>> {
    let first = first_word(text)?;
    let is_command = first == "set" || OTHERS.contains(&first) || REFUSED.contains(&first);
    is_command.then(|| lines(name, text))
}

fn lines(name: &str, text: &str) -> Result<Options, ScriptError> {
    let mut options = Options::default();
    for (line, words) in (1..).zip(text.lines()) {
        let words: Vec<&str> = words.split('#').next().unwrap_or_default().split_whitespace().collect();
        let fail = |what: String| ScriptError { name: name.into(), line, what };
        match words.split_first() {
            None => (),
            Some((&"quit", _)) => break,
            Some((&"set", rest)) => set(&mut options, rest).map_err(fail)?,
            Some((&word, _)) if OTHERS.contains(&word) => (),
            Some((&word, _)) if REFUSED.contains(&word) => return Err(fail(refused(word))),
            Some((&word, _)) => return Err(fail(unknown("command", word, &["set"], &OTHERS))),
        }
    }
    Ok(options)
}

fn refused(command: &str) -> String {
    let instead = match command {
        "load" => "expected the commands of that file in this one",
        _ => "expected a `set` for each setting that is to be another one",
    };
    format!("the command `{command}` is not executed: {instead}")
}

fn unknown(what: &str, word: &str, known: &[&str], more: &[&str]) -> String {
    let all: Vec<&str> = known.iter().chain(more).copied().collect();
    let near =
        nearest(word, all.iter().copied()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    format!("unknown {what} `{word}`: expected one of {}{near}", all.join(", "))
}

fn set(options: &mut Options, words: &[&str]) -> Result<(), String> {
    let Some((&name, values)) = words.split_first() else {
        return Err(format!("`set` says nothing: expected one of {}", SETTINGS.join(", ")));
    };
    match (name, values) {
        ("size", [least, most]) => {
            let (least, most) = (number(name, least, BYTES_MAX)?, number(name, most, BYTES_MAX)?);
            if least > most || most == 0 {
                return Err(format!("size is {least} to {most}: expected the smaller number of bytes first"));
            }
            options.size = (least, most);
        }
        ("number", [value]) => options.files = number(name, value, COUNT_MAX)?,
        ("transactions", [value]) => options.transactions = number(name, value, COUNT_MAX)?,
        ("subdirectories", [value]) => options.subdirectories = number(name, value, COUNT_MAX)?,
        ("read", [value]) => options.read_bytes = number(name, value, BYTES_MAX)?.max(1),
        ("write", [value]) => options.write_bytes = number(name, value, BYTES_MAX)?.max(1),
        ("bias", ["read", value]) => options.read_bias = bias(value)?,
        ("bias", ["create", value]) => options.create_bias = bias(value)?,
        ("seed", [value]) => options.seed = Some(number(name, value, u64::MAX)?),
        ("buffering", ["true" | "false"]) => (),
        // The volume is made for the run, and has nothing else.
        ("location", [_] | [_, _]) => (),
        (known, _) if SETTINGS.contains(&known) => {
            let said = words.join(" ");
            return Err(format!("`set {said}`: expected {}", usage(known)));
        }
        (other, _) => return Err(unknown("setting", other, &SETTINGS, &[])),
    }
    Ok(())
}

fn usage(name: &str) -> &'static str {
    match name {
        "size" => "`set size LEAST MOST`, in bytes",
        "bias" => "`set bias read N` or `set bias create N`, N from -1 to 10",
        "buffering" => "`set buffering true` or `false`",
        "location" => "`set location DIRECTORY`",
        _ => "one number",
    }
}

fn number(name: &str, text: &str, most: u64) -> Result<u64, String> {
    let value = text.parse().ok().filter(|value| *value <= most);
    value.ok_or_else(|| format!("{name} cannot be `{text}`: expected a number from 0 to {most}"))
}

fn bias(text: &str) -> Result<Option<u64>, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(value @ 0..=10) => Ok(Some(value as u64)),
        _ => Err(format!("bias cannot be `{text}`: expected -1 (never) or 0 to 10")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_it_is() {
        let script = "set size 5120 524288\nset number 15000   # files\nset transactions 60000\nset bias read 7\n\
                      set bias create -1\nset read 4096\nset write 4096\nset subdirectories 100\nset location /mnt/a\n\
                      set buffering false\nset seed 9\nshow\nrun\nquit\nnonsense\n";
        let expected = Options {
            size: (5120, 524_288),
            files: 15_000,
            transactions: 60_000,
            subdirectories: 100,
            read_bytes: 4096,
            write_bytes: 4096,
            read_bias: Some(7),
            create_bias: None,
            seed: Some(9),
        };
        assert_eq!(parse("p", script), Some(Ok(expected)));
        assert_eq!(parse("p", "[job]\nrw=read\n"), None);
        assert_eq!(parse("p", "# nothing\n"), None);
    }

    #[test]
    fn a_wrong_line_says_what_is_right() {
        let said = |script: &str| parse("mail.pmrc", script).unwrap().unwrap_err().to_string();
        for (script, expected) in [
            ("set size 10\n", "mail.pmrc:1: `set size 10`: expected `set size LEAST MOST`, in bytes"),
            ("set size 20 10\n", "mail.pmrc:1: size is 20 to 10: expected the smaller number of bytes first"),
            (
                "set number 1\nset bias read 11\n",
                "mail.pmrc:2: bias cannot be `11`: expected -1 (never) or 0 to 10",
            ),
            (
                "run\nrum\n",
                "mail.pmrc:2: unknown command `rum`: expected one of set, run, quit, show, help; did you mean `run`?",
            ),
            (
                "set number 9\nload big.pmrc\nrun\n",
                "mail.pmrc:2: the command `load` is not executed: expected the commands of that file in this one",
            ),
            (
                "clear\nrun\n",
                "mail.pmrc:1: the command `clear` is not executed: expected a `set` for each setting that is to be another one",
            ),
            (
                "set numbre 4\n",
                "mail.pmrc:1: unknown setting `numbre`: expected one of size, number, transactions, subdirectories, read, write, bias, seed, buffering, location; did you mean `number`?",
            ),
            ("set number -4\n", "mail.pmrc:1: number cannot be `-4`: expected a number from 0 to 4294967296"),
        ] {
            assert_eq!(said(script), expected);
        }
    }
}
