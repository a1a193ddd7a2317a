//! Conservation: no request, page or erase is lost or invented, whatever the device and the commands.

use crate::harness::{Host, fill, random_config};
use flashweir_core::command::{Handle, StreamId};
use flashweir_core::random::RandomStream;
use flashweir_core::{Lba, Lpn, Op, Order};
use flashweir_device::config::PersistPolicy;
use flashweir_device::presets::preset;

/// Writes, rewrites, deallocates, reads and flushes at some queue depth, and checks every page now and then.
fn torture(seed: u64, steps: u64, fault: f64) {
    let mut config = random_config(seed, fault);
    if config.ftl.gc.hot_cold && seed.is_multiple_of(2) {
        config.ftl.placement.handles = 3;
        config = fill(config);
    }
    let mut host = Host::new(&config, seed);
    let units = host.expected.len() as u64;
    let mut r = RandomStream::new(seed, "commands");
    let mut handles = RandomStream::new(seed, "handles");
    host.write_all();
    for step in 0..steps {
        let (len, depth) = (1 + r.below(4).min(units - 1), r.below(16));
        let lpn = if r.below(2) == 0 { r.below(units) } else { r.below(units.div_ceil(8)) }.min(units - len);
        if config.order.policy != PersistPolicy::None {
            // Now and then one of three streams sends nothing for a long time.
            let (stream, ends) = (r.below(3) as u16, r.below(4) == 0);
            let silent = (step / 400 + u64::from(stream)).is_multiple_of(3);
            host.order = (!silent && r.below(4) > 0)
                .then_some((StreamId(stream), if ends { Order::Barrier } else { Order::Within }));
        }
        host.handle = Handle(handles.below(config.ftl.placement.handles.into()) as u8);
        match r.below(100) {
            0..70 => host.write(lpn, len, r.below(20) == 0),
            70..76 => host.trim(lpn, len, r.below(2) == 0),
            76..79 => drop(host.submit(Op::Flush, false)),
            _ => {
                let per_unit = host.device.geometry().lbas_per_unit;
                let (lba, blocks) = (Lba(lpn * per_unit), (len * per_unit) as u32);
                host.submit(Op::Read { lba, blocks }, false);
            }
        }
        host.wait(depth);
        if step % 500 == 499 {
            host.wait(0);
            host.order = None;
            if host.device.is_read_only() {
                // A write that could not be kept is reported by a FLUSH or, at the latest, by a read.
                host.submit(Op::Flush, false);
                if let Some((lpn, ..)) = host.mismatch() {
                    let per_unit = host.device.geometry().lbas_per_unit;
                    let (lba, blocks) = (Lba(lpn as u64 * per_unit), per_unit as u32);
                    host.submit(Op::Read { lba, blocks }, false);
                }
                host.wait(0);
                assert!(
                    host.errors > 0 || host.mismatch().is_none(),
                    "seed {seed}: a write was lost silently"
                );
                return;
            }
            host.check(&format!("seed {seed}, step {step}, {config:?}"));
        }
    }
    assert!(host.errors == 0 || fault > 0.0, "errors without a fault, seed {seed}");
}

#[test]
fn full_devices_of_every_shape_keep_what_they_were_given() {
    for seed in 0..200 {
        eprintln!("seed {seed}");
        torture(seed, 3_000, 0.0);
    }
}

#[test]
fn failing_programs_and_erases_lose_nothing_until_the_device_says_so() {
    for seed in 1_000..1_200 {
        eprintln!("seed {seed}");
        torture(seed, 3_000, 0.002);
    }
}

/// The ends of a WRITE ZEROES inside mapping units were merged without a read, and written without being counted.
#[test]
fn regression_partial_zeroes_read_and_write_what_they_keep() {
    let mut config = preset("sata-mlc").expect("a preset");
    config.geometry.blocks_per_plane = 64;
    config.ftl.over_provisioning = 0.4;
    let mut host = Host::new(&config, 1);
    host.write(0, 4, false);
    host.wait(0);
    host.submit(Op::Flush, false);
    host.wait(0);
    let before = *host.device.metrics();
    let per_unit = host.device.geometry().lbas_per_unit;
    let (lba, blocks) = (Lba(per_unit / 2), 2 * per_unit as u32);
    host.submit(Op::WriteZeroes { lba, blocks }, false);
    host.wait(0);
    let counted = host.device.metrics().since(&before);
    assert_eq!(counted.host_units_written, 2, "one unit between them is deallocated");
    assert!((1..=2).contains(&counted.modify_pages_read), "{}", counted.modify_pages_read);
    assert!(host.device.peek(Lpn(1)).is_none_or(|payload| payload.identity() == 0));
}
