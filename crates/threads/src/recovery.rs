//! Recovery: what a power loss left on the medium becomes map and lines (open-channel §5.6).
//!
//! Every out-of-band record is read. Of all versions of a unit the one with the largest number counts, a deallocation like a write. GC's
//! copy has the number of its original; the one in the line that was opened first counts, so that a line which took nothing but copies is
//! free again, however often the power fails during GC.
//!
//! Deliberately absent: start and end metadata of lines, so a recovery takes as long as the medium is large; and a line that was open
//! takes no more data.

use crate::medium::{Owner, PowerLost};
use crate::shared::Shared;
use crate::versions::{Places, place_of};
use flashweir_core::{Lpn, Ppa};
use flashweir_ftl::host_word::Word;

/// Builds map and lines.
pub(crate) fn recover(shared: &Shared) -> Result<(), PowerLost> {
    let mut best: Vec<(u64, u64, Word)> = vec![(0, 0, Word::Empty); shared.geometry.user_units as usize];
    let (mut newest, mut reads) = (0, 0);
    for ppa in (0..shared.geometry.physical_units()).map(Ppa) {
        let Some((owner, seq)) = shared.medium.record(ppa) else { continue };
        reads += 1;
        newest = newest.max(seq);
        let opening = shared.medium.opening(ppa);
        let (lpn, word) = match owner {
            Owner::Unit(lpn) => (lpn, Word::Place(ppa)),
            Owner::Trim(lpn) => (lpn, Word::Trimmed(ppa)),
            Owner::Pad => continue,
        };
        if let Some(best) = best.get_mut(lpn.0 as usize)
            && (seq > best.0 || seq == best.0 && opening < best.1)
        {
            *best = (seq, opening, word);
        }
    }
    for (lpn, (.., word)) in (0..).map(Lpn).zip(best) {
        shared.versions.map.exchange(lpn, word);
        if let Some(ppa) = place_of(word) {
            shared.lines.set_valid(ppa);
        }
    }
    shared.versions.set_next_seq(newest + 1);
    shared.lines.set_next_opening(shared.medium.last_opening() + 1);
    for line in shared.lines.empty() {
        shared.lines.erase(line)?;
    }
    for group in 0..shared.lines.groups() {
        shared.free_changed(group);
    }
    shared.collector_counters().recovery_reads.add(reads);
    Ok(())
}
