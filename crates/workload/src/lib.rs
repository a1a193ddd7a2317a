//! Workloads: the requests of a host, as described by fio jobs, recorded traces, filebench models, Postmark's scripts
//! and transaction mixes.
//!
//! Place in the data flow: a workload on the raw device is a state machine that the world polls
//! ([`Workload`](flashweir_sim::workload::Workload)); one on files consists of tasks that call a file system. Neither
//! sees the device.
//!
//! Invariants: a workload is a function of its description, its seed and the completions that it receives; the parser
//! of a description reports each wrong word, and the known one that was probably meant ([`spelling`]).
//!
//! Deliberately absent: devices, and the measurements of a run, which the caller that runs it records.
#![forbid(unsafe_code)]

pub mod filebench;
pub mod fio;
pub mod oltp;
pub mod postmark;
pub mod spelling;
pub mod trace;
