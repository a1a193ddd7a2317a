//! Every program of four requests (or three), with every history that a submitter and a target can produce, checked
//! like the random ones.

use super::rig::{Ask, Rig, What};
use crate::{DeadlineConfig, Dispatch, Epochs, HostConfig, Input, Scheduler, Wait};
use flashweir_core::Order;
use std::collections::{BTreeMap, BTreeSet};

/// Requests to two addresses, each orderless, within an epoch or closing it; and requests without an address.
fn alphabet() -> Vec<Ask> {
    let orders = [None, Some((0, Order::Within)), Some((0, Order::Barrier))];
    let writes = [0, 1].into_iter().flat_map(|unit| orders.map(|order| Ask::write(unit, order)));
    let barrier = Ask { what: What::Barrier, units: 0, ..Ask::write(0, Some((0, Order::Barrier))) };
    let read = Ask { what: What::Read, ..Ask::write(0, None) };
    let other = Ask::write(1, Some((1, Order::Barrier)));
    writes.chain([barrier, read, other]).collect()
}

/// Follows every continuation; returns the number of ends. `orders` collects the orders in which requests left.
fn follow(rig: &Rig, is_plugged: bool, orders: &mut BTreeSet<Vec<u64>>) -> u64 {
    let mut ends = 0;
    let mut busy = || false;
    if rig.submitted < rig.program.len() {
        let mut next = rig.clone();
        next.submit();
        if next.submitted < next.program.len() {
            ends += follow(&next, true, orders);
        }
        next.input(Input::Unplug, &mut busy);
        ends += follow(&next, false, orders);
    }
    if is_plugged {
        return ends;
    }
    for at in rig.target.eligible() {
        let mut next = rig.clone();
        next.serve(at, true, &mut busy);
        next.answer(0, &mut busy);
        ends += follow(&next, false, orders);
    }
    if ends == 0 {
        rig.judge().unwrap_or_else(|wrong| panic!("{wrong}\n{:?}\n{:#?}", rig.layer().config(), rig.program));
        orders.insert(rig.left.clone());
        return 1;
    }
    ends
}

fn follow_all(dispatch: Dispatch, epochs: Epochs, requests: u32) -> (u64, BTreeMap<usize, u64>) {
    let (mut histories, mut by_orders) = (0, BTreeMap::new());
    let letters = alphabet();
    let deadline = DeadlineConfig { fifo_batch: 1, writes_starved: 1, ..DeadlineConfig::default() };
    for (scheduler, depth) in [(Scheduler::None, 2), (Scheduler::Deadline(deadline), 1)] {
        for number in 0..letters.len().pow(requests) {
            let digit = |place: u32| number / letters.len().pow(place) % letters.len();
            let program: Vec<Ask> = (0..requests).map(|place| letters[digit(place)]).collect();
            let config = HostConfig { scheduler, depth, dispatch, epochs, ..HostConfig::default() };
            let mut orders = BTreeSet::new();
            histories += follow(&Rig::new(config, program), false, &mut orders);
            *by_orders.entry(orders.len()).or_default() += 1;
        }
    }
    (histories, by_orders)
}

#[test]
fn every_history_of_the_closing_queue_is_in_order() {
    let (histories, by_orders) = follow_all(Dispatch::OrderPreserving, Epochs::Closing, 4);
    println!("{histories} histories; programs by number of orders: {by_orders:?}");
    assert!(histories > 100_000 && by_orders.len() > 2, "{histories} histories, {by_orders:?}");
}

#[test]
fn every_history_of_counted_epochs_is_in_order() {
    for dispatch in [Dispatch::OrderPreserving, Dispatch::Legacy(Wait::TransferAndFlush)] {
        let (histories, by_orders) = follow_all(dispatch, Epochs::Counted, 3);
        println!("{dispatch:?}: {histories} histories; programs by number of orders: {by_orders:?}");
        assert!(histories > 10_000 && by_orders.len() > 2, "{histories} histories, {by_orders:?}");
    }
}
