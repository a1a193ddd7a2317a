//! Workloads: what a host asks for, as fio's jobs, recorded traces, filebench's models and mixes of transactions say it.
//!
//! Place in the data flow: a workload on the raw device is a state machine that the world polls
//! ([`Workload`](flashweir_sim::workload::Workload)); one on files is made of tasks that call a file system. Neither sees the device.
//!
//! Invariants: what a workload does is a function of its description, its seed and the completions that it sees; whoever reads a
//! description names each wrong word, and the known one that was probably meant ([`spelling`]).
//!
//! Deliberately absent: devices, and what a run measured, which is recorded by whoever runs it.
#![forbid(unsafe_code)]

pub mod filebench;
pub mod fio;
pub mod oltp;
pub mod spelling;
pub mod trace;
