//! Text to sections: the ini syntax of job files, with line numbers for messages.
//!
//! Invariant: entries keep the order of the file, because a later one overrides an earlier one.
//!
//! Deliberately absent: the meaning of options; included files.

use super::error::Fault;

/// One `name=value` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// Line number in the file, from 1.
    pub(super) line: u32,
    /// Text before the `=`.
    pub(super) name: &'a str,
    /// Text after the `=`; `None` for an option without a value.
    pub(super) value: Option<&'a str>,
}

/// A bracketed header and the options that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section<'a> {
    /// Line number of the header, from 1.
    pub(super) line: u32,
    /// Name in the brackets.
    pub(super) name: &'a str,
    /// Options in the order of the file.
    pub(super) entries: Vec<Entry<'a>>,
}

impl Section<'_> {
    /// Whether the section sets defaults for the jobs below it instead of being a job. As in fio, this holds for every
    /// name that begins with `global`.
    pub(super) fn is_global(&self) -> bool {
        self.name.starts_with("global")
    }
}

/// Replaces each `${NAME}` after the `=` of an option with the value of the environment variable. As in fio, an unset
/// variable is replaced with nothing.
pub(super) fn expanded(
    text: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, (u32, Fault)> {
    let mut whole = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let at = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let content = without_comment(line);
        let option = content.split_once('=').filter(|_| !content.starts_with('['));
        let Some((name, value)) = option.filter(|(_, value)| value.contains("${")) else {
            whole.push_str(line);
            continue;
        };
        whole.push_str(name);
        whole.push('=');
        let mut rest = value;
        while let Some((before, after)) = rest.split_once("${") {
            let open = || (at, Fault::Variable { text: format!("${{{after}"), problem: "has no }" });
            let (variable_name, after) = after.split_once('}').ok_or_else(open)?;
            let value = variable(variable_name).unwrap_or_default();
            if value.contains(['\n', ';', '#']) {
                let text = format!("${{{variable_name}}}");
                return Err((
                    at,
                    Fault::Variable { text, problem: "has a value with a line end or a comment in it" },
                ));
            }
            whole.push_str(before);
            whole.push_str(&value);
            rest = after;
        }
        whole.push_str(rest);
        whole.push('\n');
    }
    Ok(whole)
}

/// Splits a job file into its sections; a fault comes with its line number.
pub(super) fn sections(text: &str) -> Result<Vec<Section<'_>>, (u32, Fault)> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let line = u32::try_from(index + 1).unwrap_or(u32::MAX);
        let raw = raw.trim_start_matches('\u{feff}').trim();
        if let Some(rest) = raw.strip_prefix('[') {
            let name = header(rest)
                .filter(|name| !name.is_empty())
                .ok_or_else(|| (line, Fault::Header { text: raw.to_owned() }))?;
            sections.push(Section { line, name, entries: Vec::new() });
            continue;
        }
        let content = without_comment(raw);
        if content.is_empty() {
            continue;
        }
        if content.split_whitespace().next() == Some("include") {
            return Err((line, Fault::Directive { name: "include" }));
        }
        let Some(section) = sections.last_mut() else {
            return Err((line, Fault::Outside { text: content.to_owned() }));
        };
        let (name, value) = match content.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (content, None),
        };
        section.entries.push(Entry { line, name, value });
    }
    Ok(sections)
}

/// Returns the name in a header whose opening bracket was removed; only a comment may follow the closing one.
fn header(rest: &str) -> Option<&str> {
    let (name, tail) = rest.split_once(']')?;
    without_comment(tail).is_empty().then(|| name.trim())
}

/// Returns the line without its comment, which fio allows to begin anywhere.
fn without_comment(line: &str) -> &str {
    line.split([';', '#']).next().unwrap_or(line).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keep_order_lines_and_values() {
        let text = "; head\n[global]\nbs = 4k ; tail\r\n\n[a] # x\nstonewall\n  rw=randrw:8\n[a]\nname=\n";
        let found = sections(text).unwrap();
        assert_eq!(
            found.iter().map(|s| (s.line, s.name)).collect::<Vec<_>>(),
            [(2, "global"), (5, "a"), (8, "a")]
        );
        assert!(found[0].is_global() && !found[1].is_global());
        assert_eq!(found[0].entries, [Entry { line: 3, name: "bs", value: Some("4k") }]);
        assert_eq!(
            found[1].entries,
            [
                Entry { line: 6, name: "stonewall", value: None },
                Entry { line: 7, name: "rw", value: Some("randrw:8") }
            ]
        );
        assert_eq!(found[2].entries, [Entry { line: 9, name: "name", value: Some("") }]);
    }

    #[test]
    fn variables_stand_for_their_values() {
        let variable = |name: &str| match name {
            "SIZE" => Some("4k".to_owned()),
            "BAD" => Some("a;b".to_owned()),
            _ => None,
        };
        let read = |text: &str| expanded(text, &variable);
        assert_eq!(
            read("; ${SIZE}\n[${SIZE}]\nbs=${SIZE} ; ${SIZE}\nname=a${SIZE}-${SIZE}${NONE}b\nrw=read"),
            Ok("; ${SIZE}\n[${SIZE}]\nbs=4k\nname=a4k-4kb\nrw=read".to_owned())
        );
        for (text, problem) in [("\nbs=${SIZE", "has no }"), ("\nbs=${BAD}", "has a value with a line end")] {
            let (line, fault) = read(text).unwrap_err();
            assert!(line == 2 && fault.to_string().contains(problem), "{fault}");
        }
    }

    #[test]
    fn broken_syntax_is_refused_with_its_line() {
        for (text, line) in [("bs=4k", 1), ("\n[a", 2), ("[]", 1), ("[a] b", 1), ("[a]\ninclude x.fio", 2)] {
            assert_eq!(sections(text).unwrap_err().0, line, "{text}");
        }
    }
}
