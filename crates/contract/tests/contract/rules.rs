//! Rules that are easily missed, each with its name and its smallest counter-example.

use flashweir_contract::{
    Content, DeviceKind, Kind, Log, LogPos, Observed, OpIx, Oracle, Promise, Submission, UnitIx, Verdict,
    Violation, draw, minimise,
};
use flashweir_core::command::{RangeFlush, StreamId, Tag};
use flashweir_core::{Command, CommandId, Data, Lba, Lpn, Op, Order};

const INITIAL: Content = Content(1_000);

/// A log with LPNs 0 to 2 that read as `INITIAL`.
fn log() -> Log {
    let mut log = Log::new();
    (0..3).for_each(|lpn| log.set_initial(Lpn(lpn), INITIAL));
    log
}

fn submission(log: &Log, kind: Kind) -> Submission {
    Submission::new(CommandId(log.ops().len() as u64), kind)
}

/// Submits an operation and accepts its units.
fn accept(log: &mut Log, submission: Submission, units: &[(u64, u64)]) -> OpIx {
    let op = log.submit(submission);
    let seq = u64::from(log.position().0);
    log.accept(op, seq, units.iter().map(|&(lpn, content)| (Lpn(lpn), Content(content))));
    op
}

fn write(log: &mut Log, lpn: u64, content: u64) -> OpIx {
    let submission = submission(log, Kind::Write);
    accept(log, submission, &[(lpn, content)])
}

/// An operation in stream 0 that closes its epoch.
fn in_epoch(log: &Log, kind: Kind) -> Submission {
    Submission { order: Some((StreamId(0), Order::Barrier)), ..submission(log, kind) }
}

fn check(log: &Log, kind: DeviceKind, seen: [u64; 3]) -> Verdict {
    let observed = |lpn: Lpn| Observed::Content(Content(seen[lpn.0 as usize]));
    Oracle::new(kind.policy()).check(log, log.position(), observed)
}

/// The counter-example of contract §10.4: the zeros on LPN 0 may be the initial ones; attributing them to the TRIM
/// would require the write of the earlier epoch, which is not observed.
#[test]
fn the_newest_candidate_of_equal_content_is_not_always_the_one() {
    let mut log = Log::new();
    log.set_initial(Lpn(0), Content::ZERO);
    log.set_initial(Lpn(1), Content(7));
    let first = in_epoch(&log, Kind::Write);
    accept(&mut log, first, &[(1, 5)]);
    let second = in_epoch(&log, Kind::Trim);
    accept(&mut log, second, &[(0, 0)]);
    let observed = |lpn: Lpn| Observed::Content(if lpn.0 == 0 { Content::ZERO } else { Content(7) });
    let mut oracle = Oracle::new(DeviceKind::D3.policy());
    assert_eq!(oracle.check(&log, log.position(), observed), Verdict::Legal);
    assert_eq!(oracle.check_by_identity(&log, log.position(), observed), None, "two candidates");
}

/// A superseded unit needs no rule of its own: it may be added to P without effect.
#[test]
fn a_superseded_unit_counts_as_persisted() {
    let mut log = log();
    let first = in_epoch(&log, Kind::Write);
    accept(&mut log, first, &[(0, 1)]);
    let second = in_epoch(&log, Kind::Write);
    accept(&mut log, second, &[(1, 2)]);
    write(&mut log, 0, 3);
    assert!(check(&log, DeviceKind::D3, [3, 2, 1_000]).is_legal());
    assert!(!check(&log, DeviceKind::D3, [1_000, 2, 1_000]).is_legal());
}

/// An empty barrier opens no epoch; the order of its neighbours is unchanged.
#[test]
fn empty_epochs_collapse() {
    let mut log = log();
    for _ in 0..3 {
        let barrier = in_epoch(&log, Kind::Barrier);
        accept(&mut log, barrier, &[]);
    }
    let first = in_epoch(&log, Kind::Write);
    accept(&mut log, first, &[(0, 1)]);
    let barrier = in_epoch(&log, Kind::Barrier);
    accept(&mut log, barrier, &[]);
    let second = in_epoch(&log, Kind::Write);
    accept(&mut log, second, &[(1, 2)]);
    let epochs: Vec<u32> = log.units_before(log.position()).iter().map(|unit| unit.epoch).collect();
    assert_eq!(epochs, [0, 1]);
    assert!(!check(&log, DeviceKind::D3, [1_000, 2, 1_000]).is_legal());
}

