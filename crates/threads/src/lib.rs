//! pblk and QBLKe on real threads: the parts whose speed on many CPUs is in question (open-channel §1.9, open-channel §2).
//!
//! Place: beside `host/src/ftl`, which is the same FTL as a state machine in virtual time. Words of the map and formulas of the
//! limiters are those of `flashweir-ftl` in both.
//!
//! Unsafe code is in [`spin`] alone: contents that threads share are atomic words ([`content`]).

pub mod content;
pub mod limiter;
pub mod map;
pub mod pool;
pub mod spin;
mod sync;
