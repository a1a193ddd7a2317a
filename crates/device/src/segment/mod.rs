//! The append namespace: a map of whole blocks, no GC (AFTL; append-segments §3).
//!
//! A segment is a list of blocks, one of each lane, and a lane is a plane. Page `p` of a segment is page `p / lanes` of the block of lane
//! `p % lanes`, so sectors find their pages by arithmetic. The state is in [`table`], [`log_queue`], [`moving`], [`order`] and [`quota`].
//!
//! Place in the data flow: a command that passed [`check`] waits in one queue; [`accept`] puts its units into the buffer; pages that
//! are complete go to the queue of their plane ([`program`]); [`log`] makes deallocations and changes of block lists durable; [`moves`]
//! copies blocks whose programs fail, whose tail was torn, whose gaps are filled, or that are worn less than others.
//!
//! Invariants:
//! 1. Pages of a block are programmed in the order of their numbers, and one at a time in each plane.
//! 2. What a power loss leaves of a segment is read from the front: the first page that is not there ends it. A unit is durable when it
//!    and everything in front of it is.
//! 3. The list of blocks that the log names wins over what a block says of itself. A block goes on to take pages behind a copy only when
//!    the record of the copy is durable.
//! 4. Blocks of a deallocated segment are erased, and the next generation is programmed, only after the record of the deallocation is
//!    durable.
//!
//! Deliberately absent: a map of pages, GC, tags, numbered epochs, shared word lines (a program that fails spoils its own page only).

mod accept;
mod audit;
mod check;
mod firmware;
mod ftl;
mod job;
mod log;
mod log_queue;
mod moves;
mod moving;
mod order;
mod program;
mod quota;
mod read;
mod recover;
mod table;

pub(crate) use ftl::AppendFtl;
pub(crate) use job::Job;
pub(crate) use recover::{claim, claim_owned, finish, read};
pub(crate) use table::Segments;
