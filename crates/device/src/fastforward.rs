//! The FTL without time, for callers: writes single units, one after the other, on a quiet device.

use crate::device::Device;
use crate::page::UnitWriter;
use flashweir_core::{Lpn, Payload};

/// Writes units without taking virtual time. [`FastForward::finish`] ends it.
#[derive(Debug)]
pub struct FastForward<'a> {
    device: &'a mut Device,
    writer: UnitWriter,
}

impl<'a> FastForward<'a> {
    /// Begins on a quiet device whose deallocations are durable.
    ///
    /// # Panics
    /// It is not quiet, a deallocation is not on the medium, or an epoch is not complete.
    pub fn new(device: &'a mut Device) -> Self {
        assert!(device.is_quiet(), "time stands still only for a quiet device");
        let (firmware, cx) = device.page_mapped();
        let writer = UnitWriter::new(firmware, cx);
        Self { device, writer }
    }

    /// The device in its current state, without the units that wait for their page to be full.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Writes one logical page.
    #[inline]
    pub fn write(&mut self, lpn: Lpn, payload: Payload) {
        let (firmware, cx) = self.device.page_mapped();
        self.writer.write(firmware, cx, lpn, payload);
    }

    /// Pads the pages that are not full, and completes word lines whose later pages could destroy earlier ones.
    pub fn finish(self) {
        let (firmware, cx) = self.device.page_mapped();
        self.writer.finish(firmware, cx);
    }
}
