//! Disks for tests of file systems: one that remembers and takes its time, one that tells how much was under way.

use crate::bed::{Bed, cache_of};
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_core::{Duration, Order, Payload, RandomStream};
use flashweir_fs::port::{BlockPort, Image, PortError, Request, Ticket, Write};
use flashweir_fs::vfs::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A page that says where it belongs and when it was written.
pub(crate) fn page(at: u64, version: u64) -> [u8; 4096] {
    let mut bytes = [at as u8 ^ version as u8; 4096];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// A disk that remembers what was asked of it, and takes its time once it has a clock.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) image: Rc<Image>,
    pub(crate) requests: RefCell<Vec<Request>>,
    pub(crate) refuses_shares: Cell<bool>,
    /// Writes that begin with this content fail.
    pub(crate) refused: RefCell<Option<Payload>>,
    /// Writes of this block fail.
    pub(crate) refused_block: Cell<Option<u64>>,
    clock: RefCell<Option<Handle>>,
    requests_slow: Cell<u64>,
}

impl Disk {
    pub(crate) fn new(image: Rc<Image>) -> Rc<Self> {
        let (requests, refuses_shares) = (RefCell::default(), Cell::new(false));
        Rc::new(Self {
            image,
            requests,
            refuses_shares,
            refused: RefCell::default(),
            refused_block: Cell::default(),
            clock: RefCell::default(),
            requests_slow: Cell::new(0),
        })
    }

    /// Has a file system on it, with a small cache.
    pub(crate) fn bed<F: Fs>(&self, fs: F, is_slow: bool) -> Bed<F> {
        let bed = Bed::mount(MountOptions { cache: cache_of(64), ..MountOptions::default() }, |_| fs);
        *self.clock.borrow_mut() = is_slow.then(|| bed.handle.clone());
        bed
    }
}

impl BlockPort for Disk {
    fn capacity_blocks(&self) -> u64 {
        self.image.capacity_blocks()
    }

    fn share_blocks_max(&self) -> u32 {
        self.image.share_blocks_max()
    }

    fn submit(&self, request: Request) -> Ticket {
        if self.refuses_shares.get() && matches!(request, Request::Share(_)) {
            return Ticket::done(Err(PortError::Image("no SHARE now".into())));
        }
        if let (Request::Write(write), Some(refused)) = (&request, &*self.refused.borrow())
            && write.payloads.iter().next() == Some(refused)
        {
            return Ticket::done(Err(PortError::Image("a bad place".into())));
        }
        if let (Request::Write(write), Some(block)) = (&request, self.refused_block.get())
            && (write.block.0..write.block.0 + write.payloads.len() as u64).contains(&block)
        {
            return Ticket::done(Err(PortError::Image("a bad block".into())));
        }
        if !matches!(request, Request::Read { .. }) {
            self.requests.borrow_mut().push(request.clone());
        }
        let answer = self.image.submit(request);
        let Some(handle) = self.clock.borrow().clone() else { return answer };
        let number = self.requests_slow.get();
        self.requests_slow.set(number + 1);
        // Later requests may overtake earlier ones.
        let span = Duration::from_micros(50 + mix(number) % 400);
        let (progress, ticket) = Ticket::new();
        progress.dispatched();
        let end = handle.now() + span;
        let clock = handle.clone();
        handle.spawn(async move {
            clock.sleep_until(end).await;
            progress.complete(answer.completed().await);
        });
        ticket
    }
}

