//! TOML trees: merging, overriding with dotted keys, and reading into types with messages that name the key.
//!
//! A *shape* is a tree in which every known key has a valid value. It says which keys exist and what kinds of
//! values they have, so that mistakes are found by comparing trees: serde stops at the first mistake and does
//! not say where.
//!
//! Invariant: a shape deserialises into the type that it describes (otherwise its reader would fail; tests use
//! all readers).

use super::error::Fault;
use flashweir_core::{Bytes, Duration};
use flashweir_workload::spelling::nearest;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// A shape from its text.
pub(super) fn shape(text: &str) -> Table {
    text.parse().expect("shapes are valid TOML")
}

/// Merges `over` into `base`: tables merge, everything else is replaced.
pub(super) fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// Sets the value at a path of keys, making tables on the way; `*` is every element of a list.
pub(super) fn set_path(table: &mut Table, path: &[&str], value: &Value) -> Result<(), String> {
    let (first, rest) = path.split_first().expect("a dotted key has a part");
    if rest.is_empty() {
        table.insert((*first).to_owned(), value.clone());
        return Ok(());
    }
    let next = table.entry(*first).or_insert_with(|| Value::Table(Table::new()));
    match next {
        Value::Table(table) => set_path(table, rest, value),
        Value::Array(list) => set_element(first, list, rest, value),
        _ => Err(format!("`{first}` is a value, not a table")),
    }
}

fn set_element(name: &str, list: &mut [Value], path: &[&str], value: &Value) -> Result<(), String> {
    let (index, rest) = path.split_first().expect("the caller has seen to it");
    for at in indices(name, index, list.len())? {
        match &mut list[at] {
            element if rest.is_empty() => *element = value.clone(),
            Value::Table(table) => set_path(table, rest, value)?,
            _ => return Err(format!("`{name}.{at}` is a value, not a table")),
        }
    }
    Ok(())
}

/// Elements that `index` selects in a list of `count`.
pub(super) fn indices(name: &str, index: &str, count: usize) -> Result<std::ops::Range<usize>, String> {
    if index == "*" {
        return Ok(0..count);
    }
    match index.parse::<usize>() {
        Ok(at) if at < count => Ok(at..at + 1),
        _ if count == 0 => Err(format!("there is no `{name}`")),
        _ => Err(format!("there is no `{name}.{index}`: expected 0 to {} or *", count - 1)),
    }
}

/// Reads a value of the command line: TOML if it is TOML, otherwise the text itself.
pub(super) fn command_line_value(text: &str) -> Value {
    match format!("value = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => match table.remove("value") {
            Some(Value::Datetime(_)) | None => Value::String(text.to_owned()),
            Some(value) => value,
        },
        _ => Value::String(text.to_owned()),
    }
}

/// Finds a key that is not in `shape`, or a plain value where a table belongs. `extra` are further keys that are
/// known at the top level.
pub(super) fn check_keys(user: &Table, shape: &Table, extra: &[&str], place: &str) -> Result<(), Fault> {
    walk(user, shape, extra, place, "")
}

fn walk(user: &Table, shape: &Table, extra: &[&str], place: &str, prefix: &str) -> Result<(), Fault> {
    for (key, value) in user {
        let path = format!("{prefix}{key}");
        match (shape.get(key), value) {
            (None, _) if extra.contains(&key.as_str()) => {}
            (None, _) => {
                let mut known: Vec<&str> =
                    shape.keys().map(String::as_str).chain(extra.iter().copied()).collect();
                known.sort_unstable();
                return Err(Fault::Unknown {
                    nearest: nearest(key, known.iter().copied()).map(str::to_owned),
                    key: path,
                    place: place.to_owned(),
                    known: known.into_iter().map(str::to_owned).collect(),
                });
            }
            (Some(Value::Table(shape)), Value::Table(user)) => {
                walk(user, shape, &[], place, &format!("{path}."))?;
            }
            (Some(Value::Table(shape)), value) => {
                let keys: Vec<_> = shape.keys().map(String::as_str).collect();
                let expected = format!("a table with the keys {}", keys.join(", "));
                return Err(wrong(path, place, value, None, expected));
            }
            (Some(_), _) => {}
        }
    }
    Ok(())
}

fn wrong(key: String, place: &str, value: &Value, nearest: Option<String>, expected: String) -> Fault {
    /// Longest value that a message repeats.
    const CHARS_MAX: usize = 60;
    let text = value.to_string();
    let value = match value {
        Value::Table(_) if text.contains('\n') || text.len() > CHARS_MAX => "this table".to_owned(),
        _ if text.len() > CHARS_MAX => "this value".to_owned(),
        _ => text,
    };
    Fault::Value { key, place: place.to_owned(), value, nearest, expected }
}

