//! Device presets that come with the program: one TOML file each, whose comments give the source of every value.
//!
//! Invariants: each file parses, passes [`DeviceConfig::validate`] and carries its file name as `name`; the list is in the order in
//! which it is shown, papers first, then simulators, then classes of product.
//!
//! Deliberately absent: presets for single products. Vendors publish too little to model one honestly.

use crate::config::DeviceConfig;

/// Name and text of each preset.
const PRESETS: [(&str, &str); 21] = [
    ("rflush", include_str!("../presets/rflush.toml")),
    ("amf", include_str!("../presets/amf.toml")),
    ("amf-page", include_str!("../presets/amf-page.toml")),
    ("amf-dftl", include_str!("../presets/amf-dftl.toml")),
    ("amf-fdp", include_str!("../presets/amf-fdp.toml")),
    ("page-and-append", include_str!("../presets/page-and-append.toml")),
    ("qblke", include_str!("../presets/qblke.toml")),
    ("ocssd-2.0", include_str!("../presets/ocssd-2.0.toml")),
    ("qblke-page", include_str!("../presets/qblke-page.toml")),
    ("share-960evo", include_str!("../presets/share-960evo.toml")),
    ("remap-ssd", include_str!("../presets/remap-ssd.toml")),
    ("barrier-ufs", include_str!("../presets/barrier-ufs.toml")),
    ("barrier-850", include_str!("../presets/barrier-850.toml")),
    ("barrier-843", include_str!("../presets/barrier-843.toml")),
    ("mqsim-default", include_str!("../presets/mqsim-default.toml")),
    ("mqsim-small-ideal", include_str!("../presets/mqsim-small-ideal.toml")),
    ("consumer-tlc-nvme", include_str!("../presets/consumer-tlc-nvme.toml")),
    ("datacenter-tlc-plp-nvme", include_str!("../presets/datacenter-tlc-plp-nvme.toml")),
    ("mobile-ufs", include_str!("../presets/mobile-ufs.toml")),
    ("sata-mlc", include_str!("../presets/sata-mlc.toml")),
    ("low-latency-slc", include_str!("../presets/low-latency-slc.toml")),
];

/// Names of the presets, in the order in which they are shown.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The TOML text of the preset called `name`, with the comments that give its sources.
pub fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(preset, _)| *preset == name).map(|(_, text)| *text)
}

/// The preset called `name`.
pub fn preset(name: &str) -> Option<DeviceConfig> {
    text(name).map(|text| toml::from_str(text).expect("a test parses every preset"))
}

