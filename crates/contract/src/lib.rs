//! The crash contract as code (contract §3, crash-laboratory §1): which states a device may show after a power cut.
//!
//! Place in the data flow: a driver records a run in a [`Log`]; the [`Oracle`] judges what is read after a cut at any
//! position of it; [`LegalStates`] enumerates what may be read; the [`ModelDevice`] is a device that implements nothing
//! but these rules; [`LITMUS`] tests are short histories with all their legal states. [`minimise()`] and [`draw()`]
//! make a failure small and readable. [`SegmentLog`] is log and oracle of append segments.
//!
//! Deliberately absent: streams with members in both namespaces of a device.
#![forbid(unsafe_code)]

pub mod draw;
pub mod litmus;
pub mod log;
pub mod minimise;
pub mod model;
pub mod oracle;
pub mod policy;
pub mod program;
pub mod segments;
pub mod states;

pub use draw::draw;
pub use litmus::{LITMUS, Litmus, Outcome};
pub use log::{Content, Kind, Log, LogPos, OpIx, Selection, Submission, Unit, UnitIx};
pub use minimise::minimise;
pub use model::{Contents, ModelDevice};
pub use oracle::{Observed, Oracle, Promise, Promises, Verdict, Violation};
pub use policy::{DeviceKind, Durability, Policy, RangeFlushed};
pub use program::{Request, Step, Target, Value};
pub use segments::{SegmentLog, Shown};
pub use states::{CrashState, Exploration, LegalStates};
