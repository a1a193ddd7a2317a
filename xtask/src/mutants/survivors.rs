//! Written explanations of why mutants survive: `docs/evidence/mutants-survivors.toml`.
//!
//! Place: [`super`] reads them after the suites have run.
//!
//! Invariant: an entry identifies a mutant by file, function, operator and texts, so it holds while the code stays and matches nothing
//! once the code changes.

use super::draw::{Drawn, KEYS, is_in_json};
use flashweir_judges::host::root;
use toml::{Table, Value};

pub(crate) const FILE: &str = "docs/evidence/mutants-survivors.toml";

/// Reason why no suite found a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The mutant cannot be distinguished from the unchanged code.
    Equivalent,
    /// No suite reaches a place or state in which it makes a difference.
    OutOfReach,
    /// It makes a difference that a suite should see.
    Hole,
}

impl Reason {
    const ALL: [(Self, &str); 3] =
        [(Self::Equivalent, "equivalent"), (Self::OutOfReach, "out-of-reach"), (Self::Hole, "hole")];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(reason, _)| *reason == self).expect("it is listed").1
    }
}

/// An explained survivor.
#[derive(Debug)]
pub(crate) struct Explained {
    key: [String; 5],
    nth: usize,
    pub(crate) reason: Reason,
    pub(crate) why: String,
}

/// Reads all explanations.
pub(crate) fn read() -> Result<Vec<Explained>, String> {
    let text = std::fs::read_to_string(root().join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
    let table: Table = text.parse().map_err(|error| format!("{FILE}: {error}"))?;
    let entries = table.get("survivor").and_then(Value::as_array).into_iter().flatten();
    entries
        .enumerate()
        .map(|(at, entry)| explained(entry).map_err(|error| format!("{FILE}: entry {}: {error}", at + 1)))
        .collect()
}

fn explained(entry: &Value) -> Result<Explained, String> {
    let word = |key: &str| {
        entry
            .get(key)
            .and_then(Value::as_str)
            .map(String::from)
            .ok_or_else(|| format!("expected a text `{key}`"))
    };
    let given = word("reason")?;
    let reason = Reason::ALL.iter().find(|(_, name)| *name == given);
    let known = Reason::ALL.map(|(_, name)| name).join(", ");
    let reason = reason.ok_or_else(|| format!("reason = {given:?}: expected one of {known}"))?.0;
    let nth = entry.get("nth").map_or(Some(1), Value::as_integer).and_then(|nth| usize::try_from(nth).ok());
    let nth = nth.ok_or("nth: expected a number from 1")?;
    let [file, function, operator, original, mutated] = KEYS.map(word);
    let key = [file?, function?, operator?, original?, mutated?];
    Ok(Explained { key, nth, reason, why: word("why")? })
}

impl Explained {
    /// Whether it explains this mutant, given as JSON.
    pub(crate) fn is_of(&self, mutant: &serde_json::Value) -> bool {
        is_in_json(mutant, &self.key, self.nth)
    }
}

/// Entry for a mutant, which has to be completed.
pub(crate) fn blank(drawn: &Drawn) -> String {
    let mut table = Table::new();
    for (key, text) in KEYS.into_iter().zip(drawn.key()) {
        table.insert(key.into(), Value::String(text));
    }
    if drawn.nth > 1 {
        table.insert("nth".into(), Value::Integer(drawn.nth as i64));
    }
    for key in ["reason", "why"] {
        table.insert(key.into(), Value::String(String::new()));
    }
    format!("[[survivor]]\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::{copy, draw};
    use std::collections::BTreeSet;

    #[test]
    fn every_entry_is_complete_and_of_a_mutant_that_exists() {
        let all = draw::all(&copy::find().expect("the files are there"), &BTreeSet::new());
        let explained = read().expect("the file is there");
        assert!(!explained.is_empty());
        for entry in &explained {
            assert!(entry.why.len() > 20, "{:?} is not explained", entry.key);
            let is_there = all.iter().any(|drawn| entry.key == drawn.key() && entry.nth == drawn.nth);
            assert!(is_there, "no mutant is {:?}; its code has changed: the entry goes", entry.key);
        }
    }

    #[test]
    fn an_entry_without_a_known_reason_is_refused() {
        let entry = "file='a'\nfunction='b'\noperator='c'\noriginal='d'\nmutated=''\nreason='luck'\nwhy='so'";
        let table: Table = entry.parse().expect("it is TOML");
        let error = explained(&Value::Table(table)).expect_err("luck is no reason");
        assert_eq!(error, "reason = \"luck\": expected one of equivalent, out-of-reach, hole");
    }
}
