//! The page around the figures: header, legend, tables, configuration.
//!
//! Place in the data flow: the last step; see [`super`] for the invariants of the page.

use super::contents::{Report, Text, TextTable};
use super::figures::{self, Figure, Study};
use super::lines::looks;
use super::svg::{escape, shorten};
use crate::results::{Table, device_rows, job_rows};
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// Most characters of a name in the legend, a table or a note.
const NAME_CHARS: usize = 36;

pub(super) fn html(report: &Report<'_>) -> String {
    let study = Study::new(report.runs);
    let title = escape(&report.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/><title>{title}</title>\n\
         <style>/*<![CDATA[*/\n{STYLE}/*]]>*/</style></head><body>\n<header><h1>{title}</h1>"
    );
    for note in &report.notes {
        let _ = write!(out, "<p>{}</p>", escape(note));
    }
    out.push_str("</header>\n");
    legend(&mut out, &study);
    out.push_str("<main>\n");
    let mut all = figures::all(report, &study);
    if let Some(figure) = figures::headline(report, &study, &mut all) {
        show(&mut out, &figure);
    }
    summary(&mut out, report, &study);
    report.tables.iter().for_each(|table| text_table(&mut out, table));
    let (figures, nothing): (Vec<_>, Vec<_>) = all.into_iter().partition(|figure| !figure.panels.is_empty());
    figures.iter().for_each(|figure| show(&mut out, figure));
    if !nothing.is_empty() {
        absent(&mut out, &nothing);
    }
    setup(&mut out, report);
    let _ = write!(
        out,
        "</main>\n<div id=\"tip\" hidden=\"hidden\"></div>\n<script>/*<![CDATA[*/\n{SCRIPT}/*]]>*/</script>\n</body></html>\n"
    );
    out
}

/// The variants with their colours. The script turns them into switches.
fn legend(out: &mut String, study: &Study<'_>) {
    out.push_str("<nav id=\"legend\">");
    for (i, name) in study.variants.iter().enumerate() {
        let _ = write!(
            out,
            "<span class=\"chip\" data-v=\"{i}\" title=\"{}\"><svg viewBox=\"0 0 40 8\" class=\"sample\">\
             <g class=\"{}\"><path d=\"M0 4H40\"/></g></svg><span>{}</span></span>",
            escape(name),
            looks(i),
            escape(&shorten(name, NAME_CHARS)),
        );
    }
    out.push_str("</nav>\n");
}

fn summary(out: &mut String, report: &Report<'_>, study: &Study<'_>) {
    if report.runs.is_empty() {
        return;
    }
    let (jobs, notes) = job_rows(report.runs);
    let devices = device_rows(report.runs);
    let did = match study.has_time() {
        true => "What each device did from the beginning of the run to its end.",
        false => "What each device did after it had settled.",
    };
    out.push_str("<section class=\"s3\"><h2>Summary</h2>");
    for (caption, rows) in [
        ("Measured requests of each job. Latencies count from the intended start of a request.", &jobs),
        (did, &devices),
    ] {
        if !rows.rows.is_empty() {
            table(out, caption, rows, study);
        }
    }
    if study.has_seeds() {
        out.push_str(
            "<p class=\"caption\">In the figures a line is the mean of the seeds, and a band reaches from the least of \
             them to the greatest; ± is half the width of the 95 % confidence interval.</p>",
        );
    }
    if !notes.is_empty() {
        out.push_str("<details class=\"warning\"><summary>Too short to trust: ");
        let _ = write!(out, "{} values</summary><ul>", notes.len());
        for note in &notes {
            let _ = write!(out, "<li>{}</li>", escape(&note.text(NAME_CHARS)));
        }
        out.push_str("</ul></details>");
    }
    out.push_str("</section>\n");
}

