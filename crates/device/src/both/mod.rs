//! A page namespace and an append namespace at once, on one flash with one pool of blocks (append-segments §3.10).
//!
//! The firmware holds one of each ([`crate::page`], [`crate::segment`]) and routes commands by their namespace and operations by their
//! job. Each of them has its own buffer, log and regions of metadata; flash, pool, link and the numbers of commands are common.
//!
//! A free block belongs to nobody: whoever asks first takes the least worn one, so wear-levelling of either namespace sees all blocks.
//! [`trade`] keeps the two from starving each other.
//!
//! Invariants:
//! 1. A block has one owner. Pages own what is open or closed, segments what their lists, log and copies name; the pool says which.
//! 2. A block is in the pool only when it is erased, and it is erased only when its owner's records no longer need it.
//! 3. Segments leave the free blocks that GC of the pages needs, and host data of pages leave one more where a segment waits for it.
//! 4. Recovery takes the blocks of segments out of the pool before it takes all others that hold anything for blocks of pages.
//!
//! Deliberately absent: an order between the namespaces. A FLUSH covers the namespace that it names, and streams are not kept.

mod audit;
mod firmware;
mod ftl;
mod recover;
mod trade;

pub(crate) use ftl::Both;
