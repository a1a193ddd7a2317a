//! Tags of range flushes: the owners whose blocks a command makes durable. A file's data have its number.

use flashweir_core::command::Tag;

/// The owner of nodes, tables, summaries and packs. Numbers of inodes have 32 bits.
pub const METADATA: Tag = Tag(1 << 32);

/// The second owner of data that were written over others: no checkpoint newly refers to them.
pub(super) fn in_place_tag(period: u64) -> Tag {
    Tag(3 << 32 | period & u64::from(u32::MAX))
}
