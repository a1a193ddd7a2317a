//! Words as people write them: the known word that a misspelled one was probably meant to be, and words as a shell reads them.

/// Returns the edit distance where an insertion, a deletion, a replacement and an exchange of neighbours cost one each
/// (Damerau and Levenshtein; no part of the word is edited twice).
pub fn edits(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = last[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut cost = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                cost = cost.min(before[j - 2] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

/// Returns the candidate that is spelled most like `word`, if one is close enough: at most one edit per three letters,
/// and at most three. Case is ignored and `-` equals `_`; the first of equals wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let word = plain(word);
    let limit = (word.chars().count() / 3).clamp(1, 3);
    let distances = candidates.into_iter().map(|candidate| (edits(&word, &plain(candidate)), candidate));
    distances.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| *distance <= limit).map(|(_, c)| c)
}

/// Returns a word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=+./,:%@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (from, to, distance) in [
            ("", "", 0),
            ("", "abc", 3),
            ("policy", "polcy", 1),
            ("read", "raed", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edits(from, to), distance, "{from} {to}");
            assert_eq!(edits(to, from), distance, "{to} {from}");
        }
    }

    #[test]
    fn only_what_is_near_is_suggested() {
        let words = ["rflush", "amf", "barrier-ufs", "barrier-850", "policy"];
        for (word, meant) in [
            ("rflsh", Some("rflush")),
            ("AMF", Some("amf")),
            ("barrier_ufs", Some("barrier-ufs")),
            ("barrier", None),
            ("polcy", Some("policy")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), meant, "{word}");
        }
        assert_eq!(nearest("a", []), None);
    }
}
