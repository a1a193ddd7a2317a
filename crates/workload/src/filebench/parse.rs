//! `.f` files: the part of filebench's Workload Model Language that fileserver, varmail, webserver and oltp need.
//!
//! Place in the data flow: text → tokens (`lex`) → statements, with attributes checked by name → [`Model`], where
//! values and names are resolved.
//!
//! Invariants: every difference in behaviour from filebench is an error; features without meaning in virtual time
//! (memory of threads, parallel preallocation) are accepted silently. A variable has the value that it had at the point
//! of use; variables that the caller sets keep that value.
//!
//! Deliberately absent: features that these personalities do not use; each is refused by an error that lists the known
//! ones.

use super::error::{Fault, ModelError};
use super::lex::{Token, tokens};
use super::model::{Amount, Fileset, Flowop, Gamma, Model, Op, Process, Thread};
use flashweir_core::Duration;
use std::collections::BTreeMap;

/// Parses a model. `file` is its name in messages; `set` overrides the values of variables, as in `("nfiles", "500")`.
///
/// # Errors
/// The first fault in the file, or the first unknown word, with its line.
pub fn parse_model(file: &str, text: &str, set: &[(&str, &str)]) -> Result<Model, ModelError> {
    let place = |(line, fault)| ModelError { file: file.to_owned(), line, fault };
    let tokens = tokens(text).map_err(place)?;
    let lines = text.lines().count() as u32;
    Parser::new(&tokens, lines, set).model().map_err(place)
}

type Parsed<T> = Result<T, (u32, Fault)>;

/// A value whose use is not known yet.
#[derive(Clone, Debug)]
enum Value {
    Plain(String),
    Gamma(Gamma),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Gamma(_) => "cvar(...)".to_owned(),
        }
    }
}

/// One `name=value`, or a name alone.
#[derive(Debug)]
struct Attribute {
    line: u32,
    name: String,
    value: Option<Value>,
}

/// The attributes of one entity.
#[derive(Debug)]
struct Attributes {
    line: u32,
    /// Entity that they belong to, for messages.
    entity: String,
    list: Vec<Attribute>,
}

/// Line and name of a flowop's target that is not resolved yet.
type Targeted = (u32, Option<String>);

struct Parser<'a> {
    tokens: &'a [(u32, Token)],
    at: usize,
    lines: u32,
    set: &'a [(&'a str, &'a str)],
    variables: BTreeMap<String, Value>,
    model: Model,
    targets: Vec<Targeted>,
    entities: Vec<String>,
}

const COMMANDS: [&str; 10] =
    ["set", "define", "eventgen", "enable", "echo", "usage", "create", "run", "psrun", "quit"];

const FILE_ATTRIBUTES: [&str; 12] = [
    "name",
    "path",
    "size",
    "filesize",
    "prealloc",
    "paralloc",
    "reuse",
    "readonly",
    "writeonly",
    "cached",
    "trusttree",
    "dirgamma",
];
const FILESET_ATTRIBUTES: [&str; 14] = [
    "name",
    "path",
    "size",
    "filesize",
    "prealloc",
    "paralloc",
    "reuse",
    "readonly",
    "writeonly",
    "cached",
    "trusttree",
    "dirgamma",
    "entries",
    "dirwidth",
];
const PROCESS_ATTRIBUTES: [&str; 3] = ["name", "instances", "nice"];
const THREAD_ATTRIBUTES: [&str; 5] = ["name", "instances", "memsize", "useism", "ioprio"];
const FLOWOP_ATTRIBUTES: [&str; 16] = [
    "name",
    "fd",
    "srcfd",
    "filesetname",
    "filename",
    "iosize",
    "iters",
    "random",
    "directio",
    "dsync",
    "opennext",
    "workingset",
    "value",
    "highwater",
    "blocking",
    "target",
];

/// Largest number of an open file.
const FD_MAX: u64 = 127;
/// Maximum number of instances of an entity, and of consecutive executions.
const INSTANCES_MAX: u64 = 1 << 20;

impl<'a> Parser<'a> {
    fn new(tokens: &'a [(u32, Token)], lines: u32, set: &'a [(&'a str, &'a str)]) -> Self {
        let model = Model {
            filesets: Vec::new(),
            processes: Vec::new(),
            event_rate: None,
            runtime: None,
            remarks: Vec::new(),
        };
        let (variables, targets, entities) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { tokens, at: 0, lines, set, variables, model, targets, entities }
    }

