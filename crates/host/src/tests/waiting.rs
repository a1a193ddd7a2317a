//! Waits of requests: for zero-length barriers, for room at the device, for epochs on a legacy device, and during
//! floods.

use super::{done, give};
use crate::{
    BlockLayer, DeadlineConfig, DepthSample, Dispatch, Effect, Epochs, HostConfig, Input, Offer, Scheduler,
    TaskAttribute, Wait,
};
use flashweir_core::command::{SharePair, StreamId};
use flashweir_core::{Address, Command, Data, DeviceError, Done, Duration, Instant, Lba, Op, Order};
use std::collections::VecDeque;

const NOW: Instant = Instant::ZERO;
const STREAM: StreamId = StreamId(3);

fn write(token: u64) -> Command {
    Command::new(token, Op::Write { lba: Lba(token * 100), blocks: 8, data: Data::Zero })
}

fn ordered(token: u64, order: Order) -> Command {
    Command { stream: Some(STREAM), order: Some(order), ..write(token) }
}

fn barrier(token: u64) -> Command {
    Command { stream: Some(STREAM), ..Command::new(token, Op::Barrier) }
}

fn submit(layer: &mut BlockLayer, command: Command) -> Vec<Effect> {
    let (offers, effects) = give(layer, NOW, Input::Submit { command, submitter: 0 });
    assert!(offers.is_empty(), "the queue is plugged");
    effects
}

fn unplug(layer: &mut BlockLayer) -> Vec<Offer> {
    give(layer, NOW, Input::Unplug).0
}

fn shapes(offers: &[Offer]) -> Vec<(Option<Order>, TaskAttribute)> {
    offers.iter().map(|offer| (offer.command.order, offer.attribute)).collect()
}

const WITHIN: (Option<Order>, TaskAttribute) = (Some(Order::Within), TaskAttribute::Simple);
const BARRIER: (Option<Order>, TaskAttribute) = (Some(Order::Barrier), TaskAttribute::Ordered);

#[test]
fn a_barrier_of_no_length_travels_with_the_last_waiting_request() {
    let mut layer = BlockLayer::new(HostConfig::default(), 8);
    for command in
        [ordered(1, Order::Within), ordered(2, Order::Within), barrier(3), ordered(4, Order::Within)]
    {
        submit(&mut layer, command);
    }
    let (offers, effects) = give(&mut layer, NOW, Input::Unplug);
    assert_eq!(shapes(&offers), [WITHIN, BARRIER, WITHIN]);
    assert_eq!(effects, [1, 2, 3, 4].map(Effect::Dispatched));
    let (_, effects) = give(&mut layer, NOW, done(&offers[1]));
    assert_eq!(effects, [2, 3].map(|token| Effect::Completed { token, result: Ok(Done::Ok) }));
}

/// Where one slot of a queue is left, it goes to the oldest eligible request: a flood of younger ones starves no
/// request.
#[test]
fn the_last_place_of_a_queue_is_for_the_oldest() {
    let config = HostConfig { dispatch: Dispatch::MultiQueue, depth: 2, ..HostConfig::default() };
    let mut layer = BlockLayer::new(config, 8);
    for token in [7, 3, 5, 1] {
        submit(&mut layer, write(token));
    }
    let left = |effects: Vec<Effect>| -> Vec<u64> {
        let token = |effect| if let Effect::Dispatched(token) = effect { Some(token) } else { None };
        effects.into_iter().filter_map(token).collect()
    };
    let (offers, effects) = give(&mut layer, NOW, Input::Unplug);
    assert_eq!(left(effects), [7, 3]);
    let (_, effects) = give(&mut layer, NOW, done(&offers[0]));
    assert_eq!(left(effects), [5]);
}

