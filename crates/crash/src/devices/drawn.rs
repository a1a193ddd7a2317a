//! Tiny devices drawn by a number: combinations of features that no row of the table has.
//!
//! Place in the data flow: [`super::tiny`] and its neighbours come here for names like `tiny-drawn-7`.
//!
//! Invariant: a device is a function of its number. Shapes are drawn until one is valid and tiny.

use super::shape::{Habit, Knobs, Layer, PLAIN, Shape};
use flashweir_core::RandomStream;
use flashweir_device::Geometry;
use flashweir_device::config::{
    Allocation, BufferMode, BusOrder, Cell, Eviction, Miss, PersistPolicy, RangeFlushSupport,
};
use flashweir_ftl::GcPolicy;
use std::cell::RefCell;
use std::collections::BTreeMap;

const PREFIX: &str = "tiny-drawn-";

/// Most units and erase blocks of a drawn device.
const UNITS_MAX: u64 = 240;
const BLOCKS_MAX: u32 = 80;

/// Spare erase blocks of each plane above what is valid: where erase blocks fail, a device may be read-only after it has lost more.
const SPARE_BLOCKS: u32 = 4;

thread_local! {
    static KNOWN: RefCell<BTreeMap<u64, Shape>> = const { RefCell::new(BTreeMap::new()) };
}

