//! A panel with lines: values over time, percentile curves, histograms.
//!
//! Place in the data flow: [`super::figures`] has the values, this file makes one `<svg>` of them.
//!
//! Invariants: all panels have the same size, so that rows of them align; every point lies inside the plot, because
//! scales clamp; a line has a gap where a value is missing, and a single value is still visible.

use super::scale::{Scale, Unit};
use super::svg::{escape, line, open, place, text, title};
use std::fmt::Write as _;

/// Size of a panel.
pub(super) const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 226.0;
/// The plot inside it.
pub(super) const LEFT: f64 = 52.0;
pub(super) const RIGHT: f64 = 390.0;
pub(super) const TOP: f64 = 40.0;
pub(super) const BOTTOM: f64 = 188.0;
/// Most points of a curve that are marked one by one.
const MARKS_MAX: usize = 12;
/// Number of characters of a title that fit.
pub(super) const TITLE_CHARS: usize = 54;

/// A value that holds from `from` to `to`, which are equal for a point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) from: f64,
    pub(super) to: f64,
    /// The value; `None` is a gap.
    pub(super) value: Option<f64>,
    /// Smallest and largest value of the seeds.
    pub(super) spread: Option<(f64, f64)>,
}

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Number of the variant, which determines the colour.
    pub(super) variant: usize,
    /// Name of the line, if a variant has several in one panel.
    pub(super) name: String,
    /// Whether it is thinner and fainter than a main line.
    pub(super) secondary: bool,
    pub(super) points: Vec<Point>,
}

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) unit: Unit,
    pub(super) log: bool,
    /// Values that the axis includes besides those of the lines.
    pub(super) holds: Vec<f64>,
}

/// A panel.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
    /// End of the ramp, during which requests were not measured.
    pub(super) ramp: f64,
}

impl Panel {
    /// Whether there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.iter().all(|point| point.value.is_none()))
    }

    /// Every value that is drawn, with its spread.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.lines.iter().flat_map(|line| &line.points).flat_map(|point| {
            let (low, high) = point.spread.unzip();
            [point.value, low, high].into_iter().flatten()
        })
    }

    fn scales(&self) -> (Scale, Scale) {
        let across = self.lines.iter().flat_map(|line| &line.points).flat_map(|point| [point.from, point.to]);
        let across = across.chain(self.x.holds.iter().copied());
        let values = self.values().chain(self.y.holds.iter().copied());
        let y = match self.y.log {
            true => Scale::logarithmic(values, (BOTTOM, TOP)),
            false => Scale::linear(values, (BOTTOM, TOP)),
        };
        let x = if self.x.log {
            Scale::logarithmic(across, (LEFT, RIGHT))
        } else {
            let (low, high) = across.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
            Scale::exact(low, high, (LEFT, RIGHT))
        };
        (x, y)
    }

    /// The panel as SVG.
    pub(super) fn svg(&self) -> String {
        let (x, y) = self.scales();
        let data = format!(
            " class=\"plot\" role=\"img\" aria-label=\"{}\" data-x=\"{}\" data-y=\"{}\"",
            escape(&self.title),
            x.data(self.x.unit),
            y.data(self.y.unit)
        );
        let mut out = open(WIDTH, HEIGHT, &data);
        title(&mut out, 0.0, 12.0, "title", &self.title, TITLE_CHARS);
        text(&mut out, 0.0, 28.0, "unit", &self.y.label);
        if self.ramp > 0.0 {
            let end = x.at(self.ramp);
            super::svg::rect(&mut out, (LEFT, TOP), (end - LEFT, BOTTOM - TOP), "ramp", "");
            if end - LEFT > 80.0 {
                text(&mut out, LEFT + 4.0, TOP + 12.0, "unit ramped", "not measured");
            }
        }
        for (value, label) in y.ticks(self.y.unit, 4) {
            let at = y.at(value);
            line(&mut out, (LEFT, at), (RIGHT, at), if label.is_some() { "grid" } else { "grid fine" });
            if let Some(label) = label {
                text(&mut out, LEFT - 6.0, at + 3.5, "tick end", &label);
            }
        }
        axis(&mut out, &x, &self.x, BOTTOM);
        // The part that the script moves to zoom is clipped at the edges of the plot.
        let (left, top, width, height) = (LEFT - 2.0, TOP - 3.0, RIGHT - LEFT + 4.0, BOTTOM - TOP + 6.0);
        let _ = write!(
            out,
            "<svg class=\"field\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"{left} {top} {width} {height}\"><g class=\"zoom\">"
        );
        for one in &self.lines {
            one.draw(&mut out, &x, &y);
        }
        out.push_str("</g></svg><path class=\"cursor\" d=\"\"/></svg>");
        out
    }
}

