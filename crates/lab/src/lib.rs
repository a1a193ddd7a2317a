//! The laboratory: scenarios become experiments, their results become tables, files and pages, and papers' claims are compared with them.
//!
//! Place in the data flow: what a user asks for comes in as a [`scenario`], a claim of a paper ([`reproduce`]), workloads on files
//! ([`files`]) or another simulator's configuration ([`mqsim`]); `flashweir-sim` runs it with the workloads of `flashweir-workload`.
//!
//! Invariants: no clock is read; output that is compared byte by byte has no wall-clock time; results do not depend on the number of
//! worlds that run at once.
//!
//! Deliberately absent: the crash laboratory, which is `flashweir-crash`.
#![forbid(unsafe_code)]

pub mod experiment;
pub mod files;
pub mod mqsim;
pub mod report;
pub mod reproduce;
pub mod results;
pub mod scenario;
