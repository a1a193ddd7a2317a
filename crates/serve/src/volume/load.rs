//! From files to a medium: the state of each block and page, and impossible states.
//!
//! Invariant: one interrupted write is what the end of a process leaves, and it lies where the next write was due. A
//! second one, one elsewhere, or any after a clean stop, is damage: it is reported, and never guessed away.

use super::format::{
    Found, JournalRecord, PageContent, PageRecord, SLOT_BYTES, decode_block, decode_journal, decode_page,
};
use super::host::{Host, Part};
use super::store::{JournalEnd, Layout};
use super::torn::Torn;
use flashweir_device::flash::{Media, SaveArea};
use flashweir_device::geometry::PageAddr;
use flashweir_ftl::BlockId;
use std::io;

/// Something in a volume's files that no end of a process explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file.
    pub file: &'static str,
    /// Place in it, in words; may be empty.
    pub place: String,
    /// The fault.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gap = if self.place.is_empty() { "" } else { ", " };
        write!(f, "{}{gap}{}: {}", self.file, self.place, self.what)
    }
}

/// Most problems that are listed.
const PROBLEMS_MAX: usize = 1000;

/// A medium that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) media: Media,
    /// Places of its files' records.
    layout: Layout,
    /// Changes that each block has seen.
    pub(crate) changes: Vec<u32>,
    pub(crate) problems: Vec<Problem>,
    /// Writes that were interrupted, apart from the journal's.
    pub(crate) torn: Vec<Torn>,
    /// Number of blocks that hold anything.
    pub(crate) blocks_used: u32,
}

impl Loaded {
    pub(crate) fn problem(&mut self, part: Part, place: String, what: &str) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { file: part.name(), place, what: what.to_owned() });
        }
    }
}

/// The name of a page, for messages.
pub(crate) fn page_name(at: PageAddr) -> String {
    format!("block {}, page {}", at.block.0, at.page)
}

/// Reads `blocks` and `oob`. `media` is new; `clean` says that nothing can have been interrupted. `progress` gets the
/// fraction that is done.
pub(crate) fn load(
    host: &dyn Host,
    layout: &Layout,
    media: Media,
    clean: bool,
    progress: &mut dyn FnMut(f64),
) -> io::Result<Loaded> {
    let mut loaded = Loaded {
        media,
        layout: *layout,
        changes: Vec::new(),
        problems: Vec::new(),
        torn: Vec::new(),
        blocks_used: 0,
    };
    let mut slots = vec![0; layout.blocks as usize * 2 * SLOT_BYTES];
    host.read_at(Part::Blocks, 0, &mut slots)?;
    let mut records = vec![0; layout.record_bytes() * layout.pages_per_block as usize];
    for (block, slots) in (0..layout.blocks).map(BlockId).zip(slots.chunks(2 * SLOT_BYTES)) {
        progress(f64::from(block.0) / f64::from(layout.blocks));
        let Some((change, health, torn)) = decode_block(slots, block.0) else {
            loaded.changes.push(0);
            loaded.problem(Part::Blocks, format!("block {}", block.0), "both slots are wrong");
            continue;
        };
        loaded.changes.push(change);
        if torn {
            loaded.torn.push(Torn::Block(block, health));
        }
        loaded.media.restore_block(block, health);
        records.fill(0);
        host.read_at(layout.oob(), u64::from(block.0) * records.len() as u64, &mut records)?;
        let pages = decode_pages(&records, layout, block, health.erases);
        take_pages(&mut loaded, block, pages, health.erases);
    }
    if clean || loaded.torn.len() > 1 {
        let when = if clean { "interrupted, and yet it was closed" } else { "more than one was interrupted" };
        for torn in loaded.torn.clone() {
            match torn {
                Torn::Block(block, _) => loaded.problem(Part::Blocks, format!("block {}", block.0), when),
                Torn::Page(at, ..) => loaded.problem(loaded.layout.oob(), page_name(at), when),
            }
        }
    }
    Ok(loaded)
}

pub(crate) fn decode_pages<'a>(
    records: &'a [u8],
    layout: &'a Layout,
    block: BlockId,
    erases: u32,
) -> impl Iterator<Item = (PageAddr, Found<PageRecord>)> + use<'a> {
    records.chunks(layout.record_bytes()).zip(0..).map(move |(bytes, page)| {
        let at = PageAddr { block, page };
        (at, decode_page(layout.format, bytes, layout.page(at), erases, layout.units_per_page))
    })
}

