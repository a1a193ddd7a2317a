//! Executes a sequence on a volume, and compares it with the reference.
//!
//! Invariant: before any cut, volume and reference give the same answers and show the same contents.

use super::case::{Case, Fault};
use super::history::{History, Step};
use super::mounting::Did;
use super::ops::{Made, Op, Ops, Runner};
use super::tree::Tree;
use super::volume::{Base, Clock, forever, mount, reference, touch};
use flashweir_core::executor::Handle;
use flashweir_core::random::mix;
use flashweir_fs::port::BlockPort;
use flashweir_fs::vfs::{Errno, Vfs};
use flashweir_fs::{AnyFs, Mounted as _};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// Answers and trees of the reference.
type Expected = Vec<(Made, Arc<Tree>)>;

fn expected(base: &Base, ops: &Ops) -> Result<Expected, Fault> {
    let mut clock = Clock::default();
    let (handle, ops, before, filled) = (clock.handle(), ops.clone(), Arc::clone(&base.tree), base.filled);
    let done = clock.run(async move {
        let (mut runner, vfs) = reference(handle, filled).await?;
        let (mut expected, mut before) = (Expected::new(), before);
        for (index, op) in ops.0.iter().enumerate() {
            let made = runner.apply(index, op).await;
            let tree = Tree::read(&vfs, Some(&before), forever).await;
            let mut tree = tree.map_err(|wrong| format!("the reference: {wrong:?}"))?;
            tree.nameless =
                runner.nameless(forever).await.map_err(|wrong| format!("the reference: {wrong:?}"))?;
            before = Arc::new(tree);
            expected.push((made, Arc::clone(&before)));
        }
        Ok::<_, String>(expected)
    });
    done.unwrap_or(Err("the reference waits for ever".into())).map_err(Fault::Differs)
}

/// Records made while a sequence is executed.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) expected: Rc<Expected>,
    pub(super) history: Rc<RefCell<History>>,
    /// Counts of the file system so far.
    pub(super) did: Rc<Cell<Did>>,
    /// Position at which the last operation ended.
    pub(super) end: Rc<Cell<Option<u64>>>,
    /// Identifies the present operation by a number that does not depend on earlier operations.
    pub(super) phase: Rc<Cell<u64>>,
}

impl Noted {
    /// Runs the reference for the expected results.
    pub(super) fn begin(case: &Case<'_>) -> Result<Self, Fault> {
        let expected = Rc::new(expected(case.base, case.ops)?);
        let states = vec![Arc::clone(&case.base.tree)];
        let numbers = case.base.numbers.clone();
        let history = History { states, numbers, ..History::of(case.base.format) };
        let history = Rc::new(RefCell::new(history));
        Ok(Self { expected, history, did: Rc::default(), end: Rc::default(), phase: Rc::default() })
    }

    /// Returns the recorded history.
    pub(super) fn history(&self) -> History {
        self.history.borrow().clone()
    }

    /// Mounts the volume on a port and executes the sequence there; `position` returns the position of a cut now.
    /// Returns the position after the last operation, or the difference from the reference.
    pub(super) fn sequence(
        &self,
        case: &Case<'_>,
        port: Rc<dyn BlockPort>,
        handle: Handle,
        position: Rc<dyn Fn() -> u64>,
    ) -> Pin<Box<dyn Future<Output = Result<u64, String>>>> {
        let (ops, setup) = (case.ops.clone(), case.setup());
        let (expected, noted) = (Rc::clone(&self.expected), Rc::clone(&self.history));
        let (did, ended_at, phase) = (Rc::clone(&self.did), Rc::clone(&self.end), Rc::clone(&self.phase));
        Box::pin(async move {
            let mut vfs = mount(Rc::clone(&port), handle.clone(), setup).await?;
            begin(&vfs).await.map_err(|errno| format!("the first checkpoint: {errno:?}"))?;
            let mut runner = Runner::new(&vfs, handle.clone());
            let mut did_before = Did::default();
            // A difference from the reference in another task.
            let wrong = Rc::new(RefCell::new(None));
            for (index, (op, (made, tree))) in ops.0.iter().zip(&*expected).enumerate() {
                phase.set(op.to_string().bytes().fold(1, |hash, byte| mix(hash ^ u64::from(byte))));
                if noted.borrow().has_to_wait(op, tree) {
                    runner.wait().await;
                }
                let begun = position();
                {
                    let mut history = noted.borrow_mut();
                    let step = Step { op: op.clone(), begun, ended: None, begun_by_end: 0, result: Ok(()) };
                    history.steps.push(step);
                    history.states.push(Arc::clone(tree));
                }
                let ended = {
                    let (noted, position, wrong) =
                        (Rc::clone(&noted), Rc::clone(&position), Rc::clone(&wrong));
                    let (op, made) = (op.clone(), *made);
                    move |found: Made| {
                        let mut history = noted.borrow_mut();
                        if let Err(what) = note(&mut history, &made, &found) {
                            wrong.borrow_mut().get_or_insert(format!("operation {index}, {op}: {what}"));
                        }
                        let begun_by_end = history.steps.len();
                        let step = &mut history.steps[index];
                        (step.ended, step.begun_by_end) = (Some(position()), begun_by_end);
                        step.result = found.map(drop);
                    }
                };
                match op {
                    // It ends later than this.
                    Op::Aside(op) => runner.begin(index, (**op).clone(), ended).await,
                    Op::Remount => {
                        let said = |errno: Errno| format!("operation {index}, {op}: {errno:?}");
                        runner.end().await.map_err(said)?;
                        vfs.unmount().await.map_err(said)?;
                        did_before = did_before + Did::of(vfs.fs());
                        ended(Ok(None));
                        vfs = mount(Rc::clone(&port), handle.clone(), setup).await?;
                        runner = Runner::new(&vfs, handle.clone());
                    }
                    _ => ended(runner.apply(index, op).await),
                }
                if let Some(what) = wrong.take() {
                    return Err(what);
                }
                vfs.fs()
                    .audit()
                    .map_err(|what| format!("after operation {index}, {op}, in memory: {what}"))?;
            }
            runner.wait().await;
            if let Some(what) = wrong.take() {
                return Err(what);
            }
            let end = position();
            did.set(did_before + Did::of(vfs.fs()));
            ended_at.set(Some(end));
            let found = Tree::read(&vfs, None, |ino, _| ino).await.map_err(|wrong| format!("{wrong:?}"))?;
            let history = noted.borrow();
            let newest = history.states.last().expect("the first is always there");
            match newest.difference(&found, &history.numbers) {
                Some(difference) => Err(difference),
                None => Ok(end),
            }
        })
    }
}

/// The first fsync after a mount makes a checkpoint, whatever it concerns. This one is done before the sequence, so
/// that the others need not.
pub(crate) async fn begin(vfs: &Vfs<AnyFs>) -> Result<(), Errno> {
    touch(vfs).await
}

/// Compares the answers of two file systems, and records which inode numbers correspond.
fn note(history: &mut History, expected: &Made, found: &Made) -> Result<(), String> {
    match (expected, found) {
        (Ok(None), Ok(None)) => Ok(()),
        (Ok(Some((ino, generation))), Ok(Some((number, _)))) => {
            history.numbers.insert(forever(*ino, *generation), *number);
            Ok(())
        }
        (Err(a), Err(b)) if a == b => Ok(()),
        _ => {
            let say = |made: &Made| match made {
                Ok(_) => "success".to_owned(),
                Err(errno) => format!("{errno:?}"),
            };
            Err(format!("it answered {}, expected {}", say(found), say(expected)))
        }
    }
}