/// Several tasks change files and names at once; each finds what it wrote. Then the file system is unmounted.
pub(crate) fn many_at_once<F: Fs>(mut bed: Bed<F>, seed: u64) {
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    let ended = Rc::new(());
    for task in 0..6_u64 {
        let (vfs, ended) = (vfs.clone(), Rc::clone(&ended));
        bed.executor.spawn(async move {
            let root = vfs.process(Creds::ROOT);
            let mut random = RandomStream::new(seed, &format!("task {task}"));
            let dir = format!("/task{task}");
            root.mkdir(&dir, 0o755).await.unwrap();
            let mut model = BTreeMap::new();
            for round in 0..150 {
                let name = format!("{dir}/{}{}", random.below(12), "n".repeat(100));
                let file = root.open(&name, OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
                let at = random.below(200);
                file.pwrite(at * 4096, Source::bytes(&page(at, round))).await.unwrap();
                model.insert((name.clone(), at), round);
                match random.below(8) {
                    0 => file.sync(SyncKind::All).await.unwrap(),
                    1 => vfs.sync_all().await.unwrap(),
                    2 => file.sync(SyncKind::Data).await.unwrap(),
                    3 => {
                        file.truncate(at * 4096).await.unwrap();
                        model.retain(|(other, page), _| *other != name || *page < at);
                    }
                    4 => {
                        root.unlink(&name).await.unwrap();
                        model.retain(|(other, _), _| *other != name);
                    }
                    6 if vfs.fs().has_barriers() => {
                        let kind = if round % 2 == 0 { Barrier::All } else { Barrier::Data };
                        file.barrier(kind).await.unwrap();
                    }
                    5 => file.allocate(at * 4096, 40_000, true).await.unwrap(),
                    _ => (),
                }
                file.close().await.unwrap();
            }
            for ((name, at), version) in model {
                let file = root.open(&name, OpenFlags::READ.direct(), 0).await.unwrap();
                let mut bytes = [0; 4096];
                assert_eq!(file.pread(at * 4096, Sink::bytes(&mut bytes)).await, Ok(4096), "{name} {at}");
                assert!(bytes == page(at, version), "{name} {at}: {version}");
                file.close().await.unwrap();
            }
            drop(ended);
        });
    }
    bed.run(async move {
        while Rc::strong_count(&ended) > 1 {
            handle.sleep_until(handle.now() + Duration::from_millis(10)).await;
        }
        vfs.unmount().await.unwrap();
    });
}

/// What was submitted, and how much was under way then, of everything that changes the disk.
#[derive(Debug)]
pub(crate) struct Timeline {
    disk: Rc<Disk>,
    events: RefCell<Vec<(Request, usize)>>,
    under_way: Rc<Cell<usize>>,
    handle: RefCell<Option<Handle>>,
}

impl Timeline {
    pub(crate) fn new(image: Rc<Image>) -> Rc<Self> {
        let (events, under_way, handle) = (RefCell::default(), Rc::default(), RefCell::default());
        Rc::new(Self { disk: Disk::new(image), events, under_way, handle })
    }
}

impl BlockPort for Timeline {
    fn capacity_blocks(&self) -> u64 {
        self.disk.capacity_blocks()
    }

    fn submit(&self, request: Request) -> Ticket {
        let Some(handle) = self.handle.borrow().clone() else { return self.disk.submit(request) };
        if matches!(request, Request::Read { .. }) {
            return self.disk.submit(request);
        }
        self.events.borrow_mut().push((request.clone(), self.under_way.get()));
        self.under_way.set(self.under_way.get() + 1);
        let (answer, under_way) = (self.disk.submit(request), Rc::clone(&self.under_way));
        let (progress, ticket) = Ticket::new();
        progress.dispatched();
        handle.spawn(async move {
            let answer = answer.completed().await;
            under_way.set(under_way.get() - 1);
            progress.complete(answer);
        });
        ticket
    }
}

/// Each request as a letter: that of `kind` for a write, F flush, R range flush, T discard, B barrier of no length, S SHARE. `+` joins the
/// open epoch, `|` closes it, `'` says that nothing was under way.
fn word((request, under_way): &(Request, usize), kind: impl Fn(&Write) -> &'static str) -> String {
    let (letter, order) = match request {
        Request::Write(write) => (kind(write), write.order),
        Request::Flush => ("F", None),
        Request::RangeFlush(_) => ("R", None),
        Request::Discard { order, .. } => ("T", *order),
        Request::Report(_) => ("?", None),
        Request::Barrier(_) => ("B", None),
        Request::Share(share) => ("S", share.order),
        Request::Read { .. } => ("?", None),
    };
    let order = match order {
        Some((_, Order::Barrier)) => "|",
        Some((_, Order::Within)) => "+",
        None => "",
    };
    format!("{}{letter}{order}", if *under_way == 0 { "'" } else { "" })
}

/// The requests of a call on a file that has just got a page more.
pub(crate) fn requests_of<F: Fs>(
    log: Rc<Timeline>,
    fs: F,
    kind: impl Fn(&Write) -> &'static str + 'static,
    call: impl AsyncFnOnce(&File<F>) + 'static,
) -> String {
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    *log.disk.clock.borrow_mut() = Some(bed.handle.clone());
    *log.handle.borrow_mut() = Some(bed.handle.clone());
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.open("/file", OpenFlags::READ_WRITE.create(), 0o644).await.unwrap();
        file.pwrite(0, Source::bytes(&page(0, 0))).await.unwrap();
        // The first sync is not like others: it also says that the volume is in use.
        file.sync(SyncKind::All).await.unwrap();
        file.pwrite(4096, Source::bytes(&page(1, 1))).await.unwrap();
        log.events.borrow_mut().clear();
        call(&file).await;
        let events = log.events.take();
        file.close().await.unwrap();
        vfs.unmount().await.unwrap();
        events.iter().map(|event| word(event, &kind)).collect()
    })
}
