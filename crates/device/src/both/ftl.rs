//! The state of a device with two namespaces, put together, and what each of them counted.

use crate::metrics::DeviceMetrics;
use crate::page::{Cx, PageFtl};
use crate::segment::Segments;
use flashweir_core::command::{APPEND_NAMESPACE, PAGE_NAMESPACE};

/// The firmware of a device with two namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Both {
    pub(crate) page: PageFtl,
    pub(crate) segments: Segments,
    /// What the append namespace counted; the rest of the device's counters is of the page namespace.
    pub(super) of_segments: DeviceMetrics,
    /// Blocks of each plane that segments had when the page namespace was last told.
    pub(super) told: Vec<u32>,
}

impl Both {
    /// Whether a command is one of the append namespace.
    pub(super) fn is_of_segments(cx: &Cx, at: u32) -> bool {
        cx.front.commands.get(at).command.ns == APPEND_NAMESPACE
    }

    /// Does something for the append namespace, and counts it there.
    pub(super) fn on_segments(&mut self, cx: &mut Cx, act: impl FnOnce(&mut Segments, &mut Cx)) {
        let of_pages = cx.metrics.since(&self.of_segments);
        act(&mut self.segments, cx);
        self.of_segments = cx.metrics.since(&of_pages);
    }

    /// The counters of a namespace; `None` if the device does not have it.
    pub(crate) fn metrics_of(&self, cx: &Cx, ns: u16) -> Option<DeviceMetrics> {
        match ns {
            PAGE_NAMESPACE => Some(cx.metrics.since(&self.of_segments)),
            APPEND_NAMESPACE => Some(self.of_segments),
            _ => None,
        }
    }
}
