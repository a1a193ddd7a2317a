//! Contents of a report, as plain data.

use flashweir_sim::measure::RunResult;

/// Metric of a run with the write amplification that theory expects.
pub const CLOSED_FORM: &str = "theory.write_amplification";

/// A named text, such as the configuration of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Name.
    pub name: String,
    /// The text, of any number of lines.
    pub text: String,
}

/// A curve of results against a parameter, beside the runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What its points have in common, as in `greedy`.
    pub name: String,
    /// Parameter and result, ascending. A result that is not a number, or has no place on a logarithmic axis, is a gap.
    pub points: Vec<(f64, f64)>,
    /// Whether it is a reference for the curve before it, drawn fainter in the same colour.
    pub is_reference: bool,
}

/// A figure of curves, in panels that share their parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Heading.
    pub title: String,
    /// Description of the experiment, in one sentence.
    pub caption: String,
    /// Name of the parameter, with its unit.
    pub parameter: String,
    /// Whether both axes are logarithmic.
    pub is_logarithmic: bool,
    /// The panels. Curves at the same position in different panels have the same colour.
    pub panels: Vec<CurvePanel>,
}

/// Curves of one result.
#[derive(Clone, Debug, PartialEq)]
pub struct CurvePanel {
    /// Heading.
    pub title: String,
    /// Name of the result, with its unit.
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
    /// Rows, with a text for each column.
    pub rows: Vec<Vec<String>>,
}

/// Contents of a report.
#[derive(Clone, Debug, Default)]
pub struct Report<'a> {
    /// Title of the experiment.
    pub title: String,
    /// State of the devices, seeds, version; one line each.
    pub notes: Vec<String>,
    /// Command line that makes the same page again.
    pub command: String,
    /// Tables between the summary and the figures.
    pub tables: Vec<TextTable>,
    /// All runs. Runs of one device and one workload are repetitions with different seeds.
    pub runs: &'a [RunResult],
    /// Figures against a parameter.
    pub curves: Vec<Curves>,
    /// Configuration of each device.
    pub devices: Vec<Text>,
    /// Options of each workload.
    pub workloads: Vec<Text>,
}