#[test]
fn a_barrier_of_no_length_goes_alone_when_the_others_have_left() {
    let mut layer = BlockLayer::new(HostConfig::default(), 8);
    submit(&mut layer, ordered(1, Order::Within));
    assert_eq!(shapes(&unplug(&mut layer)), [WITHIN]);
    assert_eq!(submit(&mut layer, barrier(2)), []);
    let offers = unplug(&mut layer);
    assert_eq!(shapes(&offers), [BARRIER]);
    assert_eq!(offers[0].command.op, Op::Barrier);
    // A second barrier has nothing to order.
    assert_eq!(submit(&mut layer, barrier(3)), [Effect::Completed { token: 3, result: Ok(Done::Ok) }]);
    assert_eq!(
        (layer.metrics().barriers, layer.metrics().barriers_empty, layer.metrics().barriers_sent),
        (2, 1, 1)
    );
    let nowhere = Command::new(4, Op::Barrier);
    assert!(matches!(submit(&mut layer, nowhere)[..], [Effect::Completed { token: 4, result: Err(_) }]));
}

/// A second barrier after one that has not left is dispatched together with it.
#[test]
fn an_empty_epoch_waits_for_the_one_before_it() {
    let mut layer = BlockLayer::new(HostConfig::default(), 8);
    submit(&mut layer, ordered(1, Order::Barrier));
    assert_eq!(submit(&mut layer, barrier(2)), []);
    let (_, effects) = give(&mut layer, NOW, Input::Unplug);
    assert_eq!(effects, [1, 2].map(Effect::Dispatched));
}

#[test]
fn orderless_requests_pass_a_closed_queue() {
    for epochs in [Epochs::Closing, Epochs::Counted] {
        let mut layer = BlockLayer::new(HostConfig { epochs, depth: 1, ..HostConfig::default() }, 8);
        let mut offers = Vec::new();
        submit(&mut layer, write(9));
        offers.extend(unplug(&mut layer));
        for command in
            [ordered(2, Order::Within), ordered(1, Order::Barrier), ordered(4, Order::Barrier), write(3)]
        {
            submit(&mut layer, command);
        }
        while let Some(last) = offers.last() {
            let (next, _) = give(&mut layer, NOW, done(last));
            if next.is_empty() {
                break;
            }
            offers.extend(next);
        }
        let order: Vec<u64> = offers
            .iter()
            .map(|offer| match offer.command.op {
                Op::Write { lba, .. } => lba.0 / 100,
                _ => unreachable!("they are writes"),
            })
            .collect();
        // Request 4 waits for 1, the last of its epoch, and reaches the queue when 3 is there already.
        assert_eq!(order, [9, 2, 1, 3, 4], "{epochs:?}");
        assert_eq!(layer.metrics().barriers_sent, 2);
    }
}

fn offer_of(effects: &[Effect]) -> Option<&Offer> {
    effects.iter().find_map(|effect| match effect {
        Effect::Offer(offer) => Some(offer),
        _ => None,
    })
}

#[test]
fn a_busy_device_gets_the_same_request_later() {
    for on_completion in [true, false] {
        let config = HostConfig { retry_on_completion: on_completion, ..HostConfig::default() };
        let mut layer = BlockLayer::new(config, 8);
        submit(&mut layer, write(1));
        let first = unplug(&mut layer).remove(0);
        submit(&mut layer, ordered(2, Order::Barrier));
        submit(&mut layer, ordered(3, Order::Within));
        let mut effects = Vec::new();
        layer.handle(NOW, Input::Unplug, &mut effects);
        let refused = offer_of(&effects).cloned().expect("there is something to offer");
        effects.clear();
        layer.handle(NOW, Input::Busy, &mut effects);
        let retry = NOW + Duration::from_millis(3);
        // While the device holds a command, the layer waits for its completion; otherwise, or if so configured, for the
        // timer.
        assert_eq!(effects, if on_completion { vec![] } else { vec![Effect::At(retry)] });
        effects.clear();
        layer.handle(NOW, done(&first), &mut effects);
        assert_eq!(offer_of(&effects).is_some(), on_completion);
        if !on_completion {
            layer.handle(retry, Input::Wake, &mut effects);
        }
        assert_eq!(offer_of(&effects), Some(&refused), "the barrier is still with it");
        effects.clear();
        layer.handle(retry, Input::Busy, &mut effects);
        assert_eq!(effects, [Effect::At(retry + Duration::from_millis(3))], "the device holds nothing");
        assert_eq!(layer.metrics().busy, 2);
    }
}

