//! Tells whether a mutant is active: `cargo xtask mutants` inserts calls of [`is`] into a copy of the durability paths.
//!
//! Place: behind the feature `mutants`, which only that copy enables; no release contains it.
//!
//! Invariant: with no mutant active every answer is false. The environment is read once, at the first call:
//! `FLASHWEIR_MUTANT` is the number of the active mutant. Where `FLASHWEIR_MUTANTS_REACHED` names a file instead, no
//! mutant is active and each number that is asked for is written to that file once.
//!
//! Deliberately absent: the mutants themselves; they exist only in the source text of the copy.

use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// State before the first call: the environment has not been read.
const UNREAD: u32 = u32::MAX;

/// No mutant is active; the numbers that are asked for are recorded.
const LISTED: u32 = u32::MAX - 1;

/// Number of the active mutant; 0 means none.
static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

/// File that receives the numbers.
static LIST: Mutex<Option<File>> = Mutex::new(None);

/// Upper bound of the mutants' numbers.
const NUMBERS: usize = 1 << 15;

/// Numbers that have been recorded already.
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
