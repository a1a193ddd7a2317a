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
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Nobody asked yet.
const UNREAD: u32 = u32::MAX;

/// No mutant is active, and what is asked for is written down.
const LISTED: u32 = u32::MAX - 1;

/// The number of the active mutant; 0 is none.
static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

/// Where the numbers go, and those that are there.
static REACHED: Mutex<Option<(File, Vec<bool>)>> = Mutex::new(None);

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
    if active == LISTED {
        let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, numbers) = reached.as_mut().expect("a list has a file");
        let at = id as usize;
        if numbers.len() <= at {
            numbers.resize(at + 1, false);
        }
        if !std::mem::replace(&mut numbers[at], true) {
            writeln!(file, "{id}").expect("the list of mutants is written");
        }
    }
    active == id
}

fn read() {
    let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    if ACTIVE.load(Ordering::Relaxed) != UNREAD {
        return;
    }
    let mut active = std::env::var("FLASHWEIR_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if let Some(path) = std::env::var_os("FLASHWEIR_MUTANTS_REACHED") {
        *reached = Some((File::create(path).expect("the list of mutants is created"), Vec::new()));
        active = LISTED;
    }
    ACTIVE.store(active, Ordering::Relaxed);
}
