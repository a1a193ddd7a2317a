//! Recovery after a power cut: it reads the medium, then writes in a few steps.
//!
//! A cut between or inside these steps leaves a medium from which recovery begins anew.
//!
//! Invariant: the device takes commands only after the last step.

use crate::config::DeviceConfig;
use crate::device::Device;
use crate::firmware::DeviceOptions;
use crate::flash::plan::Step;
use crate::flash::{Media, RecoveryReport, Torn};
use crate::planted::PlantedBug;

/// A recovery under way.
#[derive(Clone, Debug)]
pub struct Recovery {
    device: Device,
    planted: Option<PlantedBug>,
    steps: Vec<Step>,
    next: usize,
    report: RecoveryReport,
}

impl Recovery {
    /// Reads the medium and plans what to write. `config` must be the one with which the medium was written, with metadata and
    /// contents.
    pub fn begin(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Self {
        let (device, steps, report) = Device::recover(config, options, media);
        Self { device, planted: options.planted, steps, next: 0, report }
    }

    /// Number of steps that are left.
    pub fn steps_left(&self) -> usize {
        self.steps.len() - self.next
    }

    /// Executes the next step; returns false if there is none.
    pub fn advance(&mut self) -> bool {
        let Some(step) = self.steps.get(self.next) else { return false };
        step.apply(self.device.media_mut(), Torn::Done);
        self.next += 1;
        true
    }

    /// The medium after a power cut now, in the middle of the next step.
    pub fn cut(&self, torn: Torn) -> Media {
        let mut media = self.device.media().clone();
        if let Some(step) = self.steps.get(self.next) {
            step.apply(&mut media, torn);
        }
        if self.next > 0 && self.planted == Some(PlantedBug::SaveClearedEarly) {
            media.set_save_area(None);
        }
        media
    }

    /// What the recovery found, and how long it takes.
    pub fn report(&self) -> RecoveryReport {
        self.report
    }

    /// Executes all remaining steps; the device takes commands from then on.
    pub fn finish(mut self) -> (Device, RecoveryReport) {
        while self.advance() {}
        self.device.recovered();
        (self.device, self.report)
    }
}
