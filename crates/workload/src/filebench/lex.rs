//! Converts text to tokens with their line numbers.
//!
//! Deliberately absent: the meaning of words. The language does not mark the end of a statement: the first word that
//! cannot continue it begins the next one.

use super::error::Fault;

/// A piece of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A name, a number, a path, a variable with its `$`.
    Word(String),
    /// Text in quotes, without them.
    Text(String),
    /// One of `{ } ( ) = ,`.
    Mark(char),
}

impl Token {
    /// Returns the token as written in the file.
    pub(super) fn as_written(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            Self::Text(text) => format!("\"{text}\""),
            Self::Mark(mark) => mark.to_string(),
        }
    }
}

const MARKS: &str = "{}()=,";

/// Splits the text into tokens; a fault comes with its line number.
pub(super) fn tokens(text: &str) -> Result<Vec<(u32, Token)>, (u32, Fault)> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut chars = text.chars().peekable();
    while let Some(&c) = chars.peek() {
        if c == '#' {
            while chars.next_if(|&c| c != '\n').is_some() {}
        } else if c == '\n' {
            line += 1;
            chars.next();
        } else if c.is_whitespace() || c == '\u{feff}' {
            chars.next();
        } else if MARKS.contains(c) {
            chars.next();
            tokens.push((line, Token::Mark(c)));
        } else if c == '"' {
            chars.next();
            let begin = line;
            let mut quoted = String::new();
            loop {
                match chars.next() {
                    Some('"') => break,
                    Some('\\') => match chars.next() {
                        Some('n') => quoted.push('\n'),
                        Some(escaped) => quoted.push(escaped),
                        None => {}
                    },
                    Some(c) => {
                        line += u32::from(c == '\n');
                        quoted.push(c);
                    }
                    None => {
                        let expected = "a closing quotation mark".to_owned();
                        return Err((begin, Fault::Syntax { found: String::new(), expected }));
                    }
                }
            }
            tokens.push((begin, Token::Text(quoted)));
        } else {
            let mut word = String::new();
            while let Some(c) =
                chars.next_if(|&c| !c.is_whitespace() && !MARKS.contains(c) && c != '"' && c != '#')
            {
                word.push(c);
            }
            tokens.push((line, Token::Word(word)));
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_know_their_lines() {
        let text = "set $a=4k # four\n\"x\\\"y\\\\ $a\" {\n a:b;c,d}";
        let word = |w: &str| Token::Word(w.to_owned());
        assert_eq!(
            tokens(text).unwrap(),
            [
                (1, word("set")),
                (1, word("$a")),
                (1, Token::Mark('=')),
                (1, word("4k")),
                (2, Token::Text("x\"y\\ $a".to_owned())),
                (2, Token::Mark('{')),
                (3, word("a:b;c")),
                (3, Token::Mark(',')),
                (3, word("d")),
                (3, Token::Mark('}')),
            ]
        );
        assert_eq!(tokens("a\n\"b\n").unwrap_err().0, 2);
    }
}
