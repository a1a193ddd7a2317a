//! The firmware trait: the seam between the parts that every SSD has and the way in which one firmware uses its flash.
//!
//! Place in the data flow: [`crate::ssd`] calls a firmware when a command arrives, when the buffer memory has moved its data, and
//! when an operation has ended; the firmware changes its own state and its [`Cx`].
//!
//! Invariants: dispatch is static; every command that [`Firmware::check`] lets pass completes once; a power cut leaves only the
//! medium, and [`Firmware::recover`] builds a firmware from nothing else.

use crate::config::DeviceConfig;
use crate::cx::Cx;
use crate::effect::Event;
use crate::flash::plan::Step;
use crate::flash::{Flash, Media, Op, Placer, RecoveryReport, SaveArea, UnitImage};
use crate::geometry::Geometry;
use crate::planted::PlantedBug;
use flashweir_core::{Command, DeviceError, Lpn, Payload};
use flashweir_ftl::BlockId;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// Options of a device that are not part of its configuration.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Seed of the world, from which the device's own random streams are derived.
    pub seed: u64,
    /// Whether contents are kept, so that reads return data.
    pub track_contents: bool,
    /// A planted bug, which the crash laboratory has to find.
    pub planted: Option<PlantedBug>,
}

/// One firmware.
pub(crate) trait Firmware: Clone + Debug + Sized {
    /// The firmware's name for an operation; the machine carries it and never looks at it.
    type Job: Copy + Debug + Eq;
    /// Assigns pages to the firmware's programs.
    type Placer: Placer<Self::Job>;

    /// Blocks that the firmware keeps for its own metadata.
    fn reserved(geometry: &Geometry) -> BTreeSet<BlockId>;

    /// Returns a firmware with an empty state, which knows of nothing on the medium.
    fn new(cx: &Cx<Self::Job>, seed: u64) -> Self;

    /// Reads what a power cut left on a medium, and plans what has to be written before commands are taken.
    fn recover(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Self>;

    /// Called when all planned steps of a recovery are written.
    fn recovered(&mut self, cx: &mut Cx<Self::Job>);

    /// Refuses a command that the device cannot execute, before anything has changed.
    fn check(&self, cx: &Cx<Self::Job>, command: &Command) -> Result<(), DeviceError>;

    /// Number of programs that wait for a plane that was given up: they never begin.
    fn stranded(&self, _cx: &Cx<Self::Job>) -> usize {
        0
    }

    /// A command was refused and is about to complete.
    fn refused(&mut self, cx: &mut Cx<Self::Job>, at: u32);

    /// A command that passed the check has arrived with its data.
    fn arrive(&mut self, cx: &mut Cx<Self::Job>, at: u32);

    /// The buffer memory has moved the data of a command.
    fn memory_done(&mut self, cx: &mut Cx<Self::Job>, at: u32);

    /// An operation has ended.
    fn done(&mut self, cx: &mut Cx<Self::Job>, op: Op<Self::Job>);

    /// Called after a command or event has had all of its effects: lets everything proceed that can, in a fixed order, until
    /// nothing can.
    fn go_on(&mut self, cx: &mut Cx<Self::Job>);

    /// The placer, which assigns pages to programs.
    fn placer(&self) -> &Self::Placer;

    /// The placer, to take pages.
    fn placer_mut(&mut self) -> &mut Self::Placer;

    /// Number of the block's opening, as the out-of-band area of the programmed page says.
    fn opened(&self, op: &Op<Self::Job>) -> u64;

    /// Appends the units that a program puts on the medium.
    fn image(&self, cx: &Cx<Self::Job>, op: &Op<Self::Job>, images: &mut Vec<UnitImage>);

    /// What the capacitor would save if the power failed now; `None` if there is no capacitor.
    fn saved(&self, cx: &Cx<Self::Job>) -> Option<SaveArea>;

    /// Whether the firmware holds state that a power cut would lose.
    fn is_volatile(&self, cx: &Cx<Self::Job>) -> bool;

    /// Whether a logical page is mapped.
    fn is_mapped(&self, lpn: Lpn) -> bool;

    /// Whether the newest version of this unit was accepted but could not be written; reads and flushes of the unit fail.
    fn has_lost(&self, lpn: Lpn) -> bool;

    /// The content that a read of `lpn` would return now.
    fn content(&self, cx: &Cx<Self::Job>, lpn: Lpn) -> Option<Payload>;

    /// Begins to fetch the state of a logical page from memory.
    fn prefetch(&self, lpn: Lpn);

    /// Begins to fetch from memory the state that an event needs.
    fn prefetch_for(&self, cx: &Cx<Self::Job>, event: Event);

    /// Number of slots of the buffer, of slots in use and of dirty slots; in mapping units.
    fn buffer_use(&self) -> [u64; 3];

    /// Number of virtual pages: physical units that SHARE has given to several pages.
    fn virtual_pages(&self) -> u64 {
        0
    }

    /// Bytes of memory in use for the firmware's own state.
    fn memory_bytes(&self) -> u64;

    /// Panics if an account does not balance. No command is in flight.
    fn audit(&self, cx: &Cx<Self::Job>);

    /// Describes what each command, stream and plane waits for, for a human reader.
    fn describe(&self, cx: &Cx<Self::Job>) -> String;
}

/// What a recovery found, and the steps that it has to write.
#[derive(Debug)]
pub(crate) struct Plan<F: Firmware> {
    pub(crate) cx: Cx<F::Job>,
    pub(crate) firmware: F,
    pub(crate) steps: Vec<Step>,
    pub(crate) report: RecoveryReport,
}

/// Returns a firmware that knows of nothing on `media`, and its context. `config` has been validated.
pub(crate) fn boot<F: Firmware>(
    config: DeviceConfig,
    options: DeviceOptions,
    media: Media,
) -> (Cx<F::Job>, F) {
    let geometry = Geometry::new(&config);
    let flash = Flash::new(&config, &geometry, media, options.seed, &F::reserved(&geometry));
    let cx = Cx::new(config, geometry, flash, options.planted);
    let firmware = F::new(&cx, options.seed);
    (cx, firmware)
}
