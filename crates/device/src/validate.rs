//! Validation of a configuration: each key is checked once, with errors that name key, value and range.

use crate::config::{
    Allocation, AppendConfig, BufferConfig, BufferMode, ChunkSpan, DeviceConfig, EraseTime, FirmwareKind,
    FtlConfig, Metadata, OpenConfig, OpenVersion, OrderConfig, PageTimes, PersistPolicy, Translation,
};
use crate::geometry::Geometry;
use flashweir_core::Duration;
use flashweir_core::command::{Handle, PLACES_MAX};
use flashweir_core::units::LBA_BYTES;
use flashweir_ftl::map_log::recent_records_max;
use flashweir_ftl::map_page;
use flashweir_ftl::map_records::records_per_page;

/// Longest time of one operation, so that no sum of times overflows.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// The error for a key of the configuration whose value is wrong.
fn bad<T>(key: &str, value: impl std::fmt::Display, expected: &str) -> Result<T, String> {
    Err(format!("{key} = {value}: expected {expected}"))
}

fn within(key: &str, value: u32, low: u32, high: u32) -> Result<(), String> {
    if (low..=high).contains(&value) { Ok(()) } else { bad(key, value, &format!("{low} to {high}")) }
}

fn fraction(key: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { bad(key, value, "0 to 1") }
}

