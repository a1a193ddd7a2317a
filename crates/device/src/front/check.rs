//! Checks for every device: commands that contradict themselves or exceed the namespace.
//!
//! Deliberately absent: which commands a firmware supports; the firmware checks that itself.

use super::arrivals::Arrivals;
use super::{Front, Span, range};
use crate::config::PersistPolicy;
use crate::geometry::Geometry;
use flashweir_core::command::Handle;
use flashweir_core::units::LBA_BYTES;
use flashweir_core::{Command, Data, DeviceError, Op, Order, command};

impl Front {
    /// Refuses an order that makes no sense, or that a device with this policy does not keep.
    #[inline]
    pub(crate) fn check_order(&self, command: &Command, policy: PersistPolicy) -> Result<(), DeviceError> {
        let ordered = command.order.is_some() || command.stream.is_some();
        if ordered && policy == PersistPolicy::None {
            return Err(DeviceError::NotSupported("ordered commands"));
        }
        if (ordered || command.op == Op::Barrier) && command.stream.is_none() {
            return Err(DeviceError::InvalidField("an order needs a stream"));
        }
        if let Some(epoch) = command.epoch {
            if epoch.members.is_some() != command.closes_epoch() {
                return Err(DeviceError::InvalidField("an epoch's number of members comes with its barrier"));
            }
            if command.stream.is_none() {
                return Err(DeviceError::InvalidField("the number of an epoch needs a stream"));
            }
        }
        if let (Some(stream), false) = (command.stream, matches!(command.op, Op::Read { .. })) {
            // Its first command may be wrong, too: it would wait for an epoch that never comes.
            let none = Arrivals::default();
            self.arrivals.get(&stream).unwrap_or(&none).check(command.epoch)?;
        }
        if command.op == Op::Barrier && command.order == Some(Order::Within) {
            return Err(DeviceError::InvalidField("a barrier of no length closes an epoch"));
        }
        Ok(())
    }
}

/// Refuses a placement handle that the device does not have, or one of a command that places nothing.
#[inline]
pub(crate) fn check_handle(asked: &Command, handles: u8) -> Result<(), DeviceError> {
    match asked.handle {
        Handle(0) => Ok(()),
        _ if !matches!(asked.op, Op::Write { .. }) => {
            Err(DeviceError::InvalidField("only writes have a placement handle"))
        }
        Handle(handle) if handle < handles => Ok(()),
        _ => Err(DeviceError::InvalidField("the device does not have this placement handle")),
    }
}

/// Refuses a range outside of the namespace, and data that do not fit their range.
#[inline]
pub(crate) fn check_range(asked: &Command, geometry: &Geometry) -> Result<(), DeviceError> {
    if let Some((lba, blocks)) = range(&asked.op) {
        command::check_range(lba, blocks, geometry.capacity_lbas())?;
    }
    match &asked.op {
        Op::Write { blocks, data: Data::Bytes(bytes), .. }
            if bytes.len() as u64 != u64::from(*blocks) * LBA_BYTES =>
        {
            Err(DeviceError::InvalidField("the data are not as long as the range"))
        }
        Op::Write { lba, blocks, data: Data::Units(units) } => {
            let span = Span::new(*lba, *blocks, geometry);
            if span.partial_first || span.partial_last || units.len() as u64 != u64::from(span.len()) {
                return Err(DeviceError::InvalidField("the contents are not those of whole mapping units"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
