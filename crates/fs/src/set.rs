//! Sets of pages by SHARE (share §7.9): pages of several files change together on a file system that does not journal data. Likewise the
//! exchange of two ranges (share §10.5).
//!
//! Place in the data flow: [`Fs::write_set`] and [`Fs::exchange_pages`] of a format whose disk has SHARE come here.
//!
//! ```text
//!  1. pages without a block of their own get one, with what they show now; a file that grows gets its length; fsync
//!  2. the new contents are written to a file without a name
//!  3. one SHARE: blocks of the pages ← blocks of that file.   No metadata change, so there is nothing that a power cut could tear.
//! ```
//!
//! Invariants:
//! 1. When the SHARE is submitted, the durable metadata lead to the blocks that it changes.
//! 2. What a set needs is reserved before anything changes. A set that is refused gives it back, and the new lengths.
//!
//! Deliberately absent: growth as a part of the set. A power cut may show a file with its new length and zeros behind the old end.

use crate::engine::{Engine, Nodes};
use crate::port::{BLOCK_BYTES, bytes_of};
use crate::vfs::{
    DirtyPage, Errno, Fs, Ino, Kind, NewAcls, NewNode, RwLock, SetPart, SyncKind, Timestamp, WriteCause,
};
use flashweir_core::Payload;
use std::cell::Cell;

type Result<T> = std::result::Result<T, Errno>;
type Number<E> = <<E as Engine>::State as Nodes>::Number;

const PAGE: u64 = BLOCK_BYTES as u64;
/// How often the pages of a set are given homes before the caller is told to try again: cleaning may move them each time.
const TRIES: u32 = 64;

/// A page: its file, and its number there.
pub(crate) type Page<E> = (Number<E>, u64);
/// A page, and the one whose content it takes over.
pub(crate) type PagePair<E> = (Page<E>, Page<E>);

/// The file without a name, and who uses it. It is made for the first set and goes at unmount, or by recovery.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    lock: RwLock,
    ino: Cell<Option<Ino>>,
}

/// A format whose pages can take over blocks.
pub(crate) trait Homes: Engine {
    fn scratch(&self) -> &Scratch;
    /// Most pages of one SHARE.
    fn share_max(&self) -> u64;
    /// Gives the room of a page back, unless it was written since.
    async fn give_room_back(&self, ino: Number<Self>, index: u64) -> Result<()>;
    /// Whether a page has a block of its own that may be overwritten.
    async fn has_home(&self, ino: Number<Self>, index: u64) -> Result<bool>;
    /// Whether the durable metadata lead to the blocks of a file's pages.
    async fn is_settled(&self, ino: Number<Self>) -> Result<bool>;
    /// Gives the blocks of the first page of each pair the contents of the second one, all at once. Returns false, and nothing has
    /// changed, if one of the former has no block now that may be overwritten, or its file is not settled.
    async fn share_over(&self, pairs: &[PagePair<Self>]) -> Result<bool>;
}

impl Scratch {
    /// Gives the file up, before an unmount.
    pub(crate) async fn end<E: Engine>(&self, fs: &E) -> Result<()> {
        match self.ino.take() {
            Some(ino) => Fs::release(fs, ino).await,
            None => Ok(()),
        }
    }

    async fn number<E: Engine>(&self, fs: &E, now: Timestamp) -> Result<Number<E>> {
        let ino = match self.ino.get() {
            Some(ino) => ino,
            None => {
                let acls = NewAcls::default();
                let node = NewNode { kind: Kind::File, mode: 0o600, uid: 0, gid: 0, now, acls };
                let made = Fs::create_nameless(fs, Fs::root(fs), &node).await?.ino;
                self.ino.set(Some(made));
                made
            }
        };
        E::State::number(ino)
    }
}

