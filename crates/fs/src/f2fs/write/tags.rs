//! Tags of range flushes: the owners whose blocks a command makes durable. The tag of a file's data is the file's inode number.

use flashweir_core::command::Tag;

/// The owner of nodes, tables, summaries and packs. It differs from all inode numbers, which have 32 bits.
pub const METADATA: Tag = Tag(1 << 32);

/// The second owner of data that were written in place: no checkpoint newly refers to them.
pub(super) fn in_place_tag(period: u64) -> Tag {
    Tag(3 << 32 | period & u64::from(u32::MAX))
}
