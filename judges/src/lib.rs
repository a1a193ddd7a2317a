//! Outside judges of our programs: third-party programs, file systems and kernels, which know nothing of this project.
//!
//! Place: `xtask` calls them, all as steps of CI, or one by one. They start programs that cargo has built ([`builds`]) and link none of
//! them. The other steps of `xtask` use [`steps`], [`host`] and [`packages`] too.
//!
//! Invariants: a judge is never skipped; if something that it needs is missing, it fails and names it. However a judge ends, it leaves
//! nothing behind.
//!
//! Deliberately absent: any logic of the simulator, and the choice of judges for CI.
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