#[test]
fn flushes_may_go_to_the_head_of_the_queue() {
    let config = HostConfig { flush: TaskAttribute::HeadOfQueue, ..HostConfig::default() };
    let mut layer = BlockLayer::new(config, 8);
    submit(&mut layer, ordered(1, Order::Barrier));
    submit(&mut layer, Command::new(2, Op::Flush));
    assert_eq!(shapes(&unplug(&mut layer)), [BARRIER, (None, TaskAttribute::HeadOfQueue)]);
}

/// A SHARE's source and destination count as its sectors: requests submitted earlier on them leave first.
#[test]
fn a_share_waits_for_the_blocks_that_it_touches() {
    let scheduler = Scheduler::Deadline(DeadlineConfig::default());
    let mut layer = BlockLayer::new(HostConfig { scheduler, ..HostConfig::default() }, 8);
    let pair = SharePair { dst: Lba(200), src: Lba(100), blocks: 8 };
    let share = Command::new(3, Op::Share(Box::new([pair])));
    for command in [write(1), write(2), share, write(4), Command::new(5, Op::Flush)] {
        submit(&mut layer, command);
    }
    let (_, effects) = give(&mut layer, NOW, Input::Unplug);
    assert_eq!(effects, [5, 1, 2, 3, 4].map(Effect::Dispatched));
    assert_eq!(layer.metrics().overlap_waits, 1);
}

#[test]
fn a_legacy_device_is_flushed_between_epochs_when_somebody_waits() {
    let dispatch = Dispatch::Legacy(Wait::TransferAndFlush);
    let mut layer = BlockLayer::new(HostConfig { dispatch, ..HostConfig::default() }, 8);
    submit(&mut layer, ordered(1, Order::Barrier));
    let first = unplug(&mut layer);
    assert_eq!(shapes(&first), [(None, TaskAttribute::Simple)]);
    assert!(give(&mut layer, NOW, done(&first[0])).0.is_empty(), "nobody waits yet");
    submit(&mut layer, ordered(2, Order::Within));
    let flush = unplug(&mut layer);
    assert_eq!(flush[0].command.op, Op::Flush);
    let (second, effects) = give(&mut layer, NOW, done(&flush[0]));
    assert!(matches!(second[0].command.op, Op::Write { lba: Lba(200), .. }));
    assert_eq!(effects, [Effect::Dispatched(2)], "the host's own flush is nobody's request");
}

#[test]
fn a_failed_epoch_stops_its_stream_until_a_barrier_has_told() {
    let dispatch = Dispatch::Legacy(Wait::Completion);
    let mut layer = BlockLayer::new(HostConfig { dispatch, ..HostConfig::default() }, 8);
    submit(&mut layer, ordered(1, Order::Barrier));
    let offers = unplug(&mut layer);
    submit(&mut layer, ordered(2, Order::Within));
    let fault = Err(DeviceError::WriteFault { at: Address::Lba(Lba(100)) });
    let told = |token| Effect::Completed { token, result: Err(DeviceError::StreamFailed(STREAM)) };
    let failed = Input::Completed { id: offers[0].command.id, result: fault.clone() };
    let (next, effects) = give(&mut layer, NOW, failed);
    assert_eq!((next, effects), (vec![], vec![Effect::Completed { token: 1, result: fault }, told(2)]));
    assert_eq!(submit(&mut layer, ordered(3, Order::Within)), [told(3)]);
    assert_eq!(submit(&mut layer, barrier(4)), [told(4)]);
    submit(&mut layer, ordered(5, Order::Within));
    assert_eq!(unplug(&mut layer).len(), 1, "the stream goes on");
}