/// Name of the drawn device of this number.
pub fn drawn_name(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// Returns the shape of the drawn device with this name, if it is the name of one.
pub(super) fn drawn(name: &str) -> Option<Shape> {
    let number = name.strip_prefix(PREFIX)?;
    let number: u64 = number.parse().ok().filter(|parsed: &u64| parsed.to_string() == number)?;
    Some(KNOWN.with_borrow_mut(|known| *known.entry(number).or_insert_with(|| draw(number))))
}

fn draw(number: u64) -> Shape {
    let mut random = RandomStream::new(number, "crash.drawn-device");
    loop {
        if let Some(shape) = fitting(shape(&mut random)) {
            return shape;
        }
    }
}

/// One of these, evenly.
fn one<T: Copy>(random: &mut RandomStream, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

fn shape(random: &mut RandomStream) -> Shape {
    let mode = one(
        random,
        &[
            BufferMode::WriteBack,
            BufferMode::WriteBack,
            BufferMode::WriteThrough,
            BufferMode::PowerLossProtected,
        ],
    );
    let order = match mode {
        // A protected buffer keeps the order in which it accepts.
        BufferMode::WriteBack | BufferMode::PowerLossProtected if random.chance(0.6) => one(
            random,
            &[PersistPolicy::InOrderRecovery, PersistPolicy::InOrderWriteBack, PersistPolicy::Transactional],
        ),
        _ => PersistPolicy::None,
    };
    let is_ordered = order != PersistPolicy::None;
    let (unit_bytes, units_per_page) = one(random, &[(512, 2), (512, 4), (1024, 1), (1024, 2), (4096, 1)]);
    let range = random.chance(0.5) && mode != BufferMode::WriteThrough;
    let layer = match (is_ordered, mode) {
        _ if random.chance(0.7) => None,
        (true, _) => Some(one(random, &[Layer::Ordered, Layer::Sorted, Layer::Queues])),
        (false, BufferMode::WriteBack) => Some(Layer::Flushes),
        // An answer says that it is durable.
        (false, _) => Some(one(random, &[Layer::Flushes, Layer::Waits])),
    };
    // Requests through a layer are numbered as they are submitted, which is the order in which a device accepts them only if the data of
    // none arrive late; and their contents are told apart by whole units of one sector.
    let (unit_bytes, access) = if layer.is_some() { (512, &[0][..]) } else { (unit_bytes, &[0, 0, 15][..]) };
    let map = random.chance(0.4).then(|| {
        (one(random, &[4, 5, 8]), 1 + random.below(4), one(random, &[Miss::HoldsAll, Miss::HoldsOwn]))
    });
    // Through a layer there is no SHARE.
    let share = if layer.is_none() && random.chance(0.4) { one(random, &[3, 12, 40]) } else { 0 };
    let nvram = if share > 0 { one(random, &[0, 0, 9, 64]) } else { 0 };
    let chance =
        |random: &mut RandomStream, p, value| if random.chance(p) { value } else { Default::default() };
    let hot_cold = random.chance(0.5);
    let handles = one(random, &[1, 1, 1, 3]);
    Shape {
        mode,
        order,
        unit_bytes,
        units_per_page,
        layer,
        map,
        share,
        nvram,
        cell: one(random, &[Cell::Slc, Cell::Slc, Cell::Mlc, Cell::Tlc]),
        parallel: one(random, &[[1, 1, 1], [2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 1, 2], [1, 2, 2], [4, 1, 1]]),
        pages_per_block: one(random, &[4, 6, 8, 12]),
        buffer_units: one(random, &[6, 8, 12, 16, 24]),
        high_water: one(random, &[0.5, 0.9]),
        allocation: one(random, &[Allocation::Static, Allocation::Dynamic]),
        range_flush: match range {
            true => one(
                random,
                &[RangeFlushSupport::Selective, RangeFlushSupport::Selective, RangeFlushSupport::Whole],
            ),
            false => RangeFlushSupport::None,
        },
        fuse_epochs: if order == PersistPolicy::Transactional { one(random, &[1, 4]) } else { 1 },
        access_us: one(random, access),
        eager_blocks: if is_ordered { 4 } else { one(random, &[1, 2]) },
        program_fail: chance(random, 0.25, 0.003),
        erase_fail: chance(random, 0.25, 0.01),
        wear_apart: one(random, &[100, 100, 2]),
        program_us: one(random, &[100, 100, 600]),
        habit: match is_ordered {
            true => one(random, &[Habit::Plain, Habit::Wide, Habit::Long, Habit::FallsSilent]),
            false => one(random, &[Habit::Plain, Habit::Wide, Habit::Long]),
        },
        hot_cold: hot_cold || handles > 1,
        handles,
        knobs: if random.chance(0.6) { knobs(random, mode, layer.is_some()) } else { PLAIN.knobs },
        ..PLAIN
    }
}

fn knobs(random: &mut RandomStream, mode: BufferMode, has_layer: bool) -> Knobs {
    let is_protected = mode == BufferMode::PowerLossProtected;
    Knobs {
        gc: one(random, &[GcPolicy::Greedy, GcPolicy::CostBenefit, GcPolicy::DChoices, GcPolicy::Fifo]),
        choices: one(random, &[1, 2, 8]),
        preemptible: random.chance(0.5),
        levels: random.chance(0.7),
        factory_bad: one(random, &[0.0, 0.0, 0.03]),
        eviction: Some(one(random, &[Eviction::Fifo, Eviction::Lru])),
        suspend: one(random, &[None, Some([true, true]), Some([true, false]), Some([false, true])]),
        bus_order: one(random, &[BusOrder::DataFirst, BusOrder::CommandsFirst]),
        multi_plane: random.chance(0.7),
        die_interleaving: random.chance(0.7),
        exclusive_flush: random.chance(0.15),
        // Such a device promises no more than one without a capacitor, which a layer may rely on.
        protected_units: (is_protected && !has_layer && random.chance(0.3)).then_some(3),
        // As with `access_us`.
        buffer_bytes_per_s: one(random, if has_layer { &[0][..] } else { &[0, 0, 20_000_000] }),
        striping: one(random, &["CWDP", "PDWC", "DPCW"]).parse().ok(),
    }
}

/// The shape with the fewest erase blocks that make it valid, if that is tiny.
fn fitting(shape: Shape) -> Option<Shape> {
    (10..44).step_by(2).find_map(|blocks_per_plane| {
        // A SHARE makes copies beside what is there when the table is full.
        let needs_spare = shape.wears_out() || shape.share > 0 || shape.knobs.factory_bad > 0.0;
        let spare_percent = if needs_spare { SPARE_BLOCKS * 100 / blocks_per_plane + 1 } else { 0 };
        let shape = Shape { blocks_per_plane, spare_percent, ..shape };
        let geometry = Geometry::new(&shape.valid_config()?);
        let is_tiny = geometry.user_units <= UNITS_MAX && geometry.blocks() <= BLOCKS_MAX;
        // Enough of it is left to be written.
        (is_tiny && geometry.user_units >= 24).then_some(shape)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tiny;
    use super::*;
    use flashweir_device::DeviceConfig;

    #[test]
    fn a_drawn_device_is_a_function_of_its_number() {
        for number in 0..200 {
            let name = drawn_name(number);
            let config = tiny(&name).unwrap();
            config.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(config.name, name);
            assert_eq!(draw(number).config(), DeviceConfig { name: PLAIN.name.into(), ..config });
        }
        assert!(
            drawn("tiny-drawn-").is_none() && drawn("tiny-drawn-07").is_none() && drawn("tiny-d1").is_none()
        );
    }

    /// What the table leaves as it comes.
    #[test]
    fn drawn_devices_have_what_no_row_has() {
        let shapes: Vec<Shape> = (0..400).map(|number| drawn(&drawn_name(number)).unwrap()).collect();
        let count = |is: fn(&Shape) -> bool| shapes.iter().filter(|shape| is(shape)).count();
        let counts = [
            count(|shape| shape.range_flush == RangeFlushSupport::Whole),
            count(|shape| shape.knobs.gc == GcPolicy::CostBenefit),
            count(|shape| shape.knobs.gc == GcPolicy::DChoices),
            count(|shape| shape.knobs.gc == GcPolicy::Fifo),
            count(|shape| !shape.knobs.preemptible && shape.order != PersistPolicy::None),
            count(|shape| !shape.knobs.levels),
            count(|shape| shape.knobs.factory_bad > 0.0 && shape.program_fail > 0.0),
            count(|shape| shape.knobs.exclusive_flush && shape.range_flush != RangeFlushSupport::None),
            count(|shape| shape.knobs.protected_units.is_some()),
            count(|shape| shape.habit == Habit::Long && shape.share > 0),
            count(|shape| shape.knobs.suspend.is_some() && shape.map.is_some()),
        ];
        assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
    }

    /// Features that exclude each other in the table occur together.
    #[test]
    fn drawn_devices_combine_features() {
        let shapes: Vec<Shape> = (0..400).map(|number| drawn(&drawn_name(number)).unwrap()).collect();
        let count = |is: fn(&Shape) -> bool| shapes.iter().filter(|shape| is(shape)).count();
        let is_ordered = |shape: &Shape| shape.order != PersistPolicy::None;
        let counts = [
            count(|shape| shape.map.is_some() && shape.wears_out()),
            count(|shape| shape.map.is_some() && shape.order == PersistPolicy::Transactional),
            count(|shape| shape.layer.is_some() && shape.wears_out()),
            count(|shape| shape.range_flush == RangeFlushSupport::Selective && shape.map.is_some()),
            count(|shape| shape.cell == Cell::Tlc && shape.order != PersistPolicy::None),
            count(|shape| shape.share > 0 && shape.map.is_some() && shape.order != PersistPolicy::None),
            count(|shape| shape.nvram > 0 && shape.wears_out()),
        ];
        println!("{counts:?}, {} of them ordered", shapes.iter().filter(|shape| is_ordered(shape)).count());
        assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
    }
}
