//! Bugs that the models and tests must find; there are none in a build for use.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A word names a slot without saying which use of it.
    NoGeneration,
    /// A place is published by a store, whatever stands in the word.
    PublishByStore,
    /// The last writer is installed, whatever its number.
    InstallByExchange,
    /// A place is published while a writer with a smaller number is on its way.
    PublishAtOnce,
    /// A reader does not look again after its copy.
    ReadWithoutLook,
    /// GC's copy is installed by a store.
    CopyByStore,
    /// A reader does not hold the line that it reads from.
    ReadWithoutHold,
    /// A reader does not look at the word again once it holds the line.
    HoldWithoutLook,
    /// FLUSH leaves out the last ring.
    FlushMissesRing,
    /// The last part is found by a look after the count went down.
    AnsweredTwice,
    /// A unit is changed in part while a version with a smaller number is on its way.
    PartAtOnce,
    /// A unit that was changed in part is installed by a store.
    PartByStore,
    /// A waiter is added without a look at what has persisted meanwhile.
    LateWaiter,
}
