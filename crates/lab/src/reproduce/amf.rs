//! Studies of the AMF paper (append-segments §8): file systems on cards with a page map, with DFTL, with placement handles, and on
//! segments, in [`cells`]; the cards themselves in [`raw`]; what maps take in [`memory`].

mod cells;
mod memory;
mod raw;

use super::study::Study;

pub(super) const STUDIES: &[Study] = &[
    cells::READS,
    cells::WRITES,
    cells::OTHER_READINGS,
    cells::EQUAL_RAW,
    raw::CARDS,
    raw::STREAMS,
    memory::DEVICE,
    memory::HOST,
];
