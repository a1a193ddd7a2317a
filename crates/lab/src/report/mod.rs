//! The report: one HTML page with all figures of an experiment, variants side by side.
//!
//! Place in the data flow: results with courses and texts come in as plain data, from the command line, from a
//! server, or from files; a page goes out that needs no network and no other file.
//!
//! Invariants: a page is a function of its input, byte by byte; it is well-formed XML; it is readable without
//! its script, which only shows values under the pointer and hides variants.
//!
//! Deliberately absent: a plotting crate (none draws small SVG whose colours follow the reader's colour scheme and
//! whose variants can be hidden), bitmaps, and any date.

mod bars;
mod contents;
mod figures;
mod heat;
mod lines;
mod page;
mod scale;
mod svg;
#[cfg(test)]
mod tests;

pub use contents::{CLOSED_FORM, Curve, CurvePanel, Curves, Report, Text, TextTable};

impl Report<'_> {
    /// The page.
    pub fn html(&self) -> String {
        page::html(self)
    }
}
