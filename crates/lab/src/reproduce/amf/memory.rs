//! What the maps of devices and of ALFS take in memory (append-segments §3.5, append-segments §8.2).

use super::super::study::{Scale, Study};
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_fs::{Kind, Mode, Mounted as _};
use flashweir_sim::stack::{FlushMode, Stack};
use flashweir_sim::volume::{MakeOptions, make};

const MIB: f64 = 1024.0 * 1024.0;
/// Bytes of an entry of a map.
const ENTRY: f64 = 4.0;
/// Pages of 4 KiB in a GiB, and in a block.
const PAGES_PER_GIB: f64 = 262_144.0;
const PAGES_PER_BLOCK: f64 = 128.0;
/// Part of the flash that a hybrid map has as log blocks, with a page map (append-segments §3.5).
const LOG_BLOCKS: f64 = 0.15;

pub(super) const DEVICE: Study = Study {
    name: "device-memory",
    what: "memory of the map, table 2: block, hybrid and page maps by formula, 4 bytes an entry; AMF's as a simulated card of that size has it, \
           block lists and states of segments",
    missing: "block and hybrid maps, which are not built; the paper's 96 and 186 MB for the hybrid one do not follow from 15 %",
    parameter: "capacity, GiB (477 and 931 are 512 GB and 1 TB)",
    names: &[],
    metrics: &[("map_mib", "MiB of the map")],
    variants: &["block", "hybrid", "page", "AMF"],
    points: |_| vec![477.0, 931.0],
    measure: |variant, gib, _, _| {
        let (blocks, pages) = (gib * PAGES_PER_GIB / PAGES_PER_BLOCK, gib * PAGES_PER_GIB);
        vec![match variant {
            0 => blocks * ENTRY / MIB,
            1 => (blocks + LOG_BLOCKS * pages) * ENTRY / MIB,
            2 => pages * ENTRY / MIB,
            _ => {
                let options = DeviceOptions { seed: 1, track_contents: false, planted: None };
                let device = Device::new(card(gib), options);
                let [lists, states] = device.segment_map_bytes().expect("it has segments");
                (lists + states) as f64 / MIB
            }
        }]
    },
};

pub(super) const HOST: Study = Study {
    name: "host-memory",
    what: "memory that ALFS takes beyond F2FS's: the table of TIMB places, the list of TIMB blocks, the same for usage, and the states of \
           the map's segments, as a mounted volume has them",
    missing: "what the paper's 180 KB and 10.8 MB consist of beyond the table",
    parameter: "capacity, GiB (477 and 931 are 512 GB and 1 TB)",
    names: &[],
    metrics: &[("timb_kib", "KiB of the table of TIMB places"), ("all_kib", "KiB of everything")],
    variants: &["AMF"],
    points: |_| vec![16.0, 931.0],
    measure: |_, gib, _, _: Scale| {
        let options = DeviceOptions { seed: 1, track_contents: true, planted: None };
        let mut stack = Stack::new(Device::new(card(gib), options), FlushMode::Flush);
        let port = stack.port();
        let mounted = stack.block_on(async move {
            let mode = Mode::from(Kind::Alfs);
            let made = make(port.clone(), FlushMode::Flush, &mode, MakeOptions::default()).await;
            made.expect("the card has room for a volume")
        });
        let fs = mounted.expect("a volume is made in a while");
        let [table, rest] = fs.map_memory_bytes().expect("it is ALFS");
        vec![table as f64 / 1024.0, (table + rest) as f64 / 1024.0]
    },
};

/// The card with so many GiB for the host.
fn card(gib: f64) -> DeviceConfig {
    let mut device = preset("amf").expect("it comes with the program");
    let segments = (gib * 64.0) as u32;
    device.geometry.blocks_per_plane = segments + segments / 64 + 9;
    device.append.segments = segments;
    device.validate().expect("a larger card is possible");
    device
}
