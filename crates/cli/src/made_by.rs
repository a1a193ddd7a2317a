//! Origin of a replay line or a recording: the version of the model, and the commit.
//!
//! Place: printed lines are marked here, and lines that are read are compared with this program.
//!
//! Invariant: a line without a mark, written by hand, is taken as it is.

use flashweir_device::MODEL;
use std::fmt::Display;

/// The commit of this program; empty if unknown.
pub(crate) fn commit() -> &'static str {
    env!("WEIR_COMMIT").trim_matches([' ', '(', ')']).split(' ').next().unwrap_or("")
}

/// A token as it is printed: `v1-c467392:tiny-d1/17/…`.
pub(crate) fn marked(token: &impl Display) -> String {
    let commit = commit();
    format!("v{MODEL}-{}:{token}", if commit.is_empty() { "unknown" } else { commit })
}

/// The token of a line.
///
/// # Errors
/// Another model printed it; both are named.
pub(crate) fn unmarked(line: &str) -> Result<&str, String> {
    let mark = || {
        let (mark, token) = line.strip_prefix('v')?.split_once(':')?;
        let (model, commit) = mark.split_once('-')?;
        Some((model.parse::<u32>().ok()?, commit, token))
    };
    match mark() {
        None => Ok(line),
        Some((MODEL, _, token)) => Ok(token),
        Some((model, commit, _)) => Err(format!(
            "the line is of model {model} (commit {commit}), and this program has model {MODEL}: what happens differs, so replay it with \
             that commit"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_another_model_is_refused_by_name() {
        let token = "f2fs@rflush@7@write:A/foo:0+100@c-";
        assert_eq!(unmarked(&marked(&token)), Ok(token));
        assert_eq!(unmarked(token), Ok(token));
        let error = unmarked("v0-abc1234:tiny-d1/17/2/all/c1/-/-").unwrap_err();
        assert!(error.contains("model 0 (commit abc1234)"), "{error}");
    }
}
