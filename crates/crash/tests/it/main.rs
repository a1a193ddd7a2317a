//! Integration tests of the crash laboratory: faults that it finds, correct behaviour that it accepts, and replays from
//! tokens.

mod append;
mod both;
mod commands;
mod crash;
mod dftl;
mod file_crash;
mod open;
mod recorded;

/// Prints the violations of a campaign with what replays them; there must be none.
fn assert_no_violation(report: &flashweir_crash::CrashReport) {
    println!("{:?}", report.totals);
    for violation in &report.violations {
        println!("{}\n{}\nweir crash --replay {}", violation.drawing, violation.what, violation.token);
        println!("found as {}", violation.found_as);
    }
    assert!(report.violations.is_empty());
}
