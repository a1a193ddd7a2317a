//! Where a request's time goes, in the measuring build; in any other nothing is here but empty functions.
//!
//! A lap takes one reading of the clock, some 20 ns, which counts for the lap that it ends.

/// A part of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lap {
    /// Limiter and room.
    Admit,
    /// Producer lock, publication, numbers.
    Reserve,
    /// The content goes into the ring.
    Copy,
    /// The word of the map is exchanged.
    Install,
    /// The writer gets it, and is woken.
    Mark,
    /// A read's look at the map, with the copy out of a ring.
    Find,
    /// A read's descriptor, and its copy from the medium.
    Device,
}

/// Names of the laps, in their order.
#[cfg(feature = "measure")]
pub const LAPS: [&str; 7] = ["admit", "reserve", "copy", "install", "mark", "find", "device"];

/// Clock of a handle.
#[cfg(feature = "measure")]
#[derive(Debug)]
pub(crate) struct Laps {
    last: std::time::Instant,
    pub(crate) ns: [u64; LAPS.len()],
}

#[cfg(feature = "measure")]
impl Laps {
    pub(crate) fn new() -> Self {
        Self { last: std::time::Instant::now(), ns: [0; LAPS.len()] }
    }

    /// A request begins.
    pub(crate) fn begin(&mut self) {
        self.last = std::time::Instant::now();
    }

    /// A part has ended.
    pub(crate) fn end(&mut self, lap: Lap) {
        let now = std::time::Instant::now();
        self.ns[lap as usize] += (now - self.last).as_nanos() as u64;
        self.last = now;
    }
}

/// No clock.
#[cfg(not(feature = "measure"))]
#[derive(Debug)]
pub(crate) struct Laps;

#[cfg(not(feature = "measure"))]
impl Laps {
    pub(crate) fn new() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn begin(&mut self) {}

    #[inline]
    pub(crate) fn end(&mut self, _: Lap) {}
}