fn table(out: &mut String, caption: &str, rows: &Table, study: &Study<'_>) {
    let columns = rows.columns();
    let _ = write!(out, "<p class=\"caption\">{caption}</p><div class=\"scroll\"><table><thead><tr>");
    for name in &rows.names {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    for column in &columns {
        let _ = write!(out, "<th class=\"number\">{}</th>", escape(&column[0]));
    }
    out.push_str("</tr></thead><tbody>");
    for (i, row) in rows.rows.iter().enumerate() {
        let variant = study.variant(&row.names[0], &row.names[1]);
        let swatch =
            variant.map(|v| (format!(" data-v=\"{v}\""), format!("<i class=\"dot c{}\"></i>", v % 8)));
        let (attribute, dot) = swatch.unwrap_or_default();
        let _ = write!(out, "<tr{attribute}>");
        for (nth, name) in row.names.iter().enumerate() {
            let dot = if nth == 0 { dot.as_str() } else { "" };
            let short = shorten(name, NAME_CHARS);
            let whole = if short == *name { String::new() } else { format!(" title=\"{}\"", escape(name)) };
            let _ = write!(out, "<td{whole}>{dot}{}</td>", escape(&short));
        }
        for column in &columns {
            let (value, spread) = (escape(&column[2 * i + 1]), escape(&column[2 * i + 2]));
            let spread = if spread.is_empty() { spread } else { format!("<small>{spread}</small>") };
            let _ = write!(out, "<td class=\"number\">{value}{spread}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn text_table(out: &mut String, table: &TextTable) {
    let _ = write!(
        out,
        "<section class=\"s3\"><h2>{}</h2><div class=\"scroll\"><table class=\"words\"><thead><tr>",
        escape(&table.title)
    );
    for name in &table.columns {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        out.push_str("<tr>");
        for text in row {
            let _ = write!(out, "<td>{}</td>", escape(text));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></section>\n");
}

fn show(out: &mut String, figure: &Figure) {
    let wide = figure.panels.len().clamp(1, 3);
    let _ = write!(
        out,
        "<figure id=\"{}\" class=\"s{wide}\"><h2>{}</h2><figcaption>{}",
        figure.id,
        escape(&figure.heading),
        escape(&figure.caption)
    );
    if !figure.key.is_empty() {
        out.push_str("<span class=\"key\">");
        for (class, name) in &figure.key {
            let swatch = match class.as_str() {
                "" => String::new(),
                line if line.starts_with("line") => format!(
                    "<svg viewBox=\"0 0 40 8\" class=\"sample\"><g class=\"{line}\"><path d=\"M0 4H40\"/></g></svg>"
                ),
                class => format!("<i class=\"{class}\"></i>"),
            };
            let bare = if name.is_empty() { " class=\"bare\"" } else { "" };
            let _ = write!(out, "<span{bare}>{swatch}{}</span>", escape(name));
        }
        out.push_str("</span>");
    }
    out.push_str("</figcaption><div class=\"panels\">");
    for panel in &figure.panels {
        out.push_str(panel);
        out.push('\n');
    }
    out.push_str("</div></figure>\n");
}

/// Figures that have nothing to show, and the reasons.
fn absent(out: &mut String, figures: &[Figure]) {
    out.push_str("<figure class=\"s1\"><h2>Not shown</h2><figcaption>");
    for figure in figures {
        let _ = write!(
            out,
            "<span class=\"row\"><b>{}:</b> {}</span>",
            escape(&figure.heading),
            escape(&figure.caption)
        );
    }
    out.push_str("</figcaption></figure>\n");
}

fn setup(out: &mut String, report: &Report<'_>) {
    out.push_str("<section class=\"s3\" id=\"setup\"><h2>What was simulated</h2>");
    let _ = write!(
        out,
        "<p>Flashweir {}; all times are virtual. The same page again:</p><pre>{}</pre>",
        env!("CARGO_PKG_VERSION"),
        escape(&report.command)
    );
    for (what, texts) in [("Workload", &report.workloads), ("Device", &report.devices)] {
        for Text { name, text } in texts {
            let _ = write!(
                out,
                "<details><summary>{what} {}</summary><pre>{}</pre></details>",
                escape(name),
                escape(text.trim_end())
            );
        }
    }
    out.push_str("</section>\n");
}
