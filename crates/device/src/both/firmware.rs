//! Two firmwares as one [`Firmware`]: each call goes to the one whose namespace, or whose job, it is about.

use super::ftl::Both;
use super::recover;
use crate::config::DeviceConfig;
use crate::effect::Event;
use crate::firmware::{DeviceOptions, Firmware, Plan};
use crate::flash::{Media, Op, SaveArea, UnitImage};
use crate::geometry::Geometry;
use crate::metrics::DeviceMetrics;
use crate::page::{Cx, Job, PageFtl, Space};
use crate::segment::Segments;
use flashweir_core::command::{APPEND_NAMESPACE, PAGE_NAMESPACE};
use flashweir_core::{Command, DeviceError, Lpn, Payload};
use flashweir_ftl::BlockId;
use std::collections::BTreeSet;

impl Firmware for Both {
    type Job = Job;
    type Placer = Space;

    fn reserved(geometry: &Geometry) -> BTreeSet<BlockId> {
        let of_segments = (0..2).flat_map(|region| geometry.segment_log_blocks(region));
        PageFtl::reserved(geometry).into_iter().chain(of_segments).collect()
    }

    fn new(cx: &Cx, seed: u64) -> Self {
        Self {
            page: PageFtl::new(cx, seed),
            segments: Segments::new(&cx.config, &cx.geometry),
            of_segments: DeviceMetrics::default(),
            told: vec![0; cx.geometry.planes() as usize],
        }
    }

    fn recover(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Self> {
        recover::plan(config, options, media)
    }

    fn recovered(&mut self, cx: &mut Cx) {
        self.page.recovered(cx);
    }

    fn check(&self, cx: &Cx, command: &Command) -> Result<(), DeviceError> {
        match command.ns {
            PAGE_NAMESPACE => self.page.check(cx, command),
            APPEND_NAMESPACE => self.segments.verdict(cx, command),
            _ => Err(DeviceError::InvalidField("the namespaces are number 0, pages, and number 1, segments")),
        }
    }

    fn refused(&mut self, cx: &mut Cx, at: u32) {
        if Self::is_of_segments(cx, at) {
            // Its completion is counted when this returns.
            let of_segments = &mut self.of_segments;
            of_segments.commands += 1;
            of_segments.completions += 1;
            of_segments.errors += 1;
        } else {
            self.page.refused(cx, at);
        }
    }

    fn arrive(&mut self, cx: &mut Cx, at: u32) {
        if Self::is_of_segments(cx, at) {
            self.of_segments.commands += 1;
            self.on_segments(cx, |segments, cx| segments.arrived(cx, at));
        } else {
            self.page.arrive(cx, at);
        }
    }

    fn memory_done(&mut self, cx: &mut Cx, at: u32) {
        if Self::is_of_segments(cx, at) {
            self.on_segments(cx, |segments, cx| segments.moved(cx, at));
        } else {
            self.page.memory_done(cx, at);
        }
    }

    fn done(&mut self, cx: &mut Cx, op: Op<Job>) {
        match op.job {
            Job::Segment(job) => self.on_segments(cx, |segments, cx| segments.done(cx, &op.with_job(job))),
            _ => self.page.done(cx, op),
        }
    }

    fn go_on(&mut self, cx: &mut Cx) {
        self.trade(cx);
    }

    fn placer(&self) -> &Space {
        self.page.placer()
    }

    fn placer_mut(&mut self) -> &mut Space {
        self.page.placer_mut()
    }

    fn opened(&self, op: &Op<Job>) -> u64 {
        match op.job {
            Job::Segment(_) => 0,
            _ => self.page.opened(op),
        }
    }

    fn image(&self, cx: &Cx, op: &Op<Job>, images: &mut Vec<UnitImage>) {
        match op.job {
            Job::Segment(job) => self.segments.image(job, images),
            _ => self.page.image(cx, op, images),
        }
    }

    fn saved(&self, cx: &Cx) -> Option<SaveArea> {
        self.page.saved(cx)
    }

    fn is_volatile(&self, cx: &Cx) -> bool {
        self.page.is_volatile(cx) || self.segments.is_volatile(cx)
    }

    fn is_mapped(&self, lpn: Lpn) -> bool {
        self.page.is_mapped(lpn)
    }

    fn has_lost(&self, lpn: Lpn) -> bool {
        self.page.has_lost(lpn)
    }

    fn content(&self, cx: &Cx, lpn: Lpn) -> Option<Payload> {
        self.page.content(cx, lpn)
    }

    fn prefetch(&self, lpn: Lpn) {
        self.page.prefetch(lpn);
    }

    fn prefetch_for(&self, cx: &Cx, event: Event) {
        self.page.prefetch_for(cx, event);
    }

    fn buffer_use(&self) -> [u64; 3] {
        let (pages, segments) = (self.page.buffer_use(), self.segments.buffer_use());
        [0, 1, 2].map(|nth| pages[nth] + segments[nth])
    }

    fn virtual_pages(&self) -> u64 {
        Firmware::virtual_pages(&self.page)
    }

    fn memory_bytes(&self) -> u64 {
        self.page.memory_bytes() + self.segments.map_bytes().iter().sum::<u64>()
    }

    fn audit(&self, cx: &Cx) {
        self.page.audit(cx);
        self.segments.audit(cx);
        self.audit_pool(cx);
    }

    fn describe(&self, cx: &Cx) -> String {
        self.page.describe(cx) + &self.segments.describe() + &self.describe_pool(cx)
    }
}