/// An endless flood of orderless requests, a device that holds one command, and an ordered request behind a barrier.
#[test]
fn a_flood_starves_nobody() {
    let scheduler = Scheduler::Deadline(DeadlineConfig::default());
    let dispatched = [Epochs::Closing, Epochs::Counted].map(|epochs| {
        let mut layer =
            BlockLayer::new(HostConfig { scheduler, epochs, depth: 1, ..HostConfig::default() }, 8);
        // Two requests for each one that the device serves in a millisecond, at ever higher addresses.
        let mut token = 1_000;
        let mut flood = |layer: &mut BlockLayer, now| {
            for _ in 0..2 {
                token += 2;
                give(layer, now, Input::Submit { command: write(token), submitter: 0 });
            }
        };
        flood(&mut layer, NOW);
        let mut offers = unplug(&mut layer);
        submit(&mut layer, ordered(2, Order::Barrier));
        submit(&mut layer, ordered(1, Order::Within));
        for ms in 1..20_000 {
            let now = NOW + Duration::from_millis(ms);
            flood(&mut layer, now);
            let (next, effects) = give(&mut layer, now, done(&offers[0]));
            if effects.contains(&Effect::Dispatched(1)) {
                return ms;
            }
            offers = next;
        }
        panic!("{epochs:?}: the last request never leaves");
    });
    // Writes expire after 5 s; the one set aside begins to age when the queue opens. A batch has 16 requests.
    let [closing, counted] = dispatched;
    assert!((5_000..5_050).contains(&counted) && (10_000..10_100).contains(&closing), "{dispatched:?} ms");
}

/// As in barriers §7.4: with one write per epoch, a legacy device's queue holds one command, that of a device with
/// barriers is full.
#[test]
fn barriers_fill_the_queue_where_waits_leave_it_at_one() {
    let dispatches = [Dispatch::OrderPreserving, Dispatch::Legacy(Wait::TransferAndFlush)];
    let deepest = dispatches.map(|dispatch| {
        let mut layer = BlockLayer::new(HostConfig { dispatch, depth: 8, ..HostConfig::default() }, 8);
        layer.keep_depths();
        (1..=20).for_each(|token| drop(submit(&mut layer, ordered(token, Order::Barrier))));
        let mut held = VecDeque::from(unplug(&mut layer));
        while let Some(offer) = held.pop_front() {
            let now = NOW + Duration::from_nanos(layer.metrics().dispatched);
            held.extend(give(&mut layer, now, Input::Transferred(offer.command.id)).0);
            held.extend(give(&mut layer, now, done(&offer)).0);
        }
        assert_eq!((layer.metrics().completed, layer.depth()), (20, (0, 0)));
        layer.take_depths().iter().map(|sample| sample.in_flight).max()
    });
    assert_eq!(deepest, [Some(8), Some(1)]);
}

#[test]
fn the_course_of_the_queues_is_kept() {
    let mut layer = BlockLayer::new(HostConfig { depth: 1, ..HostConfig::default() }, 8);
    layer.keep_depths();
    submit(&mut layer, write(1));
    submit(&mut layer, write(2));
    let offers = unplug(&mut layer);
    let later = NOW + Duration::from_micros(5);
    let (last, _) = give(&mut layer, later, done(&offers[0]));
    give(&mut layer, later + Duration::from_micros(5), done(&last[0]));
    let sample =
        |us, in_flight, queued| DepthSample { at: NOW + Duration::from_micros(us), in_flight, queued };
    assert_eq!(layer.take_depths(), [sample(0, 1, 1), sample(5, 1, 0), sample(10, 0, 0)]);
}
