//! Contents of a report, as plain data.

use flashweir_sim::measure::RunResult;

/// The metric of a run that holds what theory expects of its write amplification.
pub const CLOSED_FORM: &str = "theory.write_amplification";

/// A name and what belongs to it, such as a device and its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Name.
    pub name: String,
    /// Any number of lines.
    pub text: String,
}

/// A curve of results against a parameter, beside the runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The common property of its points, as in `greedy`.
    pub name: String,
    /// Parameter and result, ascending.
    pub points: Vec<(f64, f64)>,
    /// Drawn fainter: what `name` is compared with. It has the colour of the curve before it.
    pub is_reference: bool,
}

/// A figure of curves, in panels that share their parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Heading.
    pub title: String,
    /// One sentence on what was done.
    pub caption: String,
    /// The parameter, with its unit.
    pub parameter: String,
    /// Both axes are logarithmic.
    pub is_logarithmic: bool,
    /// The panels. Curves of the same place have the same colour.
    pub panels: Vec<CurvePanel>,
}

/// Curves of one result.
#[derive(Clone, Debug, PartialEq)]
pub struct CurvePanel {
    /// Heading.
    pub title: String,
    /// The result, with its unit.
    pub result: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextTable {
    /// Heading.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// A text for each column.
    pub rows: Vec<Vec<String>>,
}

/// Contents of a report.
#[derive(Clone, Debug, Default)]
pub struct Report<'a> {
    /// Title of the experiment.
    pub title: String,
    /// State of the devices, seeds, version; a line each.
    pub notes: Vec<String>,
    /// The command line that gives the same page again.
    pub command: String,
    /// Tables above the figures.
    pub tables: Vec<TextTable>,
    /// Every run. Runs of one device and one workload are repeats with different seeds.
    pub runs: &'a [RunResult],
    /// Figures against a parameter.
    pub curves: Vec<Curves>,
    /// The configuration of each device.
    pub devices: Vec<Text>,
    /// The options of each workload.
    pub workloads: Vec<Text>,
}
