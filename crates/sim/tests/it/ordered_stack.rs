//! Order from the file system's port to the medium: block layer, order-preserving dispatch, device with barriers, cut
//! at any turn (barriers §4, contract §8). Each write has a block of its own, so the surviving writes reveal the order.

use flashweir_core::command::{StreamId, pattern};
use flashweir_core::random::RandomStream;
use flashweir_core::{Bytes, Duration, LinkConfig, Lpn, Order, Payload};
use flashweir_device::config::PersistPolicy;
use flashweir_device::presets::preset;
use flashweir_device::{Device, DeviceConfig, DeviceOptions};
use flashweir_fs::port::{Block, BlockPort, Write};
use flashweir_host::{
    CfqConfig, DeadlineConfig, Dispatch, Epochs, HostConfig, Scheduler, TaskAttribute, Wait,
};
use flashweir_sim::live::Tear;
use flashweir_sim::stack::{FlushMode, Stack};

const OPTIONS: DeviceOptions = DeviceOptions { seed: 1, track_contents: true, planted: None };
const WRITES: u64 = 300;

/// The phone of the barrier paper, with little memory.
fn device(policy: PersistPolicy) -> DeviceConfig {
    let mut config = preset("barrier-ufs").unwrap();
    config.geometry.blocks_per_plane = 32;
    config.geometry.pages_per_block = 16;
    config.ftl.over_provisioning = 0.4;
    config.buffer.capacity = Bytes::kib(256);
    config.order.policy = policy;
    config.link = LinkConfig { queues: 4, ..config.link };
    config.validate().unwrap();
    config
}

/// Returns stream, role and block of each write. Some neighbours can be merged, others cannot.
fn plan(seed: u64) -> Vec<(Option<(StreamId, Order)>, Block)> {
    let mut random = RandomStream::new(seed, "plan");
    let mut blocks: Vec<u64> = (0..WRITES).collect();
    for chunk in (0..blocks.len()).step_by(8) {
        let other = random.below(WRITES / 8) as usize * 8;
        (chunk + 8 <= blocks.len()).then(|| (0..8).for_each(|i| blocks.swap(chunk + i, other + i)));
    }
    let place = |block: u64, random: &mut RandomStream| {
        let stream = StreamId(random.below(3) as u16);
        let ends = if random.chance(0.25) { Order::Barrier } else { Order::Within };
        (random.chance(0.8).then_some((stream, ends)), Block(block))
    };
    blocks.into_iter().map(|block| place(block, &mut random)).collect()
}

/// Returns the number of writes that survived a power cut in the middle, or an error if one did not although a later
/// one did.
fn cut_once(config: DeviceConfig, host: HostConfig, seed: u64) -> Result<u64, String> {
    let mut stack = Stack::with_block_layer(Device::new(config, OPTIONS), FlushMode::RangeFlush, host);
    let writes = plan(seed);
    let ports: Vec<_> = (0..4).map(|submitter| stack.port_of(submitter)).collect();
    let given = writes.clone();
    let handle = stack.handle();
    stack.spawn(async move {
        for (number, (order, block)) in given.into_iter().enumerate() {
            let content = Payload::Tag(pattern(number as u64, Lpn(block.0)));
            let port = &ports[number * 7 / 5 % ports.len()];
            drop(port.write(Write { order, ..Write::new(block, vec![content]) }));
            if number % 16 == 15 {
                handle.sleep_until(handle.now() + Duration::from_micros(200)).await;
            }
        }
    });
    let turns = RandomStream::new(seed, "cut").below(900);
    for _ in 0..turns {
        stack.turn();
    }
    let (stack, _) = stack.cut(OPTIONS, Tear::Drawn(seed));
    let there = |block: Block| {
        stack.with_device(|device| device.peek(Lpn(block.0)).is_some_and(|c| c != Payload::Zero))
    };
    // The first epoch of each stream with a missing write.
    let (mut epoch, mut missing) = ([0; 3], [None; 3]);
    let mut survived = 0;
    for (order, block) in writes {
        let is_there = there(block);
        survived += u64::from(is_there);
        let Some((StreamId(stream), part)) = order else { continue };
        let stream = usize::from(stream);
        match missing[stream] {
            Some((of, lost)) if of < epoch[stream] && is_there => {
                return Err(format!(
                    "stream {stream}: block {} of epoch {} without {lost} of {of}",
                    block.0, epoch[stream]
                ));
            }
            None if !is_there => missing[stream] = Some((epoch[stream], block.0)),
            _ => {}
        }
        epoch[stream] += u32::from(part == Order::Barrier);
    }
    Ok(survived)
}

/// More queues than an epoch has writes, each of them short.
fn multi_queue(host: HostConfig) -> HostConfig {
    HostConfig { dispatch: Dispatch::MultiQueue, queues: 4, depth: 6, flush: TaskAttribute::Simple, ..host }
}

