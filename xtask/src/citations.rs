//! Every citation of a specification and every relative link of a document leads somewhere.
//!
//! Place: tests of `cargo xtask check`. They read the texts of the repository and start nothing.
//!
//! A citation is the name of a document in `specs/`, a blank, the section sign and a number, all on one line (`specs/README.md`). Documents
//! number their headings, and their rules in bold at the beginning of a line, an item or a row. A paragraph "Tests: …", which names the
//! tests of a section, must name functions or quoted names in `crates/`.
//!
//! Deliberately absent: links to other hosts, and whether a section says what the citing text claims.

use flashweir_judges::host::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The section sign, which this file itself must not contain.
const SIGN: char = '\u{a7}';

/// Paths in which citations are searched, from the root.
const PLACES: [&str; 14] = [
    "crates",
    "judges",
    "xtask",
    "benches",
    "docs",
    "specs",
    "examples",
    "scenarios",
    "fuzz",
    "include",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
];

/// Extensions of the files that are our texts.
const KINDS: [&str; 9] = ["rs", "md", "toml", "c", "h", "py", "sh", "fio", "f"];

/// A text with its path from the root.
struct Text {
    path: String,
    text: String,
}

impl Text {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Name of a document of `specs/`.
    fn document(&self) -> Option<&str> {
        self.path.strip_prefix("specs/")?.strip_suffix(".md").filter(|name| *name != "README")
    }
}

/// Texts below [`PLACES`], in the order of their paths.
fn texts() -> Vec<Text> {
    let root = root();
    let mut todo: Vec<PathBuf> = PLACES.iter().map(|place| root.join(place)).collect();
    let mut texts = Vec::new();
    while let Some(path) = todo.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                let entries =
                    fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                todo.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
        } else if KINDS.contains(&path.extension().unwrap_or_default().to_string_lossy().as_ref()) {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.strip_prefix(&root).expect("it is below the root").to_string_lossy().into_owned();
            texts.push(Text { path, text });
        }
    }
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    texts
}

/// Number of a section, as in 6.10.
type Number = Vec<u32>;

/// A section or rule: its line and its beginning.
struct Section {
    line: usize,
    title: String,
}

/// Sections of one document, by number.
type Sections = BTreeMap<Number, Section>;

/// A number at the beginning of `text`, and the rest.
fn number(text: &str) -> Option<(Number, &str)> {
    let mut number = Vec::new();
    let mut rest = text;
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        number.push(rest[..digits].parse().ok()?);
        rest = &rest[digits..];
        match rest.strip_prefix('.') {
            Some(more) if more.starts_with(|c: char| c.is_ascii_digit()) => rest = more,
            _ => return Some((number, rest)),
        }
    }
}