impl DeviceConfig {
    /// Checks every key; the error names the key, its value and the expected range.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_geometry()?;
        self.validate_timing()?;
        match self.firmware {
            FirmwareKind::Page => {
                self.validate_buffer()?;
                self.validate_order()?;
            }
            FirmwareKind::Append => {
                self.validate_buffer()?;
                self.validate_append()?;
            }
            FirmwareKind::PageAndAppend => {
                self.validate_buffer()?;
                self.validate_both()?;
            }
            FirmwareKind::OpenChannel => self.validate_open()?,
        }
        self.link.validate()?;
        for (key, value) in [
            ("faults.factory_bad", self.faults.factory_bad),
            ("faults.program_fail", self.faults.program_fail),
            ("faults.erase_fail", self.faults.erase_fail),
        ] {
            if !(0.0..=0.5).contains(&value) {
                return bad(key, value, "0 to 0.5");
            }
        }
        if !(0.0..=1.0).contains(&self.faults.chunk_goes_on) {
            return bad("faults.chunk_goes_on", self.faults.chunk_goes_on, "0 to 1");
        }
        if !(0.0..=1.0).contains(&self.faults.refresh) {
            return bad("faults.refresh", self.faults.refresh, "0 to 1");
        }
        if self.firmware != FirmwareKind::OpenChannel {
            self.validate_not_open()?;
        }
        if !self.firmware.has_segments() && self.append != AppendConfig::default() {
            return bad("[append]", "set", "firmware = \"append\" or \"page-and-append\"");
        }
        if let Some(protected) = self.buffer.protected
            && self.buffer.mode != BufferMode::PowerLossProtected
        {
            return bad("buffer.protected", protected, "none, or buffer.mode = \"power-loss-protected\"");
        }
        match self.firmware {
            FirmwareKind::Page => self.validate_space(),
            FirmwareKind::Append => self.validate_segments(),
            FirmwareKind::PageAndAppend => {
                self.validate_segments()?;
                self.validate_space()
            }
            FirmwareKind::OpenChannel => Ok(()),
        }
    }

    /// Two namespaces on one pool of blocks: what is built of each of them (append-segments §3.12).
    fn validate_both(&self) -> Result<(), String> {
        let refuse = |key: &str, value: &str, expected: &str| {
            bad(key, value, &format!("{expected} with firmware = \"page-and-append\""))
        };
        if self.append.segments == 0 {
            return refuse(
                "append.segments",
                "0",
                "the number of segments, which decides what is left to pages,",
            );
        }
        if self.append.erase != EraseTime::Background {
            return refuse(
                "append.erase",
                "first-write",
                "background, since pages are written to free blocks at once,",
            );
        }
        if self.ftl.translation != Translation::Resident {
            return refuse("ftl.translation", "demand-cached", "resident");
        }
        if self.ftl.allocation != Allocation::Static {
            let expected =
                "static, so that each plane holds its share of the pages and can make room for segments,";
            return refuse("ftl.allocation", "dynamic", expected);
        }
        if self.ftl.metadata != Metadata::Log {
            return refuse("ftl.metadata", "none", "log");
        }
        if self.ftl.share.pages > 0 {
            return bad("ftl.share.pages", self.ftl.share.pages, "0 with firmware = \"page-and-append\"");
        }
        if self.buffer.mode == BufferMode::PowerLossProtected {
            return refuse("buffer.mode", "power-loss-protected", "write-back or write-through");
        }
        if self.buffer.exclusive_flush {
            return refuse("buffer.exclusive_flush", "true", "false");
        }
        if self.order != OrderConfig::default() {
            return refuse("[order]", "not empty", "no keys, since a stream has one namespace,");
        }
        if self.faults.paired_page_loss {
            return refuse("faults.paired_page_loss", "true", "false");
        }
        let per_page = (self.geometry.page_bytes.0 / self.geometry.unit_bytes.0) as u32;
        if !(0.0..=1.0).contains(&self.append.buffer_share)
            || self.buffer_units().iter().any(|units| *units < per_page)
        {
            let expected = "a fraction of buffer.capacity that leaves a page or more to each namespace";
            return bad("append.buffer_share", self.append.buffer_share, expected);
        }
        Ok(())
    }

    /// Segments have no map of pages, and streams of one kind, so these keys must have their defaults.
    fn validate_append(&self) -> Result<(), String> {
        if self.ftl != FtlConfig::default() {
            return bad("[ftl]", "not empty", "firmware = \"page\", since segments have no map of pages");
        }
        let order = &self.order;
        if order.fuse_epochs != 1 || order.penalty != 0.0 {
            return bad(
                "order.fuse_epochs, order.penalty",
                "set",
                "their defaults with firmware = \"append\"",
            );
        }
        match order.policy {
            PersistPolicy::None => {}
            PersistPolicy::InOrderWriteBack if self.geometry.page_bytes == self.geometry.unit_bytes => {}
            PersistPolicy::InOrderWriteBack => {
                let expected = "geometry.unit_bytes, since epochs of segments end at flash pages";
                return bad("geometry.page_bytes", self.geometry.page_bytes, expected);
            }
            PersistPolicy::Transactional | PersistPolicy::InOrderRecovery => {
                return Err(
                    "order.policy: expected none or in-order-write-back with firmware = \"append\"".into()
                );
            }
        }
        if order.policy != PersistPolicy::None && self.buffer.mode == BufferMode::WriteThrough {
            return Err("order.policy: expected \"none\" where buffer.mode = \"write-through\", which has nothing to order".into());
        }
        if self.faults.paired_page_loss {
            let expected = "false with firmware = \"append\", where a page is durable when its program ends";
            return bad("faults.paired_page_loss", true, expected);
        }
        if self.buffer.exclusive_flush {
            return bad("buffer.exclusive_flush", true, "false with firmware = \"append\"");
        }
        Ok(())
    }

    fn validate_segments(&self) -> Result<(), String> {
        let append = &self.append;
        within("append.spare_blocks", append.spare_blocks, 2, self.geometry.blocks_per_plane)?;
        self.validate_over_provisioning()?;
        let geometry = Geometry::new(self);
        let planes = geometry.planes();
        if append.lanes > planes || (append.lanes > 0 && !planes.is_multiple_of(append.lanes)) {
            let expected = format!("0, or a part of the {planes} planes into which they can be divided");
            return bad("append.lanes", append.lanes, &expected);
        }
        let lanes = geometry.append.lanes;
        let units = u64::from(lanes) * u64::from(geometry.units_per_block());
        if units >= 1 << 31 || units * geometry.lbas_per_unit > u64::from(u32::MAX) {
            let expected = "fewer: a segment has fewer than 2^31 units and 2^32 sectors of 512 bytes";
            return bad("append.lanes", lanes, expected);
        }
        let groups = planes / lanes;
        let segments_max = groups * geometry.segment_blocks_per_plane(append.spare_blocks);
        let segments = geometry.append.segments;
        if segments == 0 || segments > segments_max {
            let expected = format!(
                "1 to {segments_max}: a plane has {} blocks, less {} for the log, {} bad ones and {} spare ones",
                self.geometry.blocks_per_plane,
                geometry.reserved_blocks_per_plane(),
                geometry.factory_bad_max(),
                append.spare_blocks
            );
            return bad("append.segments", segments, &expected);
        }
        if segments >= 1 << 29 {
            return bad("append.segments", segments, "fewer than 2^29");
        }
        if !segments.is_multiple_of(groups) {
            let expected = format!("a multiple of {groups}, so that each group of planes has as many");
            return bad("append.segments", segments, &expected);
        }
        Ok(())
    }

    /// An open channel has no map, no buffer and no streams, and answers a program only when it has ended, so these keys must have
    /// their defaults.
    fn validate_open(&self) -> Result<(), String> {
        let page = "firmware = \"page\", since an open channel has nothing of it";
        if self.ftl != FtlConfig::default() {
            return bad("[ftl]", "not empty", page);
        }
        if self.buffer != BufferConfig::default() {
            return bad("[buffer]", "not empty", page);
        }
        if self.order != OrderConfig::default() {
            return bad("[order]", "not empty", page);
        }
        if self.faults.paired_page_loss {
            let expected = "false with firmware = \"open-channel\", which answers each program by itself";
            return bad("faults.paired_page_loss", true, expected);
        }
        let open = &self.open;
        let planes = match open.chunk {
            ChunkSpan::Plane => 1,
            ChunkSpan::Die => self.geometry.planes_per_die,
        };
        let pages = planes * self.geometry.pages_per_block;
        let units_per_page = (self.geometry.page_bytes.0 / self.geometry.unit_bytes.0) as u32;
        let pages_max = PLACES_MAX as u32 / units_per_page;
        let is_whole = |count: u32| count > 0 && count <= pages_max && pages.is_multiple_of(count);
        if !is_whole(open.write_pages) || !open.write_pages.is_multiple_of(planes) {
            let expected = format!(
                "1 to {pages_max}, a multiple of the {planes} planes of a chunk that divides its {pages} pages: a command names at \
                 most {PLACES_MAX} units"
            );
            return bad("open.write_pages", open.write_pages, &expected);
        }
        let best = open.write_best_pages;
        if best != 0 && (best > pages_max || !best.is_multiple_of(open.write_pages)) {
            let expected = format!("0, or a multiple of open.write_pages up to {pages_max}");
            return bad("open.write_best_pages", best, &expected);
        }
        within("open.cached_units", open.cached_units, 0, pages * units_per_page)?;
        if open.version == OpenVersion::V12 && open.max_open != 0 {
            return bad(
                "open.max_open",
                open.max_open,
                "0 with open.version = \"1.2\", which has no such limit",
            );
        }
        Ok(())
    }

    /// Keys of the open channel must have their defaults on another device.
    fn validate_not_open(&self) -> Result<(), String> {
        if self.open != OpenConfig::default() {
            return bad("[open]", "not empty", "firmware = \"open-channel\"");
        }
        for (key, value) in
            [("faults.chunk_goes_on", self.faults.chunk_goes_on), ("faults.refresh", self.faults.refresh)]
        {
            if value != 0.0 {
                return bad(key, value, "0, or firmware = \"open-channel\"");
            }
        }
        Ok(())
    }

    /// Returns an error for a device on which jobs cannot run: one without pages and without segments.
    pub fn check_jobs(&self) -> Result<(), String> {
        match self.firmware {
            FirmwareKind::Page | FirmwareKind::Append | FirmwareKind::PageAndAppend => Ok(()),
            FirmwareKind::OpenChannel => self.check_page_namespace().map_err(|reason| {
                format!(
                    "{reason}, or a host FTL above it: --host-ftl pblk or qblke, or [host_ftl] in a scenario"
                )
            }),
        }
    }

    /// Returns an error for a device without a page namespace, which everything that reads and writes sectors needs.
    pub fn check_page_namespace(&self) -> Result<(), String> {
        match self.firmware {
            FirmwareKind::Page | FirmwareKind::PageAndAppend => Ok(()),
            FirmwareKind::Append => bad(
                "firmware",
                "append",
                "page: a host that writes sectors in place needs a device with a page namespace (of the card of AMF there are `amf-page`, `amf-dftl` and `amf-fdp`)",
            ),
            FirmwareKind::OpenChannel => bad(
                "firmware",
                "open-channel",
                "page: a host without an FTL of its own needs a device with a page namespace (of the medium of QBLKe there is `qblke-page`)",
            ),
        }
    }

    fn validate_geometry(&self) -> Result<(), String> {
        let g = &self.geometry;
        within("geometry.channels", g.channels, 1, 256)?;
        within("geometry.chips_per_channel", g.chips_per_channel, 1, 64)?;
        within("geometry.dies_per_chip", g.dies_per_chip, 1, 16)?;
        within("geometry.planes_per_die", g.planes_per_die, 1, 8)?;
        within("geometry.blocks_per_plane", g.blocks_per_plane, 4, 65_536)?;
        within("geometry.pages_per_block", g.pages_per_block, 2, 16_384)?;
        let stations = g.chips_per_channel * g.dies_per_chip;
        if stations > 64 {
            return bad(
                "geometry.chips_per_channel × dies_per_chip",
                stations,
                "at most 64 dies on a channel",
            );
        }
        let (page, unit) = (g.page_bytes.0, g.unit_bytes.0);
        if !unit.is_multiple_of(LBA_BYTES) || !(512..=65_536).contains(&unit) {
            return bad("geometry.unit_bytes", g.unit_bytes, "a multiple of 512 bytes, 512 B to 64 KiB");
        }
        if page == 0 || !page.is_multiple_of(unit) || page / unit > 16 {
            return bad("geometry.page_bytes", g.page_bytes, "1 to 16 whole mapping units");
        }
        let blocks = u64::from(g.channels)
            * u64::from(stations)
            * u64::from(g.planes_per_die)
            * u64::from(g.blocks_per_plane);
        if blocks > u64::from(u32::MAX / 2) {
            return bad("geometry", format!("{blocks} blocks"), "at most 2,147,483,647 blocks");
        }
        Ok(())
    }

    fn validate_timing(&self) -> Result<(), String> {
        let t = &self.timing;
        for (key, times) in [("timing.read", &t.read), ("timing.program", &t.program)] {
            if let PageTimes::Each(each) = times
                && each.len() != t.cell.pages_per_wordline() as usize
            {
                let expected =
                    format!("one time or {} (one for each page of a word line)", t.cell.pages_per_wordline());
                return bad(key, format!("{} times", each.len()), &expected);
            }
        }
        let each = |key, times: &PageTimes| match times {
            PageTimes::Same(time) => vec![(key, *time)],
            PageTimes::Each(each) => each.iter().map(|time| (key, *time)).collect(),
        };
        let commands = t.command.map(|time| ("timing.command", time));
        let next_planes = t.command_next_plane.map(|time| ("timing.command_next_plane", time));
        let times = each("timing.read", &t.read).into_iter().chain(each("timing.program", &t.program));
        let suspend = t.suspend.iter().map(|suspend| ("timing.suspend.latency", suspend.latency));
        let times = times.chain(commands).chain(next_planes).chain(suspend).chain([
            ("timing.erase", t.erase),
            ("buffer.access_latency", self.buffer.access_latency),
            ("link.submit_latency", self.link.submit_latency),
            ("link.complete_latency", self.link.complete_latency),
        ]);
        // Sums of them are added to a time without a check.
        if let Some((key, time)) = times.into_iter().find(|(_, time)| *time > TIME_MAX) {
            return bad(key, time, "at most an hour");
        }
        if t.bus_bytes_per_s == 0 {
            return bad("timing.bus_bytes_per_s", 0, "1 or more");
        }
        if !self.geometry.pages_per_block.is_multiple_of(t.cell.pages_per_wordline())
            && self.faults.paired_page_loss
        {
            return bad(
                "geometry.pages_per_block",
                self.geometry.pages_per_block,
                "a multiple of the pages of a word line, because faults.paired_page_loss is on",
            );
        }
        Ok(())
    }

    fn validate_buffer(&self) -> Result<(), String> {
        let b = &self.buffer;
        fraction("buffer.high_water", b.high_water)?;
        fraction("buffer.low_water", b.low_water)?;
        if b.low_water > b.high_water {
            return bad(
                "buffer.low_water",
                b.low_water,
                &format!("at most buffer.high_water = {}", b.high_water),
            );
        }
        let page = self.geometry.page_bytes;
        if b.capacity.0 < page.0 {
            return bad("buffer.capacity", b.capacity, &format!("at least one page of {page}"));
        }
        if b.capacity.0 / self.geometry.unit_bytes.0 > 1 << 30 {
            return bad("buffer.capacity", b.capacity, "at most 2^30 mapping units");
        }
        Ok(())
    }

    fn validate_order(&self) -> Result<(), String> {
        let order = &self.order;
        if !(0.0..=1.0).contains(&order.penalty) {
            return bad("order.penalty", order.penalty, "0 to 1");
        }
        within("order.fuse_epochs", order.fuse_epochs, 1, 1 << 20)?;
        if order.fuse_epochs > 1 && order.policy != PersistPolicy::Transactional {
            return bad("order.fuse_epochs", order.fuse_epochs, "1, unless order.policy = \"transactional\"");
        }
        let needs_log = order.policy == PersistPolicy::Transactional;
        if needs_log && self.ftl.metadata == Metadata::None {
            return Err(
                "order.policy = \"transactional\": expected ftl.metadata = \"log\", which holds its records"
                    .into(),
            );
        }
        if order.policy != PersistPolicy::None && self.buffer.mode == BufferMode::WriteThrough {
            return Err("order.policy: expected \"none\" where buffer.mode = \"write-through\", which has nothing to order".into());
        }
        Ok(())
    }

    fn validate_translation(&self) -> Result<(), String> {
        let f = &self.ftl;
        if f.translation == Translation::Resident {
            return Ok(());
        }
        let cached = f.demand.cached;
        if !(cached > 0.0 && cached <= 1.0) {
            return bad("ftl.demand.cached", cached, "more than 0, at most 1");
        }
        within("ftl.demand.entries", f.demand.entries, 1, map_page::entries_max(self.geometry.page_bytes.0))?;
        if f.metadata == Metadata::None {
            return Err("ftl.translation = \"demand-cached\": expected ftl.metadata = \"log\", which holds the directory of its pages".into());
        }
        Ok(())
    }

    fn validate_share(&self) -> Result<(), String> {
        let share = &self.ftl.share;
        if share.pages == 0 {
            return match share.nvram_records {
                0 => Ok(()),
                records => bad("ftl.share.nvram_records", records, "0, or ftl.share.pages above 0"),
            };
        }
        within("ftl.share.nvram_records", share.nvram_records, 0, 1 << 24)?;
        within("ftl.share.pages", share.pages, 0, 1 << 24)?;
        if self.ftl.metadata == Metadata::None {
            return Err(
                "ftl.share.pages: expected ftl.metadata = \"log\", which holds the records of SHARE".into()
            );
        }
        let pages = Geometry::new(self).meta_blocks_per_region * self.geometry.pages_per_block;
        let records = recent_records_max(pages, records_per_page(self.geometry.page_bytes.0));
        // Where the map is on the medium, each unit takes two records.
        let records = if self.ftl.translation == Translation::Resident { records } else { records / 2 };
        within("ftl.share.batch", share.batch, 1, u32::try_from(records).unwrap_or(u32::MAX))
    }

    fn validate_placement(&self) -> Result<(), String> {
        let handles = self.ftl.placement.handles;
        within("ftl.placement.handles", handles.into(), 1, Handle::COUNT_MAX.into())?;
        if handles > 1 && !self.ftl.gc.hot_cold {
            return bad(
                "ftl.placement.handles",
                handles,
                "1, or ftl.gc.hot_cold = true: GC takes no block of a handle",
            );
        }
        Ok(())
    }

    fn validate_over_provisioning(&self) -> Result<(), String> {
        match self.ftl.over_provisioning {
            part if (0.0..=0.9).contains(&part) => Ok(()),
            part => bad("ftl.over_provisioning", part, "0 to 0.9"),
        }
    }

    fn validate_space(&self) -> Result<(), String> {
        let f = &self.ftl;
        self.validate_over_provisioning()?;
        self.validate_translation()?;
        self.validate_share()?;
        self.validate_placement()?;
        within("ftl.gc.choices", f.gc.choices, 1, 1024)?;
        within("ftl.gc.reserve_blocks", f.gc.reserve_blocks, 1, 1024)?;
        if f.gc.start_below_blocks <= f.gc.reserve_blocks {
            let expected = format!("more than ftl.gc.reserve_blocks = {}", f.gc.reserve_blocks);
            return bad("ftl.gc.start_below_blocks", f.gc.start_below_blocks, &expected);
        }
        // Even a victim with nothing to reclaim must fit into the room that is left after an earlier collection left pages unused.
        let waste = Geometry::collection_waste_pages(self);
        let reserve = 1 + u32::from(waste > 0) + u32::from(self.faults.program_fail > 0.0);
        if f.gc.reserve_blocks < reserve {
            return bad(
                "ftl.gc.reserve_blocks",
                f.gc.reserve_blocks,
                &format!(
                    "at least {reserve}: pages of several units, shared word lines and failing programs need one each"
                ),
            );
        }
        let geometry = Geometry::new(self);
        let wasted =
            f64::from(self.geometry.blocks_per_plane * waste) / f64::from(self.geometry.pages_per_block);
        // A version that is not stable keeps the one that it replaces. Of these a plane may have twice its share; where striping chooses
        // the plane and an epoch needs all of its members, it may have all of them.
        let kept = match self.keeps_epochs() && self.order.policy != PersistPolicy::InOrderWriteBack {
            true => 2 * self.buffer.capacity.0 / geometry.unit_bytes + geometry.counted_members_max(),
            false => 0,
        };
        let share = 2.0_f64.min(f64::from(geometry.planes())) / f64::from(geometry.planes());
        let mut kept = kept as f64 / f64::from(geometry.units_per_block()) * share;
        if self.keeps_epochs()
            && self.order.policy == PersistPolicy::Transactional
            && f.allocation == Allocation::Static
        {
            let all = self.buffer.capacity.0 / geometry.unit_bytes + u64::from(geometry.units_per_block());
            kept = kept.max(all as f64 / f64::from(geometry.units_per_block()));
        }
        let needed = f64::from(f.gc.reserve_blocks + 1 + f.open_blocks()) + wasted + kept;
        let spare = geometry.spare_blocks_per_plane_min();
        if spare < needed && self.firmware == FirmwareKind::PageAndAppend {
            let (all, segments) = (self.geometry.blocks_per_plane, geometry.append.blocks_per_plane_max);
            let bad_max = geometry.factory_bad_max();
            let data = f64::from(all - segments.min(all)) - f64::from(bad_max) - spare;
            return bad(
                "append.segments",
                self.append.segments,
                &format!(
                    "fewer, or more geometry.blocks_per_plane or ftl.over_provisioning: of {all} blocks of each plane segments \
                     may have {segments} (append.spare_blocks included), {bad_max} may be bad, and {data:.1} hold metadata and \
                     the data of the page namespace, which leaves {spare:.1} of {needed:.1} for its GC and write frontiers"
                ),
            );
        }
        if spare < needed {
            let epochs = if kept > 0.0 { " and epochs" } else { "" };
            return bad(
                "ftl.over_provisioning",
                f.over_provisioning,
                &format!(
                    "enough for {needed:.1} spare blocks in each plane of {} (reserve, write frontiers, one \
                     victim, and what is left unused by GC{epochs}); this leaves {spare:.1} after metadata and bad blocks",
                    self.geometry.blocks_per_plane
                ),
            );
        }
        Ok(())
    }

    /// Explains why GC never stops once the fraction `fill` (0 to 1) of the capacity holds data: GC wants to keep more blocks of a
    /// plane free than are left. `None` if the spare blocks suffice.
    pub fn collection_never_stops(&self, fill: f64) -> Option<String> {
        if !self.firmware.has_pages() {
            return None;
        }
        let geometry = Geometry::new(self);
        let spare = geometry.spare_blocks_per_plane_min();
        let data =
            geometry.user_units as f64 / f64::from(geometry.planes()) / f64::from(geometry.units_per_block());
        let (blocks, wanted) = (geometry.blocks_per_plane, self.ftl.gc.start_below_blocks);
        let left = spare + data * (1.0 - fill);
        if left >= f64::from(wanted) {
            return None;
        }
        let fill_max = ((spare + data - f64::from(wanted)) / data).max(0.0);
        Some(format!(
            "ftl.gc.start_below_blocks = {wanted} of {blocks}: with {:.0} % of the capacity written, {:.1} blocks of each \
             plane hold data and {left:.1} are left, so GC never stops and moves nearly full blocks; expected \
             at most {:.0}, more ftl.over_provisioning, or at most {:.0} % written",
            fill * 100.0,
            data * fill,
            left.floor().max(0.0),
            (fill_max * 100.0).floor(),
        ))
    }
}
