//! Whether a mutant is active: `cargo xtask mutants` writes questions of it into a copy of the durability paths.
//!
//! Place: behind the feature `mutants`, which only that copy enables; no release has it.
//!
//! Invariant: with no mutant active every answer is no. The environment is read once, at the first question: `FLASHWEIR_MUTANT` is the
//! number of the active mutant, and where `FLASHWEIR_MUTANTS_REACHED` names a file instead, every number that is asked for is
//! written to it once.
//!
//! Deliberately absent: the mutants; they are texts of the copy.

use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Nobody asked yet.
const UNREAD: u32 = u32::MAX;

/// No mutant is active, and what is asked for is written down.
const LISTED: u32 = u32::MAX - 1;

/// The number of the active mutant; 0 is none.
static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

/// Where the numbers go.
static LIST: Mutex<Option<File>> = Mutex::new(None);

/// More mutants than there are.
const NUMBERS: usize = 1 << 15;

/// Those that are there.
static REACHED: [AtomicBool; NUMBERS] = [const { AtomicBool::new(false) }; NUMBERS];

/// Whether this mutant is the active one.
#[inline(always)]
pub fn is(id: u32) -> bool {
    let active = ACTIVE.load(Ordering::Relaxed);
    (active == id || active >= LISTED) && is_slowly(id)
}

#[cold]
#[inline(never)]
fn is_slowly(id: u32) -> bool {
    if ACTIVE.load(Ordering::Relaxed) == UNREAD {
        read();
    }
    let active = ACTIVE.load(Ordering::Relaxed);
    if active == LISTED && !REACHED[id as usize].load(Ordering::Relaxed) {
        let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        if !REACHED[id as usize].swap(true, Ordering::Relaxed) {
            writeln!(list.as_mut().expect("a list has a file"), "{id}")
                .expect("the list of mutants is written");
        }
    }
    active == id
}

fn read() {
    let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
    if ACTIVE.load(Ordering::Relaxed) != UNREAD {
        return;
    }
    let mut active = std::env::var("FLASHWEIR_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if let Some(path) = std::env::var_os("FLASHWEIR_MUTANTS_REACHED") {
        *list = Some(File::create(path).expect("the list of mutants is created"));
        active = LISTED;
    }
    ACTIVE.store(active, Ordering::Relaxed);
}
