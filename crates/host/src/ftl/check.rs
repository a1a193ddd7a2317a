//! What a host FTL refuses before anything happens: requests that contradict themselves, exceed the namespace, or are for another kind of
//! device.
//!
//! Invariant: a refused request changes nothing; it is not even in a stream.

use super::state::HostFtl;
use flashweir_core::command::{Handle, PAGE_NAMESPACE, check_range};
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Address, Command, Data, DeviceError, Op};

impl HostFtl {
    /// Checks a request.
    pub(super) fn check(&self, command: &Command) -> Result<(), DeviceError> {
        if command.ns != PAGE_NAMESPACE {
            return Err(DeviceError::InvalidField("the page namespace, the only one here, is number 0"));
        }
        if command.handle != Handle(0) {
            return Err(DeviceError::InvalidField("a host FTL has one placement handle, number 0"));
        }
        self.orders.check(command, self.config.keeps_order())?;
        let changes = matches!(command.op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Trim { .. });
        if self.is_read_only && changes {
            return Err(DeviceError::ReadOnly);
        }
        let capacity = self.layout.user_units * self.layout.unit_sectors;
        match &command.op {
            Op::Read { lba, blocks } | Op::Trim { lba, blocks } => check_range(*lba, *blocks, capacity),
            Op::Write { lba, blocks, .. } | Op::WriteZeroes { lba, blocks } => {
                check_range(*lba, *blocks, capacity)?;
                let per_unit = self.layout.unit_sectors;
                if !lba.0.is_multiple_of(per_unit) || !u64::from(*blocks).is_multiple_of(per_unit) {
                    return Err(DeviceError::Misaligned { at: Address::Lba(*lba) });
                }
                self.check_data(&command.op, u64::from(*blocks))
            }
            Op::Barrier => Ok(()),
            Op::Flush => self.check_streams(),
            Op::RFlush(flush) => flush.check(capacity).and_then(|()| self.check_streams()),
            Op::Share(_) => Err(DeviceError::NotSupported("SHARE")),
            _ => Err(DeviceError::NotSupported("physical addresses and segments above a host FTL")),
        }
    }

    fn check_data(&self, op: &Op, blocks: u64) -> Result<(), DeviceError> {
        match op {
            Op::Write { data: Data::Bytes(bytes), .. } if bytes.len() as u64 != blocks * LBA_BYTES => {
                Err(DeviceError::InvalidField("the data are not as long as the range"))
            }
            Op::Write { data: Data::Units(units), .. }
                if units.len() as u64 != blocks / self.layout.unit_sectors =>
            {
                Err(DeviceError::InvalidField("the contents are not those of whole mapping units"))
            }
            _ => Ok(()),
        }
    }

    /// A stream that lost a member fails whoever waits for durability (contract §9.20).
    fn check_streams(&self) -> Result<(), DeviceError> {
        self.orders.failed().map_or(Ok(()), |stream| Err(DeviceError::StreamFailed(stream)))
    }
}