/// Reads `user` as a `T`, whose shape is `shape`.
pub(super) fn read<T: DeserializeOwned>(user: &Table, shape: &Table, place: &str) -> Result<T, Fault> {
    check_keys(user, shape, &[], place)?;
    let error = match T::deserialize(user.clone()) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mut leaves = Vec::new();
    collect_leaves(user, shape, &mut Vec::new(), &mut leaves);
    for leaf in &leaves {
        let mut probe = shape.clone();
        let path: Vec<&str> = leaf.path.iter().map(String::as_str).collect();
        set_path(&mut probe, &path, leaf.value).expect("the leaf's path is in the shape");
        if let Err(error) = T::deserialize(probe) {
            let (nearest, expected) = explain(error.message(), leaf.shape);
            return Err(wrong(leaf.path.join("."), place, leaf.value, nearest, expected));
        }
    }
    let missing = first_missing::<T>(user, shape, error.message());
    Err(missing.map_or_else(
        || Fault::Invalid { place: place.to_owned(), reason: error.message().to_owned() },
        |(key, value)| Fault::Missing {
            expected: expected_at::<T>(shape, &key, &value),
            key,
            place: place.to_owned(),
        },
    ))
}

/// A value that is not a table, with its counterpart in the shape.
struct Leaf<'a> {
    path: Vec<String>,
    value: &'a Value,
    shape: &'a Value,
}

fn collect_leaves<'a>(user: &'a Table, shape: &'a Table, path: &mut Vec<String>, leaves: &mut Vec<Leaf<'a>>) {
    for (key, value) in user {
        let Some(shape) = shape.get(key) else { continue };
        path.push(key.clone());
        match (value, shape) {
            (Value::Table(user), Value::Table(shape)) => collect_leaves(user, shape, path, leaves),
            _ => leaves.push(Leaf { path: path.clone(), value, shape }),
        }
        path.pop();
    }
}

/// The first key of the shape that is missing in `user` and is the cause of `message`.
fn first_missing<T: DeserializeOwned>(user: &Table, shape: &Table, message: &str) -> Option<(String, Value)> {
    let mut gaps = Vec::new();
    collect_gaps(user, shape, &mut Vec::new(), &mut gaps);
    gaps.into_iter().find_map(|(path, value)| {
        let mut probe = user.clone();
        let keys: Vec<&str> = path.iter().map(String::as_str).collect();
        set_path(&mut probe, &keys, &value).ok()?;
        let cured = T::deserialize(probe).err().is_none_or(|error| error.message() != message);
        cured.then(|| (path.join("."), value))
    })
}

fn collect_gaps(user: &Table, shape: &Table, path: &mut Vec<String>, gaps: &mut Vec<(Vec<String>, Value)>) {
    for (key, value) in shape {
        path.push(key.clone());
        match (user.get(key), value) {
            (None, value) => gaps.push((path.clone(), value.clone())),
            (Some(Value::Table(user)), Value::Table(shape)) => collect_gaps(user, shape, path, gaps),
            _ => {}
        }
        path.pop();
    }
}

/// Kind of value of the key at a dotted path, learnt from the error for a text that is certainly wrong there.
fn expected_at<T: DeserializeOwned>(shape: &Table, key: &str, value: &Value) -> String {
    let mut probe = shape.clone();
    let path: Vec<&str> = key.split('.').collect();
    let wrong = Value::String("?".into());
    match value {
        Value::String(_) if set_path(&mut probe, &path, &wrong).is_ok() => match T::deserialize(probe) {
            Ok(_) => describe(value),
            Err(error) => explain(error.message(), value).1,
        },
        _ => describe(value),
    }
}

/// Kind of value of a key whose valid value is `shape`.
fn describe(shape: &Value) -> String {
    match shape {
        Value::Boolean(_) => "true or false".into(),
        Value::Integer(_) => "a whole number".into(),
        Value::Float(_) => "a number".into(),
        Value::String(text) if text.parse::<Duration>().is_ok() => "a duration such as \"75us\"".into(),
        Value::String(text) if text.parse::<Bytes>().is_ok() => "a size such as \"4KiB\"".into(),
        Value::String(_) | Value::Datetime(_) => "text in quotes".into(),
        Value::Array(list) => format!("a list such as {}", Value::Array(list.clone())),
        Value::Table(table) => {
            let keys: Vec<_> = table.keys().map(String::as_str).collect();
            format!("a table with the keys {}", keys.join(", "))
        }
    }
}

/// Translates serde's error about one value: the nearest choice if there is one, and what was expected.
fn explain(message: &str, shape: &Value) -> (Option<String>, String) {
    let limit = |max: u64| format!("a whole number from 0 to {max}");
    if let Some((before, after)) = message.split_once(", expected ") {
        if before.starts_with("unknown variant") {
            let given = before.split('`').nth(1).unwrap_or("");
            let choices: Vec<&str> = after.split('`').skip(1).step_by(2).collect();
            return (nearest(given, choices.iter().copied()).map(str::to_owned), one_of(&choices));
        }
        let expected = match after.trim() {
            "u8" => limit(u8::MAX.into()),
            "u16" => limit(u16::MAX.into()),
            "u32" => limit(u32::MAX.into()),
            "u64" | "usize" => limit(i64::MAX as u64),
            "f32" | "f64" => "a number".into(),
            "a boolean" => "true or false".into(),
            other if other.starts_with("a number") || other.starts_with("a size") => other.to_owned(),
            _ => describe(shape),
        };
        return (None, expected);
    }
    if message.starts_with("data did not match") {
        return (None, format!("{}, or a list of them", describe(shape)));
    }
    match message.split_once(": expected ") {
        Some((_, expected)) => (None, expected.trim().to_owned()),
        None => (None, describe(shape)),
    }
}

/// `a, b or c`.
pub(super) fn one_of(choices: &[&str]) -> String {
    match choices {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