    fn model(mut self) -> Parsed<Model> {
        while self.at < self.tokens.len() {
            if !self.statement()? {
                break;
            }
        }
        for (name, _) in self.set {
            if !self.variables.contains_key(*name) {
                return Err((0, self.unknown_variable(name)));
            }
        }
        if self.model.processes.is_empty() {
            let needs = "at least one process: `define process name=...`".to_owned();
            return Err((0, Fault::Missing { entity: "a model".to_owned(), needs }));
        }
        self.resolve_targets()?;
        Ok(self.model)
    }

    // Tokens.

    fn line(&self) -> u32 {
        self.tokens.get(self.at).map_or(self.lines, |(line, _)| *line)
    }

    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn is_next(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    fn take_if(&mut self, mark: char) -> bool {
        let is_there = self.is_next(mark);
        self.at += usize::from(is_there);
        is_there
    }

    fn syntax<T>(&self, expected: impl Into<String>) -> Parsed<T> {
        let found = self.peek().map(Token::as_written).unwrap_or_default();
        Err((self.line(), Fault::Syntax { found, expected: expected.into() }))
    }

    fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.take_if(mark) { Ok(()) } else { self.syntax(format!("`{mark}`")) }
    }

    fn word(&mut self, expected: &str) -> Parsed<(u32, &'a str)> {
        match self.tokens.get(self.at) {
            Some((line, Token::Word(word))) => {
                self.at += 1;
                Ok((*line, word))
            }
            _ => self.syntax(expected),
        }
    }

    // Statements.

    /// Parses one statement; returns false if it ends the file.
    fn statement(&mut self) -> Parsed<bool> {
        let (line, command) = self.word("a command")?;
        match command {
            "set" => self.set_variable()?,
            "define" => self.define()?,
            "eventgen" => {
                let attributes = self.attributes("eventgen", &["rate"])?;
                let rate = attributes.number("rate", 0, 1 << 32)?;
                let Some(rate) = rate else { return Err(attributes.needs("`rate`")) };
                self.model.event_rate = Some(rate).filter(|&rate| rate > 0);
            }
            "enable" => {
                let (line, what) = self.word("a feature, such as lathist")?;
                known(line, "feature to enable", what, &["lathist"])?;
            }
            "echo" | "usage" => self.remark()?,
            "create" => {
                let (line, what) = self.word("files")?;
                known(line, "thing to create", what, &["files", "fileset", "filesets"])?;
            }
            "run" => self.run()?,
            "psrun" => {
                // The first of two numbers is filebench's print interval; the course of a run is recorded in any case.
                let is_number = |token: Option<&(u32, Token)>| {
                    token.is_some_and(|(_, token)| matches!(token, Token::Word(word) if is_numeric(word)))
                };
                if is_number(self.tokens.get(self.at)) && is_number(self.tokens.get(self.at + 1)) {
                    self.at += 1;
                }
                self.run()?;
            }
            "quit" => return Ok(false),
            _ => known(line, "command", command, &COMMANDS)?,
        }
        Ok(true)
    }

    fn set_variable(&mut self) -> Parsed<()> {
        let (line, variable) = self.word("a variable such as $nfiles")?;
        let name = variable.strip_prefix('$').filter(|name| is_name(name));
        let Some(name) = name else {
            let expected = "a variable such as $nfiles".to_owned();
            return Err((line, Fault::Syntax { found: variable.to_owned(), expected }));
        };
        self.expect('=')?;
        let value = self.value()?;
        let value = match self.set.iter().rev().find(|(set, _)| *set == name) {
            Some((_, by_caller)) => Value::Plain((*by_caller).to_owned()),
            None => value,
        };
        self.variables.insert(name.to_owned(), value);
        Ok(())
    }

    fn unknown_variable(&self, name: &str) -> Fault {
        let known = self.variables.keys().map(|name| format!("${name}")).collect();
        Fault::Unknown { what: "variable".to_owned(), word: format!("${name}"), known }
    }

    /// Parses a value; a variable is replaced with its value.
    fn value(&mut self) -> Parsed<Value> {
        let line = self.line();
        match self.peek() {
            Some(Token::Text(text)) => {
                self.at += 1;
                Ok(Value::Plain(self.replaced(line, text)?))
            }
            Some(Token::Word(word)) => {
                self.at += 1;
                if word == "cvar" && self.is_next('(') {
                    return self.custom_variable(line);
                }
                match word.strip_prefix('$') {
                    None => Ok(Value::Plain(word.clone())),
                    Some(name) => {
                        self.variables.get(name).cloned().ok_or_else(|| (line, self.unknown_variable(name)))
                    }
                }
            }
            _ => self.syntax("a value"),
        }
    }

