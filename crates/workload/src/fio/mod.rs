//! fio job files as workloads of a device, or of files: text in, [`JobSpec`]s out, and [`FioJob`] to run one.
//!
//! Place in the data flow: `parse` (text to sections) → `options` (sections to drafts, with `value` for numbers and
//! `known` for names) → `resolve` (drafts to [`JobSpec`]s for one device) → `job` (the state machine, with
//! `distribution` for its addresses, and `zoned` where writes go to write pointers). On a file system `files` first parses the options about files, and `on_files`
//! runs the jobs.
//!
//! Invariants: a job file that means something else here than in fio is refused or causes a warning; equal specs and
//! seeds make equal requests.
//!
//! Deliberately absent: threads, engines (except for their depth on files), latency targets, the steady state of
//! a group of jobs (each job is judged alone). Where fio's behaviour and its manual differ, the manual holds: with
//! `thinktime` at most `thinktime_blocks` requests are issued between two pauses, and `fsync=N` flushes once after `N`
//! writes, also in a mix with reads. Each pass over a region uses a new order instead of repeating the first one, and
//! the seed of the world replaces `randrepeat`. Contents of `verify` have no header: a unit holds the number of its
//! write, and is compared as a whole.

pub(crate) mod distribution;
mod error;
mod expression;
mod files;
mod job;
mod known;
pub mod on_files;
mod options;
mod parse;
mod resolve;
mod spec;
mod steady;
mod value;
mod zoned;

pub use error::{Fault, FioError};
pub use files::{FileJob, FileJobs, parse_job_file_on_files};
pub use job::FioJob;
pub use resolve::{JobFile, parse_job_file};
pub use spec::{
    Direction, Distribution, JobSpec, Limits, Mix, Parts, Process, Rate, Region, Sequencer, Service, Sizes,
    Steady, Think, Verify, Walk, Zone, ZoneRules,
};
pub use zoned::{Zoned, Zones};

#[cfg(test)]
mod files_tests;
