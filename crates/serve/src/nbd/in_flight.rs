//! The requests of one session that wait for their answer.
//!
//! Cookies are the client's and may repeat, so requests have names of our own.
//!
//! Invariants: a token is valid from the request to its answer and never again; the bytes in flight are the sum over
//! the requests.

/// The session's name for a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    slot: u32,
    generation: u32,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A read; `whole` asks for one chunk.
    Read { whole: bool },
    /// Block status; `one` asks for one extent.
    BlockStatus { one: bool },
    /// Answered without a payload.
    Other,
}

/// Data about a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) kind: Kind,
    /// Bytes that count against the connection's memory.
    pub(super) bytes: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    pending: Option<Pending>,
}

/// A table of requests, named by tokens.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<u32>,
    bytes: u64,
}

impl InFlight {
    /// Requests in the table.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes that the requests count.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory of the table and the requests, in bytes.
    pub(super) fn capacity_bytes(&self) -> usize {
        let table = self.slots.capacity() * size_of::<Slot>() + self.free.capacity() * size_of::<u32>();
        table + self.bytes as usize
    }

    /// A new request.
    #[inline]
    pub(super) fn insert(&mut self, pending: Pending) -> Token {
        self.bytes += u64::from(pending.bytes);
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.slots[slot as usize];
            debug_assert!(entry.pending.is_none());
            entry.pending = Some(pending);
            return Token { slot, generation: entry.generation };
        }
        let slot = u32::try_from(self.slots.len()).expect("limits keep the table far below 2^32");
        self.slots.push(Slot { generation: 0, pending: Some(pending) });
        Token { slot, generation: 0 }
    }

    /// Takes a request that is being answered.
    ///
    /// # Panics
    /// The request was answered before: a bug of the caller.
    #[inline]
    #[track_caller]
    pub(super) fn take(&mut self, token: Token) -> Pending {
        let slot = &mut self.slots[token.slot as usize];
        assert_eq!(slot.generation, token.generation, "a request is answered once");
        let pending = slot.pending.take().expect("a request is answered once");
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(token.slot);
        self.bytes -= u64::from(pending.bytes);
        pending
    }
}