    /// Returns the text with variables replaced; unknown names stay.
    fn replaced(&self, line: u32, text: &str) -> Parsed<String> {
        let mut parts = text.split('$');
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            match self.variables.get(name) {
                Some(Value::Plain(value)) => replaced.push_str(value),
                Some(Value::Gamma(_)) => {
                    let (name, expected) = (format!("${name}"), "a variable with one value".to_owned());
                    return Err((line, Fault::Value { name, value: "cvar(...)".to_owned(), expected }));
                }
                None => {
                    replaced.push('$');
                    replaced.push_str(name);
                }
            }
            replaced.push_str(rest);
        }
        Ok(replaced)
    }

    /// Parses `cvar(type=cvar-gamma,parameters=mean:M;gamma:G)` after its first word.
    fn custom_variable(&mut self, line: u32) -> Parsed<Value> {
        self.expect('(')?;
        let known_here = ["type", "parameters", "min", "max"];
        let attributes = self.attributes("cvar", &known_here)?;
        self.expect(')')?;
        let Some(kind) = attributes.text("type")? else { return Err(attributes.needs("`type`")) };
        known(line, "type of cvar", &kind, &["cvar-gamma"])?;
        let mut gamma = Gamma::new(4096.0, 1.5);
        let parameters = attributes.text("parameters")?.unwrap_or_default();
        for parameter in parameters.split(';').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once(':').unwrap_or((parameter, ""));
            known(line, "parameter of cvar-gamma", name, &["mean", "gamma"])?;
            let number: Option<f64> = value.parse().ok().filter(|number| *number > 0.0 && *number < 1e18);
            let Some(number) = number else {
                let expected = "a number above 0".to_owned();
                return Err((
                    line,
                    Fault::Value { name: name.to_owned(), value: value.to_owned(), expected },
                ));
            };
            *(if name == "mean" { &mut gamma.mean } else { &mut gamma.shape }) = number;
        }
        gamma.min = attributes.number("min", 0, 1 << 50)?.map_or(gamma.min, |min| min as f64);
        gamma.max = attributes.number("max", 0, 1 << 50)?.map_or(gamma.max, |max| max as f64);
        if gamma.min > gamma.max {
            let (name, value) = ("max".to_owned(), gamma.max.to_string());
            return Err((line, Fault::Value { name, value, expected: format!("{} or more", gamma.min) }));
        }
        Ok(Value::Gamma(gamma))
    }

    fn remark(&mut self) -> Parsed<()> {
        let line = self.line();
        match self.peek() {
            Some(Token::Text(text) | Token::Word(text)) => {
                self.at += 1;
                let remark = self.replaced(line, text)?;
                self.model.remarks.push(remark);
                Ok(())
            }
            _ => self.syntax("a text in quotation marks"),
        }
    }

    /// Parses what follows `run`: nothing, or seconds.
    fn run(&mut self) -> Parsed<()> {
        let is_time =
            matches!(self.peek(), Some(Token::Word(word)) if is_numeric(word) || word.starts_with('$'));
        if is_time {
            let line = self.line();
            let value = self.value()?;
            let seconds = number(&value).filter(|seconds| (1..1 << 30).contains(seconds));
            let Some(seconds) = seconds else {
                let expected = "whole seconds from 1 on".to_owned();
                return Err((line, Fault::Value { name: "run".to_owned(), value: value.text(), expected }));
            };
            self.model.runtime = Some(Duration::from_secs(seconds));
        }
        Ok(())
    }

    /// Parses attributes separated by commas; none if no name follows.
    fn attributes(&mut self, what: &str, known_here: &[&str]) -> Parsed<Attributes> {
        let mut list = Vec::new();
        let begin = self.line();
        loop {
            let (line, name) = self.word(&format!("an attribute of {what}"))?;
            known(line, &format!("attribute of {what}"), name, known_here)?;
            let value = if self.take_if('=') { Some(self.value()?) } else { None };
            list.push(Attribute { line, name: name.to_owned(), value });
            if !self.take_if(',') {
                break;
            }
        }
        Ok(Attributes { line: begin, entity: what.to_owned(), list })
    }

    /// Parses the attributes of an entity with a name, which then becomes part of messages.
    fn named_attributes(&mut self, what: &str, known_here: &[&str]) -> Parsed<(Attributes, String)> {
        let mut attributes = self.attributes(what, known_here)?;
        let Some(name) = attributes.text("name")? else { return Err(attributes.needs("`name`")) };
        attributes.entity = format!("{what} `{name}`");
        Ok((attributes, name))
    }

    // Definitions.

    fn define(&mut self) -> Parsed<()> {
        let (line, what) = self.word("file, fileset or process")?;
        match what {
            "file" | "files" => self.fileset(true),
            "fileset" | "filesets" => self.fileset(false),
            "process" | "processes" => self.process(),
            _ => known(line, "thing to define", what, &["file", "fileset", "process"]),
        }
    }

    /// Registers a name; fails if an entity of this kind has it already.
    fn enter(&mut self, line: u32, entity: &str) -> Parsed<()> {
        if self.entities.iter().any(|known| known == entity) {
            return Err((line, Fault::Twice { entity: entity.to_owned() }));
        }
        self.entities.push(entity.to_owned());
        Ok(())
    }

    fn fileset(&mut self, is_file: bool) -> Parsed<()> {
        let (what, known_here): (_, &[&str]) =
            if is_file { ("file", &FILE_ATTRIBUTES) } else { ("fileset", &FILESET_ATTRIBUTES) };
        let (a, name) = self.named_attributes(what, known_here)?;
        self.enter(a.line, &format!("fileset `{name}`"))?;
        let Some(path) = a.text("path")? else { return Err(a.needs("`path`")) };
        let is_plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('/');
        if !is_plain(&name) {
            return Err(a.bad("name", &name, "one name of a path"));
        }
        let dir_width = a.number("dirwidth", 2, 1 << 40)?;
        if !is_file && dir_width.is_none() {
            return Err(a.needs("`dirwidth`"));
        }
        let size = a.amount("size")?.or(a.amount("filesize")?).unwrap_or(Amount::Fixed(1024));
        let prealloc = if a.is_bare("prealloc") { Some(100) } else { a.number("prealloc", 0, 100)? };
        let (read_only, write_only) = (a.flag("readonly")?, a.flag("writeonly")?);
        if read_only && write_only {
            return Err(a.bad("writeonly", "true", "not together with `readonly`"));
        }
        self.model.filesets.push(Fileset {
            name,
            path,
            is_file,
            entries: if is_file { 1 } else { a.number("entries", 1, 1 << 31)?.unwrap_or(1024) },
            size,
            dir_width: dir_width.unwrap_or(2),
            // filebench gives it in thousandths.
            dir_gamma: a.number("dirgamma", 0, 1_000_000)?.unwrap_or(1500) as f64 / 1000.0,
            prealloc_percent: prealloc.unwrap_or(0) as u8,
            reuse: a.flag("reuse")? || a.flag("trusttree")?,
            read_only,
            write_only,
        });
        Ok(())
    }

    fn process(&mut self) -> Parsed<()> {
        let (a, name) = self.named_attributes("process", &PROCESS_ATTRIBUTES)?;
        self.enter(a.line, &a.entity)?;
        let instances = a.number("instances", 1, INSTANCES_MAX)?.unwrap_or(1) as u32;
        self.expect('{')?;
        let mut threads = Vec::new();
        while !self.take_if('}') {
            let (line, word) = self.word("`thread` or `}`")?;
            known(line, "part of a process", word, &["thread"])?;
            threads.push(self.thread()?);
        }
        if threads.is_empty() {
            return Err(a.needs("a thread"));
        }
        self.model.processes.push(Process { name, instances, threads });
        Ok(())
    }

    fn thread(&mut self) -> Parsed<Thread> {
        let (a, name) = self.named_attributes("thread", &THREAD_ATTRIBUTES)?;
        let instances = a.number("instances", 1, INSTANCES_MAX)?.unwrap_or(1) as u32;
        self.expect('{')?;
        let mut flowops = Vec::new();
        while !self.take_if('}') {
            let (line, word) = self.word("`flowop` or `}`")?;
            known(line, "part of a thread", word, &["flowop"])?;
            let (line, name) = self.word("the name of an operation")?;
            let op = Op::ALL.iter().find(|op| op.name() == name).copied();
            let Some(op) = op else {
                let names: Vec<&str> = Op::ALL.iter().map(|op| op.name()).collect();
                return known(line, "flowop", name, &names).map(|()| unreachable!("it is not among them"));
            };
            flowops.push(self.flowop(op)?);
        }
        if flowops.is_empty() {
            return Err(a.needs("a flowop"));
        }
        Ok(Thread { name, instances, flowops })
    }

    fn flowop(&mut self, op: Op) -> Parsed<Flowop> {
        let (mut a, name) = self.named_attributes("flowop", &FLOWOP_ATTRIBUTES)?;
        a.entity = format!("flowop `{name}` ({})", op.name());
        let fileset = match a.text("filesetname")?.or(a.text("filename")?) {
            None => None,
            Some(wanted) => {
                let found = self.model.filesets.iter().position(|fileset| fileset.name == wanted);
                let names: Vec<&str> = self.model.filesets.iter().map(|set| set.name.as_str()).collect();
                let line = a.line_of("filesetname").max(a.line_of("filename"));
                if found.is_none() {
                    known(line, "fileset", &wanted, &names)?;
                }
                found
            }
        };
        let flowop = Flowop {
            op,
            fileset,
            fd: a.number("fd", 0, FD_MAX)?.unwrap_or(0) as usize,
            src_fd: a.number("srcfd", 0, FD_MAX)?.unwrap_or(0) as usize,
            iosize: a.amount("iosize")?.unwrap_or(Amount::Fixed(0)),
            iters: a.number("iters", 1, INSTANCES_MAX)?.unwrap_or(1),
            is_random: a.flag("random")?,
            is_direct: a.flag("directio")?,
            is_dsync: a.flag("dsync")?,
            opens_next: a.flag("opennext")?,
            working_set: a.number("workingset", 0, 1 << 50)?.unwrap_or(0),
            value: a.amount("value")?.unwrap_or(Amount::Fixed(0)),
            highwater: a.number("highwater", 0, 1 << 40)?.unwrap_or(1),
            is_blocking: a.flag("blocking")?,
            target: None,
            name,
        };
        self.check_needs(&a, &flowop)?;
        self.targets.push((a.line, a.text("target")?));
        Ok(flowop)
    }

    /// Checks the attributes that an operation requires.
    fn check_needs(&self, a: &Attributes, flowop: &Flowop) -> Parsed<()> {
        let has = |name: &str| a.list.iter().any(|attribute| attribute.name == name);
        let needs_files = match flowop.op {
            Op::CreateFile | Op::OpenFile => flowop.fileset.is_none(),
            op => {
                op.touches_files()
                    && !matches!(op, Op::CloseFile | Op::Fsync)
                    && flowop.fileset.is_none()
                    && flowop.fd == 0
            }
        };
        if needs_files {
            return Err(a.needs("`filesetname`"));
        }
        if flowop.opens_next && flowop.fileset.is_none() {
            return Err(a.needs("`filesetname` because of `opennext`"));
        }
        let moves = [Op::Read, Op::Write, Op::AppendFile, Op::AppendFileRand, Op::AioWrite];
        if moves.contains(&flowop.op) && flowop.iosize == Amount::Fixed(0) {
            return Err(a.needs("`iosize` above 0"));
        }
        if flowop.op == Op::AioWrite && !flowop.is_random {
            return Err(a.needs("`random`: asynchronous writes have no position"));
        }
        let counts = [Op::SemBlock, Op::SemPost, Op::Hog, Op::Delay, Op::FinishOnCount, Op::FinishOnBytes];
        if counts.contains(&flowop.op) && !has("value") {
            return Err(a.needs("`value`"));
        }
        if flowop.op == Op::SemPost && !has("target") {
            return Err(a.needs("`target`"));
        }
        Ok(())
    }

    /// Resolves names of targets to numbers: a post may refer to any `semblock`, the others only to flowops of their
    /// own thread.
    fn resolve_targets(&mut self) -> Parsed<()> {
        let mut found = Vec::new();
        let mut first_of_thread = 0;
        let all: Vec<(String, Op)> = self.model.flowops().map(|(_, _, f)| (f.name.clone(), f.op)).collect();
        for thread in self.model.processes.iter().flat_map(|process| &process.threads) {
            let own = first_of_thread..first_of_thread + thread.flowops.len();
            for (flowop, number) in thread.flowops.iter().zip(own.clone()) {
                let (line, Some(target)) = &self.targets[number] else {
                    found.push(None);
                    continue;
                };
                let candidates: Vec<usize> = match flowop.op {
                    Op::SemPost => (0..all.len()).filter(|&i| all[i].1 == Op::SemBlock).collect(),
                    _ => own.clone().collect(),
                };
                let position = candidates.iter().copied().find(|&i| all[i].0 == *target);
                if position.is_none() {
                    let names: Vec<&str> = candidates.iter().map(|&i| all[i].0.as_str()).collect();
                    let what = if flowop.op == Op::SemPost { "semblock" } else { "flowop of this thread" };
                    known(*line, what, target, &names)?;
                }
                found.push(position);
            }
            first_of_thread = own.end;
        }
        let flowops =
            self.model.processes.iter_mut().flat_map(|p| &mut p.threads).flat_map(|t| &mut t.flowops);
        for (flowop, target) in flowops.zip(found) {
            flowop.target = target;
        }
        Ok(())
    }
}

