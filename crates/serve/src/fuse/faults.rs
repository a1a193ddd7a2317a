//! Where faults of LazyFS's kind meet the requests of the kernel.
//!
//! Place in the data flow: [`super::front`] runs each operation through [`Table::around`]; when the power has to be cut, the world finds
//! that in [`Table::take_crash`] and cuts it. Until then the request that caused it stays unanswered.

use super::kernel::NodeId;
use super::lazyfs::{BadCommand, Crash, Fault, Kept, Operation, Timing};
use super::table::{Due, Table};
use flashweir_fs::vfs::{Access, Creds, Errno, Fs, Kind, OpenFlags, Result, Source};
use std::future::Future;

/// Most names of a path; more are a circle.
const PATH_NAMES_MAX: usize = 4096;

impl<F: Fs> Table<F> {
    /// The path of a file or directory, by a name that the kernel knows.
    pub(super) fn path(&self, number: NodeId) -> String {
        let nodes = self.nodes.borrow();
        let (mut names, mut at) = (Vec::new(), number.0);
        while at != NodeId::ROOT.0
            && let Some((dir, name)) = nodes.get(&at).and_then(|node| node.told.names.first())
            && names.len() < PATH_NAMES_MAX
        {
            names.push(String::from_utf8_lossy(name).into_owned());
            at = *dir;
        }
        names.iter().rev().fold(String::new(), |path, name| path + "/" + name)
    }

    pub(super) fn path_in(&self, dir: NodeId, name: &[u8]) -> String {
        self.path(dir) + "/" + &String::from_utf8_lossy(name)
    }

    pub(super) fn arm(&self, fault: Fault) -> std::result::Result<(), BadCommand> {
        self.faults.borrow_mut().arm(fault)
    }

    /// Returns whether the power has to be cut, with the parts of unsynced writes that remain.
    pub(super) fn take_crash(&self, due: Due) -> Option<Vec<Kept>> {
        let is_due = self.crash.get() == Some(due);
        is_due.then(|| self.faults.borrow_mut().take_kept())
    }

    /// Called before or after an operation on these paths; if the power is cut here, the call never returns.
    async fn fault(
        &self,
        at: Timing,
        operation: Operation,
        paths: impl FnOnce() -> (String, Option<String>),
    ) {
        if self.faults.borrow().is_empty() {
            return;
        }
        let (path, other) = paths();
        if at == Timing::After && operation == Operation::Fsync {
            self.faults.borrow_mut().synced(&path);
        }
        if self.faults.borrow().crashes(at, operation, (&path, other.as_deref())) {
            self.crash.set(Some(Due::Now));
            std::future::pending::<()>().await;
        }
    }

    /// Writes the part that remains of an unsynced write; the file is made if it is missing, as by LazyFS.
    pub(super) async fn write_kept(&self, kept: &Kept) -> Result<()> {
        let (vfs, creds) = (self.vfs(), Creds::checked(0, 0));
        let mut names = kept.file.split('/').filter(|name| !name.is_empty()).peekable();
        let mut at = vfs.root();
        while let Some(name) = names.next() {
            at = match vfs.lookup_name(at, name.as_bytes()).await {
                Err(Errno::ENOENT) if names.peek().is_none() => {
                    vfs.make_node(&creds, at, name.as_bytes(), Kind::File, 0o666).await?.ino
                }
                found => found?.ino,
            };
        }
        let flags = OpenFlags { access: Access::ReadWrite, ..OpenFlags::default() };
        let file = vfs.open_inode(&creds, at, flags).await?;
        file.pwrite(kept.offset, Source::bytes(&kept.bytes)).await?;
        file.close().await
    }

    /// Does the same around an operation.
    pub(super) async fn around<T>(
        &self,
        operation: Operation,
        paths: impl Fn() -> (String, Option<String>),
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.fault(Timing::Before, operation, &paths).await;
        let result = work.await;
        if result.is_ok() {
            self.fault(Timing::After, operation, &paths).await;
        }
        result
    }

    /// A file is written to; returns true if nothing else may happen, because the power is cut before the next request.
    pub(super) async fn write_fault(&self, number: NodeId, offset: u64, bytes: &[u8]) -> bool {
        if self.faults.borrow().is_empty() {
            return false;
        }
        let path = self.path(number);
        let crash = self.faults.borrow_mut().written(&path, offset, bytes);
        match crash {
            None => false,
            Some(Crash { returns: true }) => {
                self.crash.set(Some(Due::Next));
                true
            }
            Some(Crash { returns: false }) => {
                self.crash.set(Some(Due::Now));
                std::future::pending().await
            }
        }
    }
}