fn dotted(number: &[u32]) -> String {
    number.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// Lines of a document outside its code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Number that a line of a document defines, and the rest of the line.
fn defined(line: &str) -> Option<(Number, &str)> {
    if line.starts_with('#') {
        return number(line.trim_start_matches('#').trim_start());
    }
    let line = line.trim_start();
    let line = line.strip_prefix("| ").or_else(|| line.strip_prefix("* ")).unwrap_or(line);
    let (number, rest) = number(line.strip_prefix("**")?)?;
    (number.len() > 1 && rest.starts_with("**")).then_some((number, rest))
}

/// Sections of each document, and their faults.
fn sections(texts: &[Text]) -> (BTreeMap<String, Sections>, Vec<String>) {
    let mut all = BTreeMap::new();
    let mut faults = Vec::new();
    for text in texts {
        let Some(name) = text.document() else { continue };
        let mut sections = Sections::new();
        for (line, content) in prose(&text.text) {
            let Some((number, rest)) = defined(content) else { continue };
            let title = rest.trim_start_matches(['.', ' ', '*', '|']).chars().take(50).collect();
            let shown = dotted(&number);
            if let Some(first) = sections.insert(number, Section { line, title }) {
                faults
                    .push(format!("{}:{line}: {shown} is the number of line {} too", text.path, first.line));
            }
        }
        all.insert(name.to_owned(), sections);
    }
    (all, faults)
}

/// The section that `number` may mean.
fn nearest(sections: &Sections, number: &[u32]) -> String {
    let distance = |other: &Number| {
        let common = other.iter().zip(number).take_while(|(a, b)| a == b).count();
        let gap = match (other.get(common), number.get(common)) {
            (Some(a), Some(b)) => a.abs_diff(*b),
            _ => 0,
        };
        (number.len().max(other.len()) - common, number.len() != other.len(), gap)
    };
    match sections.iter().min_by_key(|(other, _)| distance(other)) {
        Some((other, section)) => {
            format!("nearest is {} in line {}: {}", dotted(other), section.line, section.title.trim())
        }
        None => "it has no numbers".to_owned(),
    }
}

/// Checks the citation whose sign is between `before` and `after`; the sign itself in code passes.
fn cited(documents: &BTreeMap<String, Sections>, before: &str, after: &str) -> Result<(), String> {
    if before.ends_with('`') && after.starts_with('`') {
        return Ok(());
    }
    let name = before.strip_suffix(' ').unwrap_or_default();
    let start = name.trim_end_matches(|c: char| c.is_ascii_lowercase() || c == '-').len();
    let name = &name[start..];
    let Some(sections) = documents.get(name) else {
        let names: Vec<&str> = documents.keys().map(String::as_str).collect();
        return Err(format!("{SIGN} stands behind the name of a document and a blank: {}", names.join(", ")));
    };
    let Some((number, _)) = number(after) else {
        return Err(format!("{name} {SIGN} needs a number"));
    };
    if sections.contains_key(&number) {
        return Ok(());
    }
    let nearest = nearest(sections, &number);
    Err(format!("specs/{name}.md has no {}; {nearest}", dotted(&number)))
}

/// Whether a line, with the beginning of the next one, cites in the old form, by a number alone as in "spec 6.4".
fn is_old(line: &str, next: &str) -> bool {
    let lower = line.to_lowercase();
    let of_sheet = lower.match_indices("spec").any(|(at, word)| {
        let is_word = !lower[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &lower[at + word.len()..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let blanks = rest.trim_start_matches([' ', '`', '/', SIGN]);
        let next = next.trim_start_matches([' ', '/', '!', '#', '*']);
        let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        is_word && (rest.len() > blanks.len() && digit(blanks) || rest.is_empty() && digit(next))
    });
    let by_word = lower.match_indices(".md").any(|(at, _)| {
        let rest = lower[at + 3..].trim_start_matches(['`', ')', ',']);
        let path = lower[..at].rsplit([' ', '(', '`']).next().unwrap_or_default();
        path.contains("specs/") && rest.trim_start().starts_with("section ")
    });
    of_sheet || by_word
}

/// Names in the paths `specs/NAME.md` of a line that are no documents.
fn lost_documents<'a>(line: &'a str, documents: &BTreeMap<String, Sections>) -> Vec<&'a str> {
    let paths = line.match_indices("specs/").filter_map(|(at, start)| {
        let rest = &line[at + start.len()..];
        let (name, _) = rest.split_once(".md")?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        (is_name && !name.is_empty()).then_some(name)
    });
    paths.filter(|name| *name != "README" && !documents.contains_key(*name)).collect()
}

/// Number of the citations of a text, and their faults.
fn citations(text: &Text, documents: &BTreeMap<String, Sections>) -> (usize, Vec<String>) {
    let mut faults = Vec::new();
    let mut count = 0;
    let mut lines = text.text.lines().peekable();
    let mut line_number = 0;
    while let Some(line) = lines.next() {
        line_number += 1;
        let mut fault = |what: String| faults.push(format!("{}:{line_number}: {what}", text.path));
        for (at, sign) in line.match_indices(SIGN) {
            count += 1;
            if let Err(what) = cited(documents, &line[..at], &line[at + sign.len()..]) {
                fault(what);
            }
        }
        if is_old(line, lines.peek().unwrap_or(&"")) {
            fault(format!("a citation of the old form: write the document, a blank, {SIGN} and the number"));
        }
        for name in lost_documents(line, documents) {
            fault(format!("there is no specs/{name}.md"));
        }
    }
    (count, faults)
}

/// Anchors that a Markdown renderer gives to the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug: String =
            kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let again = (1..).map(|n| format!("{slug}-{n}"));
        let free = std::iter::once(slug.clone()).chain(again).find(|slug| !anchors.contains(slug));
        anchors.extend(free);
    }
    anchors
}

