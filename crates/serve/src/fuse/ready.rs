//! A world that can be mounted: what it tells the thread that mounts it, and how the kernel's session begins.
//!
//! Invariant: once the kernel knows the mount, a start that fails unmounts the directory.

use super::front::{Front, wanted};
use super::kernel::{Mounting, Session, attach};
use super::message::{Message, Own, Post, Queue};
use super::release::release;
use super::stale::Teller;
use flashweir_fs::vfs::Fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Threads that take requests from the kernel.
const THREADS: usize = 4;

/// Begins the kernel's session.
pub(super) type Start = Box<dyn FnOnce(&Path, &Mounting) -> io::Result<Session> + Send>;

/// A world that can be mounted.
pub(super) struct Ready {
    pub(super) post: Arc<dyn Post>,
    pub(super) start: Start,
    pub(super) format: &'static str,
    pub(super) device: String,
    pub(super) bytes: u64,
}

impl Ready {
    pub(super) fn new<F: Fs>(
        queue: Queue<F>,
        format: &'static str,
        device: String,
        bytes: u64,
        writes_back: bool,
    ) -> Self {
        let post: Arc<dyn Post> = Arc::new(queue.clone());
        let start: Start = Box::new(move |directory, how| {
            let attached = attach(directory, how, wanted(writes_back))?;
            let notifier = attached.notifier();
            let teller = Teller::begin(&notifier).inspect_err(|_| {
                release(directory);
            })?;
            let front = |queue: Queue<F>, later| Front {
                queue,
                later,
                teller: teller.clone(),
                writes_back,
                directory: directory.to_owned(),
            };
            let own = Own::new(|own| attached.inlet(Arc::new(front(own, queue.clone()))));
            // The world exists until it gets the message of the end.
            queue.send(Message::Kernel(notifier.clone(), own));
            attached.begin(front(queue.clone(), queue), THREADS).inspect_err(|_| {
                release(directory);
            })
        });
        Self { post, start, format, device, bytes }
    }
}
