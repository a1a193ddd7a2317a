//! The few elements of SVG and HTML that all figures share.

use std::fmt::Write as _;

/// Escapes a text for its place between tags or in quotes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML forbids control characters.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A text of at most `most` characters; an ellipsis in the middle shows that some are missing, because names of
/// variants often differ at their end.
pub(super) fn shorten(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail)).collect()
}

/// A coordinate with two decimals, more than which cannot be seen.
pub(super) fn place(at: f64) -> String {
    debug_assert!(at.is_finite());
    super::scale::decimal(at, 0.01)
}

/// Start tag of an `<svg>` of this size; `attributes` begins with a blank if it is not empty.
pub(super) fn open(width: f64, height: f64, attributes: &str) -> String {
    format!("<svg viewBox=\"0 0 {width} {height}\"{attributes}>")
}

/// A text at a point; `class` also says how it is anchored.
pub(super) fn text(out: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let _ =
        write!(out, "<text x=\"{}\" y=\"{}\" class=\"{class}\">{}</text>", place(x), place(y), escape(text));
}

/// A title that is shortened if it would not fit; a tooltip then shows all of it.
pub(super) fn title(out: &mut String, x: f64, y: f64, class: &str, full: &str, most: usize) {
    let short = shorten(full, most);
    if short == full {
        return text(out, x, y, class, full);
    }
    let (x, y) = (place(x), place(y));
    let _ = write!(
        out,
        "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}<title>{}</title></text>",
        escape(&short),
        escape(full)
    );
}

/// A straight line.
pub(super) fn line(out: &mut String, from: (f64, f64), to: (f64, f64), class: &str) {
    let _ = write!(
        out,
        "<path class=\"{class}\" d=\"M{} {}L{} {}\"/>",
        place(from.0),
        place(from.1),
        place(to.0),
        place(to.1)
    );
}

/// A filled rectangle; `inside` is its content, such as a title.
pub(super) fn rect(out: &mut String, (x, y): (f64, f64), (w, h): (f64, f64), class: &str, inside: &str) {
    let _ = write!(
        out,
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{class}\">{inside}</rect>",
        place(x),
        place(y),
        place(w.max(0.0)),
        place(h.max(0.0))
    );
}
