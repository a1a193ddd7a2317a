//! A panel with the utilisation of each station and channel over time, as shades.
//!
//! Invariants: a shade represents a tenth; equal neighbours are one line, so that the size of the file depends on
//! what happened and not on the number of cells; there are no more rows than can be told apart.

use super::lines::{Axis, LEFT, RIGHT, TITLE_CHARS, WIDTH, axis};
use super::scale::Scale;
use super::svg::{escape, open, place, text, title};
use std::fmt::Write as _;

/// Number of shades besides the one for idle.
pub(super) const SHADES: usize = 10;
/// Most rows of a block; if there are more stations or channels, neighbours share a row.
const ROWS_MAX: usize = 64;
const TOP: f64 = 34.0;

/// Rows of fractions, 0 to 1, with one for each column.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Kind of a row, as in `die`.
    pub(super) name: &'static str,
    pub(super) rows: Vec<Vec<f64>>,
    /// Height of all rows.
    pub(super) height: f64,
}

/// A panel of several blocks, one below the other.
#[derive(Clone, Debug)]
pub(super) struct Heat {
    pub(super) variant: usize,
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) x: Axis,
    /// Edges of the columns, one more than there are columns.
    pub(super) edges: Vec<f64>,
    pub(super) blocks: Vec<Block>,
}

impl Heat {
    /// The panel as SVG.
    pub(super) fn svg(&self) -> String {
        let (first, last) = (self.edges[0], self.edges[self.edges.len() - 1]);
        let x = Scale::exact(first, last, (LEFT, RIGHT));
        let blocks: f64 = self.blocks.iter().map(|block| block.height + 6.0).sum();
        let bottom = TOP + blocks;
        let attributes = format!(
            " class=\"heat\" role=\"img\" data-v=\"{}\" aria-label=\"{}\" data-x=\"{}\"",
            self.variant,
            escape(&self.title),
            x.data(self.x.unit)
        );
        let mut out = open(WIDTH, bottom + 38.0, &attributes);
        title(&mut out, 0.0, 12.0, "title", &self.title, TITLE_CHARS);
        text(&mut out, 0.0, 28.0, "unit", &self.subtitle);
        let mut y = TOP;
        for block in &self.blocks {
            text(&mut out, LEFT - 6.0, y + block.height / 2.0 + 4.0, "tick end", block.name);
            y += block.height + 6.0;
        }
        let _ = write!(
            out,
            "<svg class=\"field\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{0}\" height=\"{blocks}\" viewBox=\"{LEFT} {TOP} {0} \
             {blocks}\"><g class=\"zoom\">",
            RIGHT - LEFT
        );
        let mut y = TOP;
        for block in &self.blocks {
            self.block(&mut out, &x, y, block);
            y += block.height + 6.0;
        }
        out.push_str("</g></svg><path class=\"cursor\" d=\"\"/>");
        axis(&mut out, &x, &self.x, bottom);
        out.push_str("</svg>");
        out
    }

    fn block(&self, out: &mut String, x: &Scale, top: f64, block: &Block) {
        let together = block.rows.len().div_ceil(ROWS_MAX);
        let rows: Vec<Vec<f64>> = block.rows.chunks(together.max(1)).map(mean).collect();
        let height = block.height / rows.len().max(1) as f64;
        super::svg::rect(out, (LEFT, top), (RIGHT - LEFT, block.height), "h0", "");
        let mut paths = vec![String::new(); SHADES + 1];
        for (i, row) in rows.iter().enumerate() {
            let y = place(top + (i as f64 + 0.5) * height);
            let mut from = 0;
            for at in 1..=row.len() {
                if at == row.len() || shade(row[at]) != shade(row[from]) {
                    let (left, right) = (place(x.at(self.edges[from])), place(x.at(self.edges[at])));
                    let _ = write!(paths[shade(row[from])], "M{left} {y}H{right}");
                    from = at;
                }
            }
        }
        let _ = write!(out, "<g stroke-width=\"{}\">", place(height * 1.02));
        for (shade, path) in paths.iter().enumerate().skip(1).filter(|(_, path)| !path.is_empty()) {
            let _ = write!(out, "<path class=\"s{shade}\" d=\"{path}\"/>");
        }
        out.push_str("</g>");
        for (i, row) in rows.iter().enumerate() {
            let spans = self.edges.windows(2).map(|edge| edge[1] - edge[0]);
            let busy: f64 = row.iter().zip(spans).map(|(share, span)| share * span).sum();
            let share = busy / (self.edges[self.edges.len() - 1] - self.edges[0]).max(1.0);
            let numbers = i * together..((i + 1) * together).min(block.rows.len());
            let name = match numbers.len() {
                1 => format!("{} {}", block.name, numbers.start),
                _ => format!("{} {} to {}", block.name, numbers.start, numbers.end - 1),
            };
            let tip = format!("<title>{name}: {:.0} % busy</title>", share * 100.0);
            let y = top + i as f64 * height;
            super::svg::rect(out, (LEFT, y), (RIGHT - LEFT, height), "see-through", &tip);
        }
    }
}

fn shade(share: f64) -> usize {
    match share {
        s if s < 0.005 => 0,
        s => ((s * SHADES as f64).ceil() as usize).clamp(1, SHADES),
    }
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    let column = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64;
    (0..rows.first().map_or(0, Vec::len)).map(column).collect()
}
