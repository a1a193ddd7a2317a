//! The crash laboratory (crash-laboratory §3): tiny devices, random histories, a power cut at every event.
//!
//! Place in the data flow: [`devices`] × seeds make worlds; [`explorer`] cuts each at every event, recovers the media
//! and asks the contract's oracle; a violation is minimised and becomes one line, its [`Token`], that replays it.
//! [`explore`] does this for many worlds; [`mutation_score`] measures which planted bugs it finds.
//!
//! Invariants: a report is a function of its configuration, whatever the number of threads; nothing here reads a clock.
#![forbid(unsafe_code)]

mod append;
mod both;
pub mod bug;
pub mod campaign;
pub mod devices;
pub mod explorer;
pub mod files;
mod host_ftl;
mod layer;
pub mod litmus;
mod open;
pub mod recorded;
pub mod replay;
mod ruled;
pub mod sim;
pub mod token;
pub mod workload;

pub use bug::Bug;
pub use campaign::{CrashConfig, CrashProgress, CrashReport, Mutant, MutationScore, explore, mutation_score};
pub use explorer::{Counts, Effort, Fault, current_case};
pub use litmus::{LitmusResult, litmus};
pub use replay::{Replayed, ViolationReport, describe, replay};
pub use token::Token;