fn hosts() -> Vec<HostConfig> {
    let schedulers = [
        Scheduler::None,
        Scheduler::Deadline(DeadlineConfig::default()),
        Scheduler::Cfq(CfqConfig::default()),
    ];
    let mut hosts = Vec::new();
    for scheduler in schedulers {
        for epochs in [Epochs::Closing, Epochs::Counted] {
            hosts.push(HostConfig { scheduler, epochs, ..HostConfig::default() });
        }
        // The device orders the commands of several queues.
        hosts.push(multi_queue(HostConfig { scheduler, ..HostConfig::default() }));
    }
    hosts
}

#[test]
fn epochs_survive_in_their_order() {
    use PersistPolicy::{InOrderRecovery, InOrderWriteBack, Transactional};
    let (mut none, mut some, mut all) = (0, 0, 0);
    for policy in [InOrderRecovery, InOrderWriteBack, Transactional] {
        for host in hosts() {
            for seed in 0..25 {
                match cut_once(device(policy), host.clone(), seed) {
                    Ok(0) => none += 1,
                    Ok(WRITES) => all += 1,
                    Ok(_) => some += 1,
                    Err(what) => panic!("{policy:?}, {host:?}, seed {seed}: {what}"),
                }
            }
        }
    }
    println!("of {WRITES} writes none survived {none} times, some {some} times, all {all} times");
    assert!(some > 200, "most cuts are in the middle");
}

/// With several queues and no cut, everything is answered whatever waits for what, and the epochs are complete in
/// order.
#[test]
fn several_queues_never_wait_for_each_other_for_ever() {
    for scheduler in [Scheduler::None, Scheduler::Deadline(DeadlineConfig::default())] {
        for seed in 0..40 {
            let host = multi_queue(HostConfig { scheduler, ..HostConfig::default() });
            let device = Device::new(device(PersistPolicy::InOrderRecovery), OPTIONS);
            let mut stack = Stack::with_block_layer(device, FlushMode::RangeFlush, host);
            let ports: Vec<_> = (0..4).map(|submitter| stack.port_of(submitter)).collect();
            let mut tickets = Vec::new();
            for (number, (order, block)) in plan(seed).into_iter().enumerate() {
                let content = Payload::Tag(pattern(number as u64, Lpn(block.0)));
                let port = &ports[number * 7 / 5 % ports.len()];
                tickets.push(port.write(Write { order, ..Write::new(block, vec![content]) }));
            }
            while stack.turn() {}
            // The last epoch of a stream may be open: its members must complete all the same.
            let waiting = tickets.iter().filter(|ticket| !ticket.is_complete()).count();
            assert_eq!(waiting, 0, "{scheduler:?}, seed {seed}");
        }
    }
}

/// A device holds back a write whose epoch has not come. A later write of the same block through another queue must not
/// overtake it.
#[test]
fn regression_what_is_written_last_stays_although_a_device_holds_an_earlier_write_back() {
    let host = HostConfig { depth: 2, ..multi_queue(HostConfig::default()) };
    let device = Device::new(device(PersistPolicy::InOrderRecovery), OPTIONS);
    let mut stack = Stack::with_block_layer(device, FlushMode::RangeFlush, host);
    let write = |submitter: u16, number: u64, block: u64, order| {
        let content = Payload::Tag(pattern(number, Lpn(block)));
        drop(stack.port_of(submitter).write(Write { order, ..Write::new(Block(block), vec![content]) }));
    };
    let stream = StreamId(0);
    // The queue of the first epoch is busy, so its command arrives late.
    (0..40).for_each(|number| write(0, number, 100 + 2 * number, None));
    write(0, 40, 90, Some((stream, Order::Barrier)));
    write(1, 41, 7, Some((stream, Order::Barrier)));
    write(2, 42, 7, None);
    while stack.turn() {}
    let there = stack.with_device(|device| device.peek(Lpn(7)));
    assert_eq!(there, Some(Payload::Tag(pattern(42, Lpn(7)))));
}

/// The same check detects a host that relies on a device to keep order when the device does not.
#[test]
fn epochs_on_a_device_without_barriers_need_the_host() {
    let order_of = |dispatch| {
        let host = HostConfig {
            dispatch,
            scheduler: Scheduler::Deadline(DeadlineConfig::default()),
            ..HostConfig::default()
        };
        (0..40).filter(|&seed| cut_once(device(PersistPolicy::None), host.clone(), seed).is_err()).count()
    };
    assert_eq!(order_of(Dispatch::Legacy(Wait::TransferAndFlush)), 0);
    assert!(order_of(Dispatch::Legacy(Wait::Transfer)) > 0, "a transfer is not enough on a volatile device");
}
