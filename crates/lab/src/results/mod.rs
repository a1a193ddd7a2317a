//! Views of results: tables, statistics, CSV, fio's JSON.
//!
//! Place in the data flow: views of stored [`RunResult`](flashweir_sim::measure::RunResult)s and
//! [`WorkloadResult`](flashweir_sim::measure::WorkloadResult)s.
//!
//! Invariants: everything here is a function of stored results; a view changes no number.
//!
//! Deliberately absent: wall-clock times (the command line shows the speed of the simulator itself) and
//! judgements of devices (ratios of variants belong to a report).

mod calls;
mod csv;
mod fio_json;
mod stats;
mod table;

pub use calls::call_table;
pub use csv::{CSV_COLUMNS, write_csv};
pub use fio_json::{Grouping, fio_json};
pub use stats::{
    Drift, Estimate, STEADY_WINDOWS, Shortfall, Steadiness, batch_means, estimate, mser5, shortfalls, steady,
    student_t_95,
};
pub use table::{BELOW_ONE, TERMINAL_WIDTH, device_table, job_table};
pub(crate) use table::{Table, device_rows, groups, job_rows};
