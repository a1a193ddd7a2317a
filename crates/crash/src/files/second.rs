//! A second life: a volume that was cut is mounted and used, and the power fails again.
//!
//! Place in the data flow: [`super::explorer`] applies it to some of the images that it recovers.
//!
//! The reference is the volume itself: what it showed after each operation is what it may show after the cut. Behind the end of a file its last
//! page may hold what the first life wrote there; if the file grows past it before that page is written, it shows. Bugs of a recovery that leaves
//! something behind for later are seen here only, such as nodes behind the end of a log that a later log joins.

use super::ace;
use super::allowed::{drawn_state, positions};
use super::case::{Case, Fault, caught};
use super::history::{History, Step};
use super::ops::{Op, Ops, Runner};
use super::tree::Tree;
use super::volume::{Disk as _, forever, mount, recover};
use flashweir_core::RandomStream;
use flashweir_sim::model_port::ModelPort;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Operations of a second life at most, before the last fsync.
const OPS: usize = 6;
/// Cuts of one.
const CUTS: u32 = 3;
/// Number of the first operation, which is in the data that it writes.
const NUMBERS: usize = 0x6000;

/// Draws the operations: those of random sequences that need no open file.
fn drawn(seed: u64) -> Ops {
    let Ops(all) = ace::random(seed);
    let fits = |op: &Op| op.is_of_paths() || matches!(op, Op::Sync | Op::WriteBack);
    let mut ops: Vec<Op> = all.into_iter().filter(fits).take(OPS).collect();
    let last = ops.iter().rev().find_map(|op| op.paths().last().map(|path| (*path).to_owned()));
    ops.extend(last.map(Op::Fsync));
    Ops(ops)
}

/// Executes the operations on what a cut left, and returns what they promised, and where the first one began.
fn live(port: &mut ModelPort, case: &Case<'_>, ops: &Ops) -> Result<(History, u64), String> {
    let (setup, ops, disk) = (case.setup(), ops.clone(), port.clone());
    let history = Rc::new(RefCell::new(History::of(case.base.format)));
    let noted = Rc::clone(&history);
    let done = port.run(move |port, handle| async move {
        let vfs = mount(port, handle.clone(), setup).await?;
        let position = || u64::from(disk.position().0);
        let read = |wrong| format!("{wrong:?}");
        let note = |tree: Tree| {
            let mut history = noted.borrow_mut();
            // The upper half of an inode's number here is its number on the volume.
            history.numbers.extend(tree.nodes.keys().map(|&model| (model, model >> 32)));
            history.states.push(Arc::new(tree));
        };
        note(Tree::read(&vfs, None, forever).await.map_err(read)?);
        let first = position();
        let mut runner = Runner::new(&vfs, handle);
        for (index, op) in ops.0.into_iter().enumerate() {
            let begun = position();
            let result = runner.apply(NUMBERS + index, &op).await.map(drop);
            let (ended, begun_by_end) = (Some(position()), index + 1);
            noted.borrow_mut().steps.push(Step { op, begun, ended, begun_by_end, result });
            let before = noted.borrow().states.last().cloned();
            note(Tree::read(&vfs, before.as_deref(), forever).await.map_err(read)?);
        }
        Ok::<_, String>(first)
    });
    let first = done.unwrap_or_else(|| Err("it waits for ever".into()))?;
    Ok((history.take(), first))
}

/// Lives on after a cut, which left `port`, and cuts again. Returns the images that were recovered, and the first fault.
pub(super) fn second_life(mut port: ModelPort, image: u64, case: &Case<'_>) -> (Vec<u64>, Result<(), Fault>) {
    let ops = drawn(image);
    let wrong = |what: String| Fault::SecondLife(format!("{what}, with {ops}"));
    let lived = match caught(|| live(&mut port, case, &ops).map_err(&wrong)) {
        Ok(lived) => lived,
        Err(fault) => return (Vec::new(), Err(fault)),
    };
    let (history, first) = lived;
    let end = port.position().0;
    let cuts: Vec<u32> =
        positions(&port.log(), end).into_iter().filter(|cut| u64::from(*cut) > first).collect();
    let (mut random, mut images) = (RandomStream::new(image, "cuts of a second life"), Vec::new());
    let mut judged = || {
        for _ in 0..if cuts.is_empty() { 0 } else { CUTS } {
            let (cut, again, state) = drawn_state(&port, &cuts, image, &case.effort, &mut random);
            images.push(again);
            let mut woken = port.woken(&state);
            let tree = caught(|| recover(&mut woken, case.setup()).map_err(|damage| wrong(damage.what())))?;
            let verdict = history.judge(u64::from(cut), &tree);
            verdict.map_err(|violation| wrong(format!("{} after {cut} events", violation.what())))?;
        }
        Ok(())
    };
    let result = judged();
    (images, result)
}