/// Refuses an unknown word.
fn known(line: u32, what: &str, word: &str, known: &[&str]) -> Parsed<()> {
    if known.contains(&word) {
        return Ok(());
    }
    let known = known.iter().map(|&word| word.to_owned()).collect();
    Err((line, Fault::Unknown { what: what.to_owned(), word: word.to_owned(), known }))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_numeric(word: &str) -> bool {
    word.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
}

/// Parses a whole number with an optional unit k, m, g or t (powers of 1024).
fn number(value: &Value) -> Option<u64> {
    let Value::Plain(text) = value else { return None };
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let power = match &text[digits.len()..] {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))
}

impl Attributes {
    fn find(&self, name: &str) -> Option<&Attribute> {
        self.list.iter().rev().find(|attribute| attribute.name == name)
    }

    fn line_of(&self, name: &str) -> u32 {
        self.find(name).map_or(self.line, |attribute| attribute.line)
    }

    fn needs(&self, needs: &str) -> (u32, Fault) {
        (self.line, Fault::Missing { entity: self.entity.clone(), needs: needs.to_owned() })
    }

    fn bad(&self, name: &str, value: &str, expected: &str) -> (u32, Fault) {
        let fault =
            Fault::Value { name: name.to_owned(), value: value.to_owned(), expected: expected.to_owned() };
        (self.line_of(name), fault)
    }

