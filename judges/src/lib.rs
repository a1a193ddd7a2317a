//! Outside judges of our programs: other people's programs, file systems and kernels, which know nothing of this project.
//!
//! Place: `xtask` calls them, all as steps of CI and one by one. They start what cargo has built ([`builds`]) and link none of it.
//! [`steps`], [`host`] and [`packages`] serve the other steps of `xtask` too.
//!
//! Invariants: a judge is never skipped; what it needs and does not find is a failure with its name. Whatever way a judge ends,
//! nothing of it is left behind.
//!
//! Deliberately absent: any logic of the simulator, and which judges CI runs.
#![forbid(unsafe_code)]

pub mod builds;
mod disk;
pub mod ext4;
pub mod f2fs;
pub mod fio_formats;
pub mod host;
pub mod judge;
pub mod live_cuts;
pub mod mount;
pub mod packages;
mod place;
mod program;
mod random;
pub mod serve;
pub mod steps;
mod tree;
mod uml;
