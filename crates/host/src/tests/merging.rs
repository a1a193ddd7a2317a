//! The commands that requests are merged into, and the answers that their submitters get.

use super::{done, give};
use crate::{BlockLayer, Effect, Epochs, HostConfig, Input};
use flashweir_core::command::{StreamId, Tag};
use flashweir_core::{Command, Data, Done, Instant, Lba, Op, Order, Payload};
use std::sync::Arc;

const NOW: Instant = Instant::ZERO;

fn write(token: u64, unit: u64) -> Command {
    let data = Data::Units([Payload::Tag(token)].into_iter().collect());
    Command::new(token, Op::Write { lba: Lba(unit * 8), blocks: 8, data })
}

fn ordered(command: Command, stream: u16, order: Order) -> Command {
    Command { stream: Some(StreamId(stream)), order: Some(order), ..command }
}

/// Returns the commands that result from submitting these requests at once.
fn commands(layer: &mut BlockLayer, requests: Vec<Command>) -> Vec<crate::Offer> {
    for command in requests {
        assert_eq!(give(layer, NOW, Input::Submit { command, submitter: 0 }), (vec![], vec![]));
    }
    give(layer, NOW, Input::Unplug).0
}

fn layer() -> BlockLayer {
    BlockLayer::new(HostConfig::default(), 8)
}

#[test]
fn neighbours_become_one_command_and_each_is_answered() {
    let mut layer = layer();
    let offers = commands(&mut layer, vec![write(1, 5), write(2, 6), write(3, 4), write(4, 8)]);
    let expected = Data::Units([3, 1, 2].map(Payload::Tag).into_iter().collect());
    assert_eq!(offers.len(), 2);
    assert_eq!(offers[0].command.op, Op::Write { lba: Lba(32), blocks: 24, data: expected });
    let metrics = layer.metrics();
    assert_eq!((metrics.back_merges, metrics.front_merges, metrics.dispatched), (1, 1, 2));
    let (_, effects) = give(&mut layer, NOW, Input::Transferred(offers[0].command.id));
    assert_eq!(effects, [3, 1, 2].map(Effect::Transferred));
    let (_, effects) = give(&mut layer, NOW, done(&offers[0]));
    assert_eq!(effects, [3, 1, 2].map(|token| Effect::Completed { token, result: Ok(Done::Ok) }));
}

#[test]
fn a_merged_read_gives_each_its_own_units() {
    let mut layer = layer();
    let read = |token, lba, blocks| Command::new(token, Op::Read { lba: Lba(lba), blocks });
    let offers = commands(&mut layer, vec![read(1, 8, 8), read(2, 16, 12), read(3, 28, 4)]);
    assert_eq!(offers.len(), 1);
    assert_eq!(offers[0].command.op, Op::Read { lba: Lba(8), blocks: 24 });
    let data = |tags: &[u64]| Ok(Done::Data(tags.iter().map(|&tag| Payload::Tag(tag)).collect()));
    let id = offers[0].command.id;
    let (_, effects) = give(&mut layer, NOW, Input::Completed { id, result: data(&[10, 20, 30]) });
    let answer = |token, tags| Effect::Completed { token, result: data(tags) };
    assert_eq!(effects, [answer(1, &[10]), answer(2, &[20, 30]), answer(3, &[30])]);
}

#[test]
fn only_like_requests_are_merged() {
    let within = |command| ordered(command, 0, Order::Within);
    let bytes = Data::Bytes(Arc::from([1; 4096]));
    let pairs: [(&str, Command, Command, usize); 11] = [
        ("orderless", write(1, 0), write(2, 1), 1),
        ("of one epoch", within(write(1, 0)), within(write(2, 1)), 1),
        ("orderless and ordered", write(1, 0), within(write(2, 1)), 2),
        ("of two streams", within(write(1, 0)), ordered(write(2, 1), 1, Order::Within), 2),
        ("of two epochs", ordered(write(1, 0), 0, Order::Barrier), within(write(2, 1)), 2),
        ("with a gap", write(1, 0), write(2, 2), 2),
        ("of two owners", write(1, 0), Command { tags: [Tag(7), Tag(0)], ..write(2, 1) }, 2),
        ("durable or not", write(1, 0), Command { fua: true, ..write(2, 1) }, 2),
        ("of two namespaces", write(1, 0), Command { ns: 1, ..write(2, 1) }, 2),
        ("of two forms", write(1, 0), Command::new(2, Op::Write { lba: Lba(8), blocks: 8, data: bytes }), 2),
        ("of two kinds", write(1, 0), Command::new(2, Op::Trim { lba: Lba(8), blocks: 8 }), 2),
    ];
    for (name, first, second, expected) in pairs {
        let offers = commands(&mut layer(), vec![first, second]);
        assert_eq!(offers.len(), expected, "{name}");
    }
    let small = HostConfig { merge_blocks_max: 16, ..HostConfig::default() };
    let offers = commands(&mut BlockLayer::new(small, 8), (0..5).map(|unit| write(unit, unit)).collect());
    assert_eq!(offers.len(), 3, "two, two, one");
}

#[test]
fn a_merged_request_with_a_barrier_carries_it() {
    for order in [[Order::Within, Order::Barrier], [Order::Barrier, Order::Within]] {
        let mut layer = layer();
        let offers = commands(
            &mut layer,
            (0..2).map(|at| ordered(write(at as u64, at as u64), 0, order[at])).collect(),
        );
        let orders: Vec<_> = offers.iter().map(|offer| offer.command.order).collect();
        match order[0] {
            Order::Within => assert_eq!(orders, [Some(Order::Barrier)]),
            Order::Barrier => assert_eq!(orders, [Some(Order::Barrier), Some(Order::Within)]),
        }
    }
}

/// Requests that were set aside are merged when the queue opens, counted ones at once. Both end as the same two
/// commands.
#[test]
fn requests_of_a_later_epoch_are_merged_with_each_other() {
    for epochs in [Epochs::Closing, Epochs::Counted] {
        let mut layer = BlockLayer::new(HostConfig { epochs, ..HostConfig::default() }, 8);
        let later = |unit| ordered(write(unit, unit), 0, Order::Within);
        let first = ordered(write(9, 9), 0, Order::Barrier);
        for command in [first, later(1), later(2)] {
            give(&mut layer, NOW, Input::Submit { command, submitter: 0 });
        }
        assert_eq!(layer.metrics().back_merges, u64::from(epochs == Epochs::Counted), "{epochs:?}");
        let (offers, _) = give(&mut layer, NOW, Input::Unplug);
        assert_eq!(offers.len(), 2, "{epochs:?}");
        assert!(matches!(offers[1].command.op, Op::Write { lba: Lba(8), blocks: 16, .. }));
    }
}