    /// Whether the attribute is present without a value.
    fn is_bare(&self, name: &str) -> bool {
        self.find(name).is_some_and(|attribute| attribute.value.is_none())
    }

    fn text(&self, name: &str) -> Parsed<Option<String>> {
        match self.find(name) {
            None => Ok(None),
            Some(Attribute { value: Some(Value::Plain(text)), .. }) => Ok(Some(text.clone())),
            Some(Attribute { value, .. }) => {
                Err(self.bad(name, &value.as_ref().map(Value::text).unwrap_or_default(), "a text"))
            }
        }
    }

    fn number(&self, name: &str, min: u64, max: u64) -> Parsed<Option<u64>> {
        let Some(attribute) = self.find(name) else { return Ok(None) };
        let found = attribute.value.as_ref().and_then(number).filter(|n| (min..=max).contains(n));
        match found {
            Some(number) => Ok(Some(number)),
            None => {
                let value = attribute.value.as_ref().map(Value::text).unwrap_or_default();
                Err(self.bad(name, &value, &format!("a whole number from {min} to {max}, such as 20 or 16k")))
            }
        }
    }

    fn amount(&self, name: &str) -> Parsed<Option<Amount>> {
        match self.find(name).and_then(|attribute| attribute.value.as_ref()) {
            Some(Value::Gamma(gamma)) => Ok(Some(Amount::Gamma(*gamma))),
            _ => Ok(self.number(name, 0, 1 << 50)?.map(Amount::Fixed)),
        }
    }

    /// Returns true for the name alone, for `true` and for numbers other than 0.
    fn flag(&self, name: &str) -> Parsed<bool> {
        let Some(attribute) = self.find(name) else { return Ok(false) };
        let Some(value) = &attribute.value else { return Ok(true) };
        match (value.text().as_str(), number(value)) {
            ("true", _) => Ok(true),
            ("false", _) => Ok(false),
            (_, Some(number)) => Ok(number > 0),
            (text, None) => Err(self.bad(name, text, "true, false, 1 or 0")),
        }
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