/// The contract promises what completed before the FLUSH was submitted, not what was accepted by then.
#[test]
fn a_flush_does_not_promise_what_is_in_flight() {
    let mut log = log();
    let op = write(&mut log, 0, 1);
    let flush = log.submit(Submission::new(CommandId(9), Kind::Flush));
    log.complete(op, true);
    log.complete(flush, true);
    assert!(check(&log, DeviceKind::D1, [1_000, 1_000, 1_000]).is_legal());
    assert!(!check(&log, DeviceKind::D2, [1_000, 1_000, 1_000]).is_legal());
}

/// Nothing of a failed command is promised, and a failed FLUSH promises nothing.
#[test]
fn failures_promise_nothing() {
    let mut log = log();
    let op = write(&mut log, 0, 1);
    log.complete(op, false);
    let op = write(&mut log, 1, 2);
    log.complete(op, true);
    let flush = log.submit(Submission::new(CommandId(9), Kind::Flush));
    log.complete(flush, false);
    assert!(check(&log, DeviceKind::D1, [1, 1_000, 1_000]).is_legal());
    assert!(check(&log, DeviceKind::D0, [1_000, 2, 1_000]).is_legal());
}

/// A promise of one unit of a group is a promise of all; a group that is observed in part is torn.
#[test]
fn a_share_is_all_or_none() {
    let mut log = log();
    let share = submission(&log, Kind::Share);
    accept(&mut log, share, &[(0, 1), (1, 2)]);
    assert!(check(&log, DeviceKind::D4, [1, 2, 1_000]).is_legal());
    assert!(check(&log, DeviceKind::D4, [1_000, 1_000, 1_000]).is_legal());
    let torn = Violation::BrokenOrder { lpn: Lpn(0), seen: UnitIx(0), missing: UnitIx(1), torn: true };
    assert_eq!(check(&log, DeviceKind::D4, [1, 1_000, 1_000]), Verdict::Violation(torn));
    assert!(check(&log, DeviceKind::D1, [1, 1_000, 1_000]).is_legal(), "a device without groups may tear");
}

/// One log serves every cut: a later event is neither promised nor possible.
#[test]
fn a_cut_sees_its_prefix_only() {
    let mut log = log();
    let before = log.position();
    let op = write(&mut log, 0, 1);
    let accepted = log.position();
    log.complete(op, true);
    let mut oracle = Oracle::new(DeviceKind::D0.policy());
    let mut at = |upto: LogPos, seen: u64| {
        let observed = |lpn: Lpn| Observed::Content(if lpn.0 == 0 { Content(seen) } else { INITIAL });
        oracle.check(&log, upto, observed)
    };
    let impossible = Violation::Impossible { lpn: Lpn(0), observed: Content(1) };
    assert_eq!(at(before, 1), Verdict::Violation(impossible));
    assert!(at(before, 1_000).is_legal() && at(accepted, 1_000).is_legal() && at(accepted, 1).is_legal());
    let (op, unit) = (OpIx(0), UnitIx(0));
    let lost = Violation::LostPromise { op, unit, promise: Promise::Completion, missing: unit };
    assert_eq!(at(log.position(), 1_000), Verdict::Violation(lost));
    assert!(at(log.position(), 1).is_legal());
}

/// A loss that the device reports is a loss.
#[test]
fn an_unreadable_unit_is_never_legal() {
    let log = log();
    let observed = |lpn: Lpn| if lpn.0 == 1 { Observed::Unreadable } else { Observed::Content(INITIAL) };
    let verdict = Oracle::new(DeviceKind::D1.policy()).check(&log, log.position(), observed);
    assert_eq!(verdict, Verdict::Violation(Violation::Unreadable { lpn: Lpn(1) }));
}

/// A cleared log is as good as a new one.
#[test]
fn a_log_can_be_used_again() {
    let mut log = log();
    write(&mut log, 0, 1);
    log.clear();
    log.set_initial(Lpn(5), Content(3));
    assert_eq!(
        (log.position(), log.initial(Lpn(0)), log.initial(Lpn(5))),
        (LogPos(0), Content(0), Content(3))
    );
    assert_eq!(log.find(CommandId(0)), None);
}

