//! Checks of the append namespace that need no state: a command that fails one of them has changed nothing, and so has one that
//! [`super::accept`] refuses when its turn comes.

use super::table::Segments;
use crate::cx::Cx;
use crate::front::check_handle;
use flashweir_core::command::{APPEND_NAMESPACE, OutOfRange, RangeFlush, SegmentId};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Address, Command, Data, DeviceError, Op, command};

type Verdict = Result<(), DeviceError>;

impl Segments {
    /// Refuses a command that the namespace cannot execute, whatever its state.
    pub(crate) fn verdict<J: Copy>(&self, cx: &Cx<J>, command: &Command) -> Verdict {
        let lacks = |what| Err(DeviceError::NotSupported(what));
        match &command.op {
            Op::Read { .. } | Op::Flush | Op::RFlush(_) | Op::Barrier => {}
            Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. } | Op::SegReport { .. } => {}
            Op::Write { .. } | Op::WriteZeroes { .. } => return lacks("writes to sectors in place"),
            Op::Trim { .. } => return lacks("the deallocation of parts of a segment"),
            Op::Share(_) => return lacks("SHARE of segments"),
            Op::PpaRead { .. }
            | Op::PpaWrite(_)
            | Op::PpaErase(_)
            | Op::PpaCopy(_)
            | Op::OpenGeometry
            | Op::ChunkReport { .. }
            | Op::ChunkNotices { .. }
            | Op::BlockMarks { .. }
            | Op::MarkBlocks(_) => return lacks("open channel"),
        }
        cx.front.check_order(command, cx.config.order.policy)?;
        check_handle(command, 1)?;
        if command.epoch.is_some() {
            return lacks("numbered epochs of segments");
        }
        if command.ns != APPEND_NAMESPACE {
            return Err(DeviceError::InvalidField("the append namespace is number 1"));
        }
        match &command.op {
            Op::Read { lba, blocks } => command::check_range(*lba, *blocks, self.capacity_lbas(cx)),
            Op::SegWrite { segment, offset, blocks, data } => {
                self.check_segment(*segment)?;
                self.check_sectors(cx, *segment, (*offset, *blocks), data)
            }
            Op::SegAppend { segment, blocks, data } => {
                self.check_segment(*segment)?;
                self.check_sectors(cx, *segment, (0, *blocks), data)
            }
            Op::SegTrim { segment } | Op::SegReport { segment } => self.check_segment(*segment),
            Op::RFlush(flush) => self.check_range_flush(cx, flush),
            _ => Ok(()),
        }?;
        let changes = matches!(command.op, Op::SegWrite { .. } | Op::SegAppend { .. } | Op::SegTrim { .. });
        if changes && cx.front.read_only { Err(DeviceError::ReadOnly) } else { Ok(()) }
    }

    /// Sectors of the namespace.
    fn capacity_lbas<J: Copy>(&self, cx: &Cx<J>) -> u64 {
        self.states.len() as u64 * cx.geometry.segment_lbas()
    }

    fn check_segment(&self, segment: SegmentId) -> Verdict {
        match (segment.0 as usize) < self.states.len() {
            true => Ok(()),
            false => Err(OutOfRange {
                at: Address::Seg { segment, offset: 0 },
                count: 1,
                capacity: self.states.len() as u64,
            }
            .into()),
        }
    }

    fn check_sectors<J: Copy>(
        &self,
        cx: &Cx<J>,
        segment: SegmentId,
        (offset, blocks): (u32, u32),
        data: &Data,
    ) -> Verdict {
        let at = Address::Seg { segment, offset };
        let per_unit = cx.geometry.lbas_per_unit;
        let sectors = cx.geometry.segment_lbas();
        if u64::from(offset) + u64::from(blocks) > sectors {
            return Err(OutOfRange { at, count: blocks, capacity: sectors }.into());
        }
        if !u64::from(offset).is_multiple_of(per_unit) || !u64::from(blocks).is_multiple_of(per_unit) {
            return Err(DeviceError::Misaligned { at });
        }
        let fits = match data {
            Data::Zero | Data::Pattern(_) => true,
            Data::Bytes(bytes) => bytes.len() as u64 == u64::from(blocks) * LBA_BYTES,
            Data::Units(units) => units.len() as u64 == u64::from(blocks) / per_unit,
        };
        match fits {
            true => Ok(()),
            false => Err(DeviceError::InvalidField("the data are not as long as the range")),
        }
    }

    fn check_range_flush<J: Copy>(&self, cx: &Cx<J>, flush: &RangeFlush) -> Verdict {
        if !flush.tags.is_empty() {
            return Err(DeviceError::NotSupported("tags of segments"));
        }
        let sectors = cx.geometry.segment_lbas();
        for &(segment, upto) in &flush.segments {
            self.check_segment(segment)?;
            if u64::from(upto) > sectors {
                let at = Address::Seg { segment, offset: 0 };
                return Err(OutOfRange { at, count: upto, capacity: sectors }.into());
            }
        }
        let ranges = RangeFlush { segments: Vec::new(), ..flush.clone() };
        ranges.check(self.capacity_lbas(cx))
    }
}