/// Pages that were programmed since the last erase come first, and all in a row.
fn take_pages(
    loaded: &mut Loaded,
    block: BlockId,
    pages: impl Iterator<Item = (PageAddr, Found<PageRecord>)>,
    erases: u32,
) {
    let is_torn = loaded.media.erase_torn(block);
    let mut ended = false;
    let mut opened = 0;
    for (at, found) in pages {
        match found {
            Found::Whole(record) if record.erases == erases => {
                if ended || is_torn {
                    loaded.problem(loaded.layout.oob(), page_name(at), "written where none can have been");
                    continue;
                }
                opened = record.opened;
                take_page(loaded, at, record);
            }
            Found::Whole(record) if record.erases < erases => ended = true,
            Found::Whole(_) => loaded.problem(loaded.layout.oob(), page_name(at), "newer than its block"),
            Found::Blank => ended = true,
            Found::Torn if ended || is_torn => {
                loaded.problem(loaded.layout.oob(), page_name(at), "interrupted where none can have been");
            }
            Found::Torn => {
                loaded.torn.push(Torn::Page(at, erases, opened));
                loaded.media.restore_spoilt(at, opened, at.page);
                ended = true;
            }
            Found::Damaged => {
                loaded.problem(loaded.layout.oob(), page_name(at), "wrong checksum");
                if !ended && !is_torn {
                    loaded.media.restore_spoilt(at, opened, at.page);
                }
            }
        }
    }
    loaded.blocks_used += u32::from(loaded.media.pages_written(block) > 0);
}

fn take_page(loaded: &mut Loaded, at: PageAddr, record: PageRecord) {
    match record.state {
        PageContent::Units(units) => {
            let units = units.iter().map(|unit| (unit.owner, unit.seq, unit.member));
            loaded.media.restore_page(at, record.opened, units);
        }
        PageContent::Unreadable { lost_from } if lost_from <= at.page => {
            loaded.media.restore_spoilt(at, record.opened, lost_from);
        }
        PageContent::Unreadable { .. } => {
            loaded.media.restore_spoilt(at, record.opened, at.page);
            loaded.problem(loaded.layout.oob(), page_name(at), "a word line that begins after its page");
        }
    }
}

/// Reads the capacitor's journals: what it protected, and which one counts.
pub(crate) fn load_journal(
    host: &dyn Host,
    clean: bool,
) -> io::Result<Result<(SaveArea, JournalEnd), Problem>> {
    let problem = |which: usize, at: usize, what: &str| Problem {
        file: Part::Journal(which).name(),
        place: format!("byte {at}"),
        what: what.to_owned(),
    };
    let mut best: Option<(SaveArea, JournalEnd)> = None;
    let mut epochs = Vec::new();
    for which in 0..2 {
        let mut bytes = vec![0; host.len(Part::Journal(which))? as usize];
        let len = host.read_at(Part::Journal(which), 0, &mut bytes)?;
        bytes.truncate(len);
        match parse_journal(&bytes) {
            Ok(parsed) => {
                if clean && parsed.torn {
                    return Ok(Err(problem(which, parsed.len, "interrupted, and yet it was closed")));
                }
                epochs.extend(parsed.epoch);
                let end = JournalEnd { which, epoch: parsed.epoch.unwrap_or(0), len: parsed.len as u64 };
                if parsed.complete && best.as_ref().is_none_or(|(_, best)| end.epoch > best.epoch) {
                    best = Some((parsed.area, end));
                }
            }
            Err(at) => return Ok(Err(problem(which, at, "wrong checksum"))),
        }
    }
    let Some((area, mut end)) = best else {
        return Ok(Err(problem(0, 0, "neither journal is complete")));
    };
    // A journal that was begun and not completed has used its number.
    end.epoch = epochs.into_iter().max().unwrap_or(end.epoch);
    Ok(Ok((area, end)))
}

struct Parsed {
    area: SaveArea,
    epoch: Option<u64>,
    complete: bool,
    torn: bool,
    len: usize,
}

/// Reads one journal; the byte at which it is damaged if it is.
fn parse_journal(bytes: &[u8]) -> Result<Parsed, usize> {
    let mut parsed = Parsed { area: SaveArea::default(), epoch: None, complete: false, torn: false, len: 0 };
    loop {
        match decode_journal(&bytes[parsed.len..], parsed.epoch) {
            Found::Blank => return Ok(parsed),
            Found::Torn => {
                parsed.torn = true;
                return Ok(parsed);
            }
            Found::Damaged => return Err(parsed.len),
            Found::Whole((epoch, record, len)) => {
                match record {
                    JournalRecord::Begin if parsed.epoch.is_none() => parsed.epoch = Some(epoch),
                    _ if parsed.epoch.is_none() => return Err(parsed.len),
                    JournalRecord::Begin => return Err(parsed.len),
                    JournalRecord::Complete => parsed.complete = true,
                    JournalRecord::Saved(saved) => parsed.area.add(saved),
                }
                parsed.len += len;
            }
        }
    }
}
