//! STAND-IN: writes blocks to their places.

use super::super::error::Result as FormatResult;
use super::super::layout::Addr;
use super::super::layout::journal::JournalSuperblock;
use super::errno;
use crate::port::{Block, BlockPort, Write};
use crate::vfs::{Errno, Timestamp};
use flashweir_core::Payload;
use std::rc::Rc;

/// A transaction as it is committed.
#[derive(Debug)]
pub(super) struct Closed {
    pub blocks: Vec<(Addr, Payload)>,
    #[allow(dead_code)]
    pub revoked: Vec<Addr>,
    #[allow(dead_code)]
    pub now: Timestamp,
}

#[derive(Debug)]
pub(super) struct Journal {
    port: Rc<dyn BlockPort>,
    max: usize,
}

impl Journal {
    pub(super) async fn open(
        port: Rc<dyn BlockPort>,
        _superblock: JournalSuperblock,
        blocks: Vec<Addr>,
        _has_barriers: bool,
    ) -> FormatResult<Self> {
        Ok(Self { port, max: blocks.len() / 4 })
    }

    pub(super) fn blocks_max(&self) -> usize {
        self.max
    }

    pub(super) async fn commit(&self, closed: Closed) -> Result<(), Errno> {
        self.port.flush().completed().await.map_err(|error| errno(&error.into()))?;
        for (addr, payload) in closed.blocks {
            let write = Write::new(Block(addr.0), vec![payload]);
            self.port.write(write).completed().await.map_err(|error| errno(&error.into()))?;
        }
        self.port.flush().completed().await.map_err(|error| errno(&error.into()))?;
        Ok(())
    }

    pub(super) async fn empty(&self) -> Result<(), Errno> {
        Ok(())
    }
}