/// A line without its code.
fn without_code(line: &str) -> String {
    let mut parts = line.split('`');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    while let (Some(_), Some(text)) = (parts.next(), parts.next()) {
        kept.push_str(text);
    }
    kept
}

/// Targets of the links in a line.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let starts = line.match_indices("](").map(|(at, start)| &line[at + start.len()..]);
    starts.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// `path` without `.` and `..`.
fn straight(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_str().expect("paths are texts")),
            _ => {}
        }
    }
    parts.join("/")
}

/// Faults of the relative links of a document; `exists` knows files that are no texts.
fn links(text: &Text, texts: &[Text], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let here = Path::new(&text.path).parent().expect("a file is in a directory");
    for (line, content) in prose(&text.text) {
        for target in targets(content) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if path.is_empty() { text.path.clone() } else { straight(&here.join(path)) };
            let known = texts.iter().find(|text| text.path == path);
            if known.is_none() && !exists(&path) {
                faults.push(format!("{}:{line}: there is no {path}", text.path));
            } else if let Some(known) = known.filter(|text| text.is_markdown() && !anchor.is_empty())
                && !anchors(&known.text).contains(anchor)
            {
                faults.push(format!("{}:{line}: {path} has no heading #{anchor}", text.path));
            }
        }
    }
    faults
}

/// Names in the paragraphs of a specification that begin with "Tests:", with their lines.
fn tests_named(text: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut in_tests = false;
    for (line, content) in prose(text) {
        in_tests = content.starts_with("Tests:") || in_tests && !content.is_empty();
        if in_tests {
            names.extend(content.split('`').skip(1).step_by(2).map(|name| (line, name)));
        }
    }
    names
}

