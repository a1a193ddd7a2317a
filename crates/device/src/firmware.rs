//! What a firmware is: the seam between the parts that every SSD has and what one of them does with its flash.
//!
//! Place in the data flow: [`crate::ssd`] calls a firmware when a command arrives, when the buffer memory has moved its data, and
//! when an operation has ended; the firmware changes its own state and its [`Cx`].
//!
//! Invariants: dispatch is static; every command that [`Firmware::check`] lets pass completes once; what survives a power cut is
//! the medium, and [`Firmware::recover`] makes a firmware of nothing else.

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

/// The seed of a device's own randomness, beside the world's.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Seed of the world.
    pub seed: u64,
    /// Keep contents, so that reads return data.
    pub track_contents: bool,
    /// A bug to be found by the crash laboratory.
    pub planted: Option<PlantedBug>,
}

/// One firmware.
pub(crate) trait Firmware: Clone + Debug + Sized {
    /// Its name for an operation; the machine carries it and never looks at it.
    type Job: Copy + Debug + Eq;
    /// What gives its programs their pages.
    type Placer: Placer<Self::Job>;

    /// Blocks that it keeps for its own metadata.
    fn reserved(geometry: &Geometry) -> BTreeSet<BlockId>;

    /// A firmware that knows of nothing on the medium.
    fn new(cx: &Cx<Self::Job>, seed: u64) -> Self;

    /// Reads what a power cut left on a medium and plans what has to be written before commands are taken.
    fn recover(config: &DeviceConfig, options: DeviceOptions, media: Media) -> Plan<Self>;

    /// All that was planned is written.
    fn recovered(&mut self, cx: &mut Cx<Self::Job>);

    /// Refuses what the device cannot do; nothing has changed.
    fn check(&self, cx: &Cx<Self::Job>, command: &Command) -> Result<(), DeviceError>;

    /// A command was refused, and is about to complete.
    fn refused(&mut self, cx: &mut Cx<Self::Job>, at: u32);

    /// A command that was checked has arrived with its data.
    fn arrive(&mut self, cx: &mut Cx<Self::Job>, at: u32);

    /// The buffer memory has moved the data of a command.
    fn memory_done(&mut self, cx: &mut Cx<Self::Job>, at: u32);

    /// An operation has ended.
    fn done(&mut self, cx: &mut Cx<Self::Job>, op: Op<Self::Job>);

    /// All of a command or event has had its effect: whoever can go on does, in one order, until nobody can.
    fn go_on(&mut self, cx: &mut Cx<Self::Job>);

    /// What gives programs their pages.
    fn placer(&self) -> &Self::Placer;

    /// The same, to take pages.
    fn placer_mut(&mut self) -> &mut Self::Placer;

    /// What the out-of-band area of the page of a program says of its block's opening.
    fn opened(&self, op: &Op<Self::Job>) -> u64;

    /// Appends what a program puts on the medium.
    fn image(&self, cx: &Cx<Self::Job>, op: &Op<Self::Job>, images: &mut Vec<UnitImage>);

    /// What the capacitor saves if the power goes now; `None` if there is no capacitor.
    fn saved(&self, cx: &Cx<Self::Job>) -> Option<SaveArea>;

    /// Whether it holds something that a power cut would lose.
    fn is_volatile(&self, cx: &Cx<Self::Job>) -> bool;

    /// Whether a logical page holds anything.
    fn is_mapped(&self, lpn: Lpn) -> bool;

    /// Whether the newest version of this unit was accepted and could not be written, as reads and flushes of it say.
    fn has_lost(&self, lpn: Lpn) -> bool;

    /// The content that a read of `lpn` would return now.
    fn content(&self, cx: &Cx<Self::Job>, lpn: Lpn) -> Option<Payload>;

    /// Begins to fetch the state of a logical page from memory.
    fn prefetch(&self, lpn: Lpn);

    /// Begins to fetch what an event looks at.
    fn prefetch_for(&self, cx: &Cx<Self::Job>, event: Event);

    /// Slots of the buffer, slots in use, dirty slots; in mapping units.
    fn buffer_use(&self) -> [u64; 3];

    /// Bytes of memory in use for its own state.
    fn memory_bytes(&self) -> u64;

    /// Panics if an account does not balance. There is no command in flight.
    fn audit(&self, cx: &Cx<Self::Job>);

    /// Who waits for whom, for people.
    fn describe(&self, cx: &Cx<Self::Job>) -> String;
}

/// What a recovery found, and what it has to write.
#[derive(Debug)]
pub(crate) struct Plan<F: Firmware> {
    pub(crate) cx: Cx<F::Job>,
    pub(crate) firmware: F,
    pub(crate) steps: Vec<Step>,
    pub(crate) report: RecoveryReport,
}

/// A firmware that knows of nothing on `media`, and its context. The configuration was validated.
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
