//! Requests per CPU second through the block layer alone: the device of this bench takes and answers at once.

use crate::cpu;
use flashweir_core::command::StreamId;
use flashweir_core::{Command, CommandId, Data, Done, Duration, Instant, Lba, Op, Order, RandomStream};
use flashweir_host::{BlockLayer, DeadlineConfig, Effect, HostConfig, Input, Scheduler};
use std::collections::VecDeque;

const REQUESTS: u64 = 2_000_000;
/// Requests that are neither waited for nor answered.
const OPEN: u64 = 128;

/// Random 4 KiB writes of four streams, each 16th a barrier, half of them orderless; a device of 32 places under `deadline`.
pub(crate) fn requests() -> Result<Vec<(&'static str, f64)>, String> {
    let scheduler = Scheduler::Deadline(DeadlineConfig::default());
    let mut layer = BlockLayer::new(HostConfig { scheduler, ..HostConfig::default() }, 8);
    let mut draw = RandomStream::new(1, "block layer bench");
    let (mut effects, mut device) = (Vec::new(), VecDeque::new());
    let (mut submitted, mut answered, mut now) = (0, 0, Instant::ZERO);
    let before = cpu::seconds()?;
    while answered < REQUESTS {
        while submitted < REQUESTS && submitted < answered + OPEN {
            let bits = draw.next_u64();
            let lba = Lba(bits >> 40 << 3);
            let mut command = Command::new(submitted, Op::Write { lba, blocks: 8, data: Data::Zero });
            if bits & 1 == 0 {
                command.stream = Some(StreamId((bits >> 1 & 3) as u16));
                command.order = Some(if bits >> 3 & 15 == 0 { Order::Barrier } else { Order::Within });
            }
            layer.handle(now, Input::Submit { command, submitter: 0 }, &mut effects);
            submitted += 1;
        }
        let input = match device.pop_front() {
            Some(id) => Input::Completed { id, result: Ok(Done::Ok) },
            None => Input::Unplug,
        };
        layer.handle(now, input, &mut effects);
        now += Duration::from_micros(1);
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Offer(offer) => {
                    let id: CommandId = offer.command.id;
                    device.push_back(id);
                    layer.handle(now, Input::Accepted, &mut effects);
                }
                Effect::Completed { .. } => answered += 1,
                Effect::Dispatched(_) | Effect::Transferred(_) | Effect::At(_) => {}
            }
        }
    }
    let time = cpu::seconds()? - before;
    let metrics = layer.metrics();
    Ok(vec![
        ("requests_per_cpu_s", REQUESTS as f64 / time),
        ("requests", REQUESTS as f64),
        ("cpu_s", time),
        ("barriers_sent", metrics.barriers_sent as f64),
        ("epoch_waits", metrics.epoch_waits as f64),
    ])
}
