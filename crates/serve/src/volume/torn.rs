//! What the end of a process leaves of a write that was under way.

use flashweir_device::flash::BlockHealth;
use flashweir_device::geometry::PageAddr;
use flashweir_ftl::BlockId;

/// An interrupted write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Torn {
    /// The next change of a block, which is still what it was.
    Block(BlockId, BlockHealth),
    /// A page, which counts as unreadable: erases and opening of its block.
    Page(PageAddr, u32, u64),
}