/// All presets, in the order in which they are shown.
pub fn all() -> Vec<DeviceConfig> {
    names().filter_map(preset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BufferMode;
    use crate::geometry::Geometry;
    use flashweir_core::{Command, Duration, Instant, Link, Op, command::Data};

    #[test]
    fn every_preset_is_valid_and_named_after_its_file() {
        for (name, text) in PRESETS {
            let config: DeviceConfig = toml::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            config.validate().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(config.name, name);
            assert!(!config.source.is_empty(), "{name}");
        }
        assert_eq!(all().len(), PRESETS.len());
        assert!(preset("nothing").is_none());
    }

    #[test]
    fn every_key_says_where_it_is_from() {
        for (name, text) in PRESETS {
            for line in text.lines() {
                let bare = line.is_empty() || line.starts_with(['#', '[']);
                let heading = line.starts_with("name = ") || line.starts_with("source = ");
                assert!(bare || heading || line.contains("  # "), "{name}: no source: {line}");
            }
        }
    }

    #[test]
    fn capacities_are_those_of_the_specification() {
        for (name, bytes) in [
            ("rflush", 40_265_318_400),
            ("amf", 1033 << 24),
            ("amf-page", 16 << 30),
            ("amf-dftl", 16 << 30),
            ("amf-fdp", 16 << 30),
            ("page-and-append", 1033 << 24),
            ("qblke", 64 << 30),
            ("ocssd-2.0", 64 << 30),
            ("qblke-page", 64 << 30),
            ("share-960evo", 18 << 30),
            ("remap-ssd", 20 << 30),
            ("mqsim-small-ideal", 16 << 30),
            ("mqsim-default", 512 << 30),
            ("consumer-tlc-nvme", 48 << 30),
            ("datacenter-tlc-plp-nvme", 96 << 30),
            ("mobile-ufs", 12 << 30),
            ("sata-mlc", 16 << 30),
            ("low-latency-slc", 16 << 30),
            ("barrier-ufs", 8 << 30),
            ("barrier-850", 16 << 30),
            ("barrier-843", 16 << 30),
        ] {
            let geometry = Geometry::new(&preset(name).unwrap());
            assert_eq!(geometry.physical_units() * geometry.unit_bytes, bytes, "{name}");
        }
    }

    #[test]
    fn speeds_are_those_of_the_specification() {
        let page_on_bus = |name: &str| {
            let config = preset(name).unwrap();
            Duration::of_transfer(config.geometry.page_bytes.0, config.timing.bus_bytes_per_s).as_nanos()
        };
        for (name, ns) in [
            ("rflush", 100_000),
            ("amf", 33_000),
            ("amf-page", 33_000),
            ("amf-dftl", 33_000),
            ("amf-fdp", 33_000),
            ("page-and-append", 33_000),
            ("qblke", 52_400),
            ("ocssd-2.0", 52_400),
            ("qblke-page", 52_400),
            ("share-960evo", 24_564),
            ("remap-ssd", 60_000),
            ("barrier-ufs", 20_000),
            ("mqsim-default", 24_576),
        ] {
            assert!(page_on_bus(name).abs_diff(ns) <= 1, "{name}: {}", page_on_bus(name));
        }
    }

    #[test]
    fn promises_are_those_of_the_paper() {
        for (name, mode) in [
            ("rflush", BufferMode::WriteBack),
            ("barrier-850", BufferMode::WriteBack),
            ("barrier-843", BufferMode::PowerLossProtected),
            ("mqsim-default", BufferMode::WriteThrough),
        ] {
            assert_eq!(preset(name).unwrap().buffer.mode, mode, "{name}");
        }
    }

    /// 4 bytes for each block: 128 times less than 4 bytes for each page (append-segments §3.5).
    #[test]
    fn segments_are_as_large_as_in_the_paper_and_their_map_as_small() {
        let geometry = Geometry::new(&preset("amf").unwrap());
        let segment = u64::from(geometry.append.units) * geometry.unit_bytes;
        assert_eq!((geometry.append.segments, segment, geometry.user_units), (1024, 16 << 20, 4 << 20));
        let device = crate::Device::new(
            preset("amf").unwrap(),
            crate::DeviceOptions { seed: 1, track_contents: false, planted: None },
        );
        let [lists, states] = device.segment_map_bytes().expect("it has segments");
        assert_eq!(lists, geometry.user_units * 4 / 128);
        assert!(lists + states < geometry.user_units * 4 / 100, "{lists} + {states}");
    }

    /// 128 LUNs of two planes: 32 KiB in a write, 32 blocks in each plane (open-channel §9.1).
    #[test]
    fn open_channels_have_the_chunks_of_the_paper() {
        for name in ["qblke", "ocssd-2.0"] {
            let geometry = Geometry::new(&preset(name).unwrap());
            assert_eq!((geometry.parallel_units(), geometry.open.chunks), (128, 4096), "{name}");
            let bytes = |units: u32| u64::from(units) * geometry.unit_bytes;
            assert_eq!(bytes(geometry.chunk_units()), 16 << 20, "{name}: 64 MiB in a line of four LUNs");
            assert_eq!(bytes(geometry.open.write_pages * geometry.units_per_page), 32 << 10, "{name}");
        }
    }

    /// 8 GiB of segments, and 85 % of what those and their spare blocks leave for pages.
    #[test]
    fn two_namespaces_divide_the_flash() {
        let geometry = Geometry::new(&preset("page-and-append").unwrap());
        let segment = u64::from(geometry.append.units) * geometry.unit_bytes;
        assert_eq!((geometry.append.segments, segment), (512, 16 << 20));
        let left = (1033 - 512 - 8) * 32 * 128;
        assert_eq!(geometry.user_units, left * 85 / 100 / 32 * 32);
    }

    #[test]
    fn mqsim_adds_up_at_depth_one() {
        let config = preset("mqsim-small-ideal").unwrap();
        let page = Duration::of_transfer(8192, config.timing.bus_bytes_per_s);
        let [read, program, _] = config.timing.command;
        let flash_read = read + config.timing.read.of(0) + page;
        let flash_write = program + page + config.timing.program.of(0);
        assert_eq!((flash_read.as_nanos(), flash_write.as_nanos()), (99_886, 774_937));
        let latency = |op, flash, up| {
            let mut link = Link::new(config.link.clone());
            let arrived = link.submit(Instant::ZERO, &Command::new(0, op));
            link.complete(arrived + flash, up).as_nanos()
        };
        let (lba, blocks) = (flashweir_core::Lba(0), 16);
        assert_eq!(latency(Op::Read { lba, blocks }, flash_read, 8192), 102_442);
        // MQSim: 777,501. The 8 ns are explained in the preset.
        assert_eq!(latency(Op::Write { lba, blocks, data: Data::Zero }, flash_write, 0), 777_493);
        let pages = Geometry::new(&config).user_units;
        assert!(1_950_344 - pages < 128, "{pages} pages: less than a stripe below MQSim's");
    }
}