/// The axis below a plot that ends at `bottom`: a line, ticks and a label.
pub(super) fn axis(out: &mut String, scale: &Scale, axis: &Axis, bottom: f64) {
    line(out, (LEFT, bottom), (RIGHT, bottom), "axis");
    out.push_str("<g class=\"across\">");
    for (value, label) in scale.ticks(axis.unit, 6) {
        let at = scale.at(value);
        line(out, (at, bottom), (at, bottom + 4.0), "axis");
        // A label at an end must not leave the panel.
        let anchor = if at > RIGHT - 12.0 { "tick end" } else { "tick middle" };
        let at = if at > RIGHT - 12.0 { RIGHT + 8.0 } else { at };
        text(out, at, bottom + 16.0, anchor, &label.unwrap_or_default());
    }
    out.push_str("</g>");
    text(out, (LEFT + RIGHT) / 2.0, bottom + 32.0, "unit middle", &axis.label);
}

/// Colour and dashes of a variant, as classes. Neighbours differ in both, so that they can be told apart without colours too.
pub(super) fn looks(variant: usize) -> String {
    format!("line c{} d{}", variant % 8, (variant + variant / 8) % 8)
}

impl Line {
    fn draw(&self, out: &mut String, x: &Scale, y: &Scale) {
        let (variant, looks) = (self.variant, looks(self.variant));
        let second = if self.secondary { " second" } else { "" };
        let _ = write!(
            out,
            "<g data-v=\"{variant}\" data-name=\"{}\" class=\"{looks}{second}\">",
            escape(&self.name)
        );
        let runs = self.points.split(|point| point.value.is_none()).filter(|run| !run.is_empty());
        for run in runs {
            if let Some(band) = band(run, x, y) {
                let _ = write!(out, "<path class=\"band\" d=\"{band}\"/>");
            }
            let at = |point: &Point| y.at(point.value.unwrap_or(0.0));
            let mut path = String::new();
            for (i, point) in run.iter().enumerate() {
                let (from, to, height) = (place(x.at(point.from)), place(x.at(point.to)), place(at(point)));
                let _ = match (i, point.from == point.to) {
                    (0, _) => write!(path, "M{from} {height}"),
                    (_, true) => write!(path, "L{from} {height}"),
                    (_, false) => write!(path, "V{height}"),
                };
                if point.from != point.to {
                    let _ = write!(path, "H{to}");
                }
            }
            // A single value, and the points of a short curve, would not be visible as a line.
            let is_curve = run.iter().all(|point| point.from == point.to);
            let is_speck = run.len() == 1 && x.at(run[0].to) - x.at(run[0].from) < 3.0;
            for point in run.iter().filter(|_| is_speck || is_curve && run.len() <= MARKS_MAX) {
                let middle = (x.at(point.from) + x.at(point.to)) / 2.0;
                let _ = write!(out, "<circle cx=\"{}\" cy=\"{}\" r=\"2\"/>", place(middle), place(at(point)));
            }
            let _ = write!(out, "<path d=\"{path}\"/>");
        }
        out.push_str("</g>");
    }
}

/// Outline of the area between the ends of the spreads of successive points.
fn band(run: &[Point], x: &Scale, y: &Scale) -> Option<String> {
    run.iter().any(|point| point.spread.is_some()).then(|| {
        let edge = |point: &Point, pick: fn((f64, f64)) -> f64| {
            y.at(point.spread.map_or(point.value.unwrap_or(0.0), pick))
        };
        let mut path = String::from("M");
        let mut corner = |at: f64, height: f64| {
            let _ = write!(path, "{} {} ", place(x.at(at)), place(height));
        };
        for point in run {
            corner(point.from, edge(point, |spread| spread.1));
            corner(point.to, edge(point, |spread| spread.1));
        }
        for point in run.iter().rev() {
            corner(point.to, edge(point, |spread| spread.0));
            corner(point.from, edge(point, |spread| spread.0));
        }
        path.push('Z');
        path
    })
}