/// Writes a set; see the module. Completes when the device has answered.
pub(crate) async fn write<E: Homes>(fs: &E, parts: &[SetPart]) -> Result<()> {
    let count = parts.iter().map(|part| part.pages.len() as u64).sum::<u64>();
    if count > fs.share_max() {
        return Err(Errno::EFBIG);
    }
    let _alone = fs.scratch().lock.alone().await;
    let mut undo = Undo { lengths: Vec::new(), rooms: Vec::new() };
    let written = write_pages(fs, parts, &mut undo).await;
    if written.is_err() {
        undo.run(fs).await;
    }
    written
}

/// What a refused set gives back.
struct Undo<E: Homes> {
    /// Files that became longer, with their lengths of before.
    lengths: Vec<(Number<E>, u64)>,
    /// Pages for which room was reserved.
    rooms: Vec<(Number<E>, u64)>,
}

impl<E: Homes> Undo<E> {
    /// Errors have no receiver: the set has one already, and a volume that has failed keeps what it has.
    async fn run(self, fs: &E) {
        for (ino, index) in self.rooms {
            let _ = fs.give_room_back(ino, index).await;
        }
        for (ino, length) in self.lengths {
            let _ = Engine::resize(fs, ino, length).await;
        }
        if let Some(Ok(scratch)) = fs.scratch().ino.get().map(E::State::number) {
            let _ = Engine::resize(fs, scratch, 0).await;
        }
    }
}

async fn write_pages<E: Homes>(fs: &E, parts: &[SetPart], undo: &mut Undo<E>) -> Result<()> {
    let contents: Vec<DirtyPage> = (0..)
        .zip(parts.iter().flat_map(|part| &part.pages))
        .map(|(index, page)| DirtyPage { index, payload: page.payload.clone() })
        .collect();
    let count = contents.len() as u64;
    let files: Vec<Number<E>> = parts.iter().map(|part| E::State::number(part.ino)).collect::<Result<_>>()?;
    if count == 0 {
        grow(fs, parts, undo).await?;
        settle(fs, &files, &[]).await?;
        return note(fs, parts);
    }
    let mut homes = Vec::new();
    for part in parts {
        let ino = E::State::number(part.ino)?;
        homes.extend(part.pages.iter().map(|page| (ino, page.index)));
    }
    let now = parts.iter().filter_map(|part| part.changed).max().unwrap_or_default();
    let scratch = fs.scratch().number(fs, now).await?;
    Engine::reserve(fs, scratch, (0, count * PAGE)).await?;
    undo.rooms.extend((0..count).map(|index| (scratch, index)));
    let homeless = reserve_homes(fs, &homes, undo).await?;
    Engine::write_pages(fs, scratch, &contents, WriteCause::Direct).await?;
    Engine::wrote(fs, scratch, count * PAGE, now);
    grow(fs, parts, undo).await?;
    let sources = (0..count).map(|index| (scratch, index));
    let pairs: Vec<PagePair<E>> = homes.into_iter().zip(sources).collect();
    share(fs, &files, &pairs, homeless).await?;
    note(fs, parts)
}

/// Exchanges pages of two files, or of two ranges of one: a power cut leaves all exchanged, or none. No data are written but zeros where a
/// page is a hole. Completes when the device has answered.
pub(crate) async fn exchange<E: Homes>(
    fs: &E,
    (one, first): Page<E>,
    (other, second): Page<E>,
    count: u64,
) -> Result<()> {
    if 2 * count > fs.share_max() {
        return Err(Errno::EFBIG);
    }
    let _alone = fs.scratch().lock.alone().await;
    let there = (0..count).map(|at| ((one, first + at), (other, second + at)));
    let back = there.clone().map(|(page, source)| (source, page));
    let pairs: Vec<PagePair<E>> = there.chain(back).collect();
    let homes: Vec<Page<E>> = pairs.iter().map(|(home, _)| *home).collect();
    let mut undo = Undo { lengths: Vec::new(), rooms: Vec::new() };
    let exchanged = async {
        let homeless = reserve_homes(fs, &homes, &mut undo).await?;
        share(fs, &[one, other], &pairs, homeless).await
    };
    let exchanged = exchanged.await;
    if exchanged.is_err() {
        undo.run(fs).await;
    }
    exchanged
}