#[test]
fn a_drawing_says_whose_units_are_where_ranges_end_and_what_is_selected() {
    let mut log = Log::new();
    let mut command = Command::new(0, Op::Write { lba: Lba(4), blocks: 10, data: Data::Pattern(1) });
    command.tags = [Tag(7), Tag(0)];
    let op = log.submit_command(&command, 8).unwrap();
    log.accept(op, 1, [(Lpn(0), Content(1)), (Lpn(1), Content(2))]);
    log.complete(op, true);
    let ranges = vec![(Lba(0), 8), (Lba(9), 16)];
    let flush = RangeFlush { ranges, tags: vec![Tag(3), Tag(9)], segments: Vec::new() };
    log.submit_command(&Command::new(1, Op::RFlush(Box::new(flush))), 8).unwrap();
    let policy = DeviceKind::D1.policy();
    let drawn = draw(&log, log.position(), policy, |_| Observed::Content(Content(0)), None);
    assert!(drawn.contains("write ~0..1~ t7 ") && drawn.contains("RFLUSH 0 1..3 t3,9 "), "{drawn}");
}

#[test]
fn a_drawing_names_the_broken_promise() {
    let mut log = log();
    let op = write(&mut log, 0, 1);
    log.complete(op, true);
    let op = write(&mut log, 1, 2);
    log.complete(op, true);
    let flush = log.submit(Submission::new(CommandId(2), Kind::Flush));
    log.complete(flush, true);
    write(&mut log, 1, 3);
    let policy = DeviceKind::D1.policy();
    let observed = |lpn: Lpn| Observed::Content([INITIAL, Content(3), INITIAL][lpn.0 as usize]);
    let Verdict::Violation(violation) = Oracle::new(policy).check(&log, log.position(), observed) else {
        panic!("a flushed write is lost");
    };
    let expected = "\
cut at event 10 of 10
   op    seq command                completed promised by       0      1
   #0      1 write 0                     at 2 FLUSH #2       LOST      .
   #1      4 write 1                     at 5 FLUSH #2          .   over
   #2      - FLUSH                       at 7 -                 .      .
   #3      9 write 1                        - -                 .  shown
                                         before the first:  shown      -
VIOLATION: unit 0 of operation #0 (host id 0, seq 1) was promised by FLUSH #2, but unit 0 reads as it did before the first operation
";
    assert_eq!(draw(&log, log.position(), policy, observed, Some(&violation)), expected);
}

/// A failure is minimised: steps are removed as long as the oracle still finds the planted bug.
#[test]
fn a_program_is_minimised_against_a_planted_bug() {
    use flashweir_contract::program::{parse, run};
    use flashweir_contract::{Exploration, ModelDevice, Step};
    let text = "W y=1; W@1 z=4; F; W x=1; T z; W y=2 &; F; W y=3; W! z=2; F &; wait 6; W y=5 &";
    // The planted bug: FLUSH does nothing, so a state that is legal only without its promise may show.
    let fails = |steps: &[Step]| {
        let mut honest = ModelDevice::new(DeviceKind::D1.policy(), 8, 8);
        run(steps, &mut honest);
        let is_flush = |s: &&Step| matches!(s, Step::Submit(_, request) if request.kind == Kind::Flush);
        let lying: Vec<Step> = steps.iter().filter(|s| !is_flush(s)).copied().collect();
        let mut liar = ModelDevice::new(DeviceKind::D1.policy(), 8, 8);
        run(&lying, &mut liar);
        let mut oracle = Oracle::new(DeviceKind::D1.policy());
        liar.legal_states(Exploration::default()).any(|state| {
            let observed = |lpn: Lpn| state.observed(liar.log(), lpn);
            !oracle.check(honest.log(), honest.log().position(), observed).is_legal()
        })
    };
    let shortest: Vec<String> = minimise(&parse(text).unwrap(), fails).iter().map(Step::to_string).collect();
    assert_eq!(shortest, ["2: W@1 z=4 &", "wait 2", "3: F &", "wait 3"]);
}
