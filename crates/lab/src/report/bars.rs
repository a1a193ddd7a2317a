//! A panel with one stacked bar for each variant, under headings.
//!
//! Invariant: a bar ends inside the panel; its segments are drawn in the order given, and their sum is its length.

use super::lines::WIDTH;
use super::scale::Scale;
use super::svg::{escape, open, rect, shorten, text, title};
use std::fmt::Write as _;

const ROW: f64 = 18.0;
pub(super) const BAR_LEFT: f64 = 150.0;
const BAR_RIGHT: f64 = 312.0;
const NAME_CHARS: usize = 20;

/// One bar.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) variant: usize,
    pub(super) name: String,
    /// Length of each segment.
    pub(super) parts: Vec<f64>,
    /// Label at the end.
    pub(super) label: String,
    /// Half the width of the confidence interval of the sum.
    pub(super) half_width: Option<f64>,
    /// Value to compare the sum with.
    pub(super) reference: Option<f64>,
}

/// Bars under a heading.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) heading: String,
    pub(super) bars: Vec<Bar>,
}

/// All bars as SVG. `classes` is the beginning of the segments' classes, `names` has the names of the segments.
pub(super) fn svg(label: &str, groups: &[Group], classes: &str, names: &[&str]) -> String {
    let all = || groups.iter().flat_map(|group| &group.bars);
    let ends = all().flat_map(|bar| {
        let sum: f64 = bar.parts.iter().sum();
        [Some(sum + bar.half_width.unwrap_or(0.0)), bar.reference].into_iter().flatten()
    });
    let most = ends.fold(0.0, f64::max);
    let x = Scale::exact(0.0, most, (BAR_LEFT, BAR_RIGHT));
    let headings = groups.iter().filter(|group| !group.heading.is_empty()).count();
    let height = (all().count() + headings) as f64 * ROW + 6.0;
    let attributes = format!(" class=\"bars\" role=\"img\" aria-label=\"{}\"", escape(label));
    let mut out = open(WIDTH, height, &attributes);
    let mut y = 0.0;
    for group in groups {
        if !group.heading.is_empty() {
            title(&mut out, 0.0, y + 13.0, "title", &group.heading, super::lines::TITLE_CHARS);
            y += ROW;
        }
        for bar in &group.bars {
            let _ = write!(out, "<g data-v=\"{}\" class=\"c{}\">", bar.variant, bar.variant % 8);
            rect(&mut out, (0.0, y + 5.0), (8.0, 8.0), &format!("swatch c{}", bar.variant % 8), "");
            title(&mut out, 14.0, y + 13.0, "name", &bar.name, NAME_CHARS);
            let mut from = 0.0;
            for (i, part) in bar.parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
                let (left, right) = (x.at(from), x.at(from + part));
                let share = super::scale::decimal(*part, 0.0);
                let tip = format!("<title>{}: {share}</title>", escape(names.get(i).unwrap_or(&"")));
                rect(&mut out, (left, y + 3.0), (right - left, 12.0), &format!("{classes}{i}"), &tip);
                from += part;
            }
            if let Some(half) = bar.half_width {
                let (low, high) = (x.at((from - half).max(0.0)), x.at(from + half));
                super::svg::line(&mut out, (low, y + 9.0), (high, y + 9.0), "whisker");
            }
            if let Some(reference) = bar.reference {
                let at = x.at(reference);
                super::svg::line(&mut out, (at, y + 1.0), (at, y + 17.0), "reference");
            }
            text(&mut out, WIDTH, y + 13.0, "value end", &shorten(&bar.label, 14));
            out.push_str("</g>");
            y += ROW;
        }
    }
    out.push_str("</svg>");
    out
}