#[test]
fn citations_lead_to_sections() {
    let texts = texts();
    let (documents, mut faults) = sections(&texts);
    let mut count = 0;
    // The tests of this file have citations that lead nowhere.
    for text in texts.iter().filter(|text| !file!().ends_with(&text.path)) {
        let (found, wrong) = citations(text, &documents);
        count += found;
        faults.extend(wrong);
    }
    assert!(count > 150, "{count} citations: where are they looked for?");
    assert!(faults.is_empty(), "{} of {count} citations lead nowhere:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn citations_in_documents_and_their_links_lead_to_files_and_headings() {
    let (root, texts) = (root(), texts());
    let documents = texts.iter().filter(|text| text.is_markdown());
    let faults: Vec<String> =
        documents.flat_map(|text| links(text, &texts, |path| root.join(path).exists())).collect();
    assert!(faults.is_empty(), "{} links lead nowhere:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn citations_of_tests_name_tests() {
    let texts = texts();
    let code: Vec<&str> = texts
        .iter()
        .filter(|text| text.path.starts_with("crates/") && text.path.ends_with(".rs"))
        .map(|text| text.text.as_str())
        .collect();
    let mut faults = Vec::new();
    for text in texts.iter().filter(|text| text.document().is_some()) {
        for (line, name) in tests_named(&text.text) {
            let (function, quoted) = (format!("fn {name}("), format!("\"{name}\""));
            if !code.iter().any(|code| code.contains(&function) || code.contains(&quoted)) {
                faults.push(format!("{}:{line}: no test is called {name}", text.path));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn citations_start_at_the_index() {
    let texts = texts();
    let index = texts.iter().find(|text| text.path == "specs/README.md").expect("specs/ has an index");
    for name in texts.iter().filter_map(Text::document) {
        let row = format!("[{name}.md]({name}.md) | `{name}` |");
        assert!(index.text.contains(&row), "specs/README.md has no row for {name}: | {row}");
    }
}

#[test]
fn citations_that_lead_nowhere_are_found() {
    let spec =
        "# T\n\n## 4. Order\n\n**4.1** One.\n| **4.2** (o) | two |\n* **4.10** ten\n```\n**9.9** code\n```\n";
    let (documents, faults) = sections(&[Text::new("specs/some-rules.md", spec)]);
    assert!(faults.is_empty());
    assert_eq!(
        documents["some-rules"].keys().map(|n| dotted(n)).collect::<Vec<_>>(),
        ["4", "4.1", "4.2", "4.10"]
    );
    let faults = |line: &str| {
        let line = line.replace('$', &SIGN.to_string());
        citations(&Text::new("crates/x.rs", &line), &documents).1
    };
    for good in [
        "//! It counts (some-rules $4.10).",
        "some-rules $4, some-rules $4.2.",
        "the sign `$`",
        "a specification of 2 kinds",
        "inspect 3",
        "specs/some-rules.md",
    ] {
        assert_eq!(faults(good), Vec::<String>::new(), "{good}");
    }
    for (bad, expected) in [
        (
            "x\n(some-rules $4.3)",
            "crates/x.rs:2: specs/some-rules.md has no 4.3; nearest is 4.2 in line 6: (o)",
        ),
        ("some-rules $9.9", "has no 9.9; nearest is 4"),
        ("(rules $4)", "stands behind the name of a document and a blank: some-rules"),
        ("some-rules\n// $4", "crates/x.rs:2: "),
        ("some-rules $ 4", "needs a number"),
        ("(spec 6.4)", "old form"),
        ("(specs 3.5 and 7)", "old form"),
        ("by way of specs/4-some", "old form"),
        ("(`specs/` 6.1)", "old form"),
        ("the pair (spec\n//! 1.1)", "crates/x.rs:1: a citation of the old form"),
        ("(specs/some-rules.md, section 4)", "old form"),
        ("see specs/none.md", "there is no specs/none.md"),
    ] {
        let found = faults(bad);
        assert!(found.len() == 1 && found[0].contains(expected), "{bad}: {found:?}");
    }
    let twice = sections(&[Text::new("specs/a.md", "## 1. A\n**1.1** a\n**1.1** b\n")]).1;
    assert_eq!(twice, ["specs/a.md:3: 1.1 is the number of line 2 too"]);
}

#[test]
fn citations_by_links_that_lead_nowhere_are_found() {
    let texts = [
        Text::new("docs/a.md", "# Über `x`: y, z\n## Again\n## Again\n[b](../specs/b.md#one) `[c](none)`\n"),
        Text::new(
            "specs/b.md",
            "# B\n## One\n[a](../docs/a.md#über-x-y-z) [a](../docs/a.md#again-1) [x](https://x/#y)\n",
        ),
        Text::new("README.md", "[gone](docs/c.md)\n[there](docs/a.png)\n[not](docs/a.md#two)\n[here](#no)\n"),
    ];
    let faults = |at: usize| links(&texts[at], &texts, |path| path == "docs/a.png");
    assert_eq!((faults(0), faults(1)), (Vec::new(), Vec::new()));
    assert_eq!(
        faults(2),
        [
            "README.md:1: there is no docs/c.md",
            "README.md:3: docs/a.md has no heading #two",
            "README.md:4: README.md has no heading #no",
        ]
    );
}