/// Reserves room for those of the pages that have no block that may be overwritten, and returns them.
async fn reserve_homes<E: Homes>(fs: &E, homes: &[Page<E>], undo: &mut Undo<E>) -> Result<Vec<Page<E>>> {
    let homeless = find_homeless(fs, homes).await?;
    for &(ino, index) in &homeless {
        if Engine::reserve(fs, ino, (index * PAGE, (index + 1) * PAGE)).await? {
            undo.rooms.push((ino, index));
        }
    }
    Ok(homeless)
}

/// Gives pages the contents of others by one SHARE, once the durable metadata of `files` lead to their blocks.
async fn share<E: Homes>(
    fs: &E,
    files: &[Number<E>],
    pairs: &[PagePair<E>],
    mut homeless: Vec<Page<E>>,
) -> Result<()> {
    let homes: Vec<Page<E>> = pairs.iter().map(|(home, _)| *home).collect();
    for _ in 0..TRIES {
        settle(fs, files, &homeless).await?;
        if fs.share_over(pairs).await? {
            return Ok(());
        }
        // Cleaning has moved a page since.
        homeless = find_homeless(fs, &homes).await?;
    }
    Err(Errno::EBUSY)
}

/// Notes the new lengths and times of a set that is written.
fn note<E: Engine>(fs: &E, parts: &[SetPart]) -> Result<()> {
    for part in parts {
        if let Some(changed) = part.changed {
            Engine::wrote(fs, E::State::number(part.ino)?, part.end, changed);
        }
    }
    Ok(())
}

/// Pages without a block that may be overwritten.
async fn find_homeless<E: Homes>(fs: &E, homes: &[Page<E>]) -> Result<Vec<Page<E>>> {
    let mut without = Vec::new();
    for &(ino, index) in homes {
        if !fs.has_home(ino, index).await? {
            without.push((ino, index));
        }
    }
    Ok(without)
}

/// Gives files that become longer their lengths. Bytes behind the old ends, which a power cut can have left there, become zeros before.
async fn grow<E: Homes>(fs: &E, parts: &[SetPart], undo: &mut Undo<E>) -> Result<()> {
    for part in parts {
        let size = Fs::getattr(fs, part.ino).await?.size;
        if part.end <= size {
            continue;
        }
        let ino = E::State::number(part.ino)?;
        if !size.is_multiple_of(PAGE) {
            let (index, tail) = (size / PAGE, (size % PAGE) as usize);
            let mut bytes = bytes_of(&read_page(fs, ino, index).await?).to_vec();
            bytes[tail..].fill(0);
            let page = DirtyPage { index, payload: Payload::Bytes(bytes.into()) };
            Engine::reserve(fs, ino, (index * PAGE, size)).await?;
            Engine::write_pages(fs, ino, &[page], WriteCause::Sync).await?;
        }
        undo.lengths.push((ino, size));
        Engine::resize(fs, ino, part.end).await?;
    }
    Ok(())
}

async fn read_page<E: Engine>(fs: &E, ino: Number<E>, index: u64) -> Result<Payload> {
    let mut pages = [Payload::Zero];
    Engine::read_pages(fs, ino, index, &mut pages).await?;
    let [page] = pages;
    Ok(page)
}

/// Writes what pages without a block show now, and makes durable how the blocks of a set are found, and the lengths.
async fn settle<E: Homes>(fs: &E, files: &[Number<E>], homeless: &[Page<E>]) -> Result<()> {
    for &(ino, index) in homeless {
        let payload = read_page(fs, ino, index).await?;
        Engine::write_pages(fs, ino, &[DirtyPage { index, payload }], WriteCause::Sync).await?;
    }
    for &ino in files {
        if !fs.is_settled(ino).await? {
            Engine::fsync(fs, ino, SyncKind::Data).await?;
        }
    }
    Ok(())
}
