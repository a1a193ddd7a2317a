//! A host that sends whatever the input says to a tiny device of any firmware.
#![no_main]

#[path = "../../crates/crash/tests/it/commands/stranger.rs"]
mod stranger;

use arbitrary::Unstructured;
use flashweir_device::Device;
use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;
use stranger::Draw;

thread_local! {
    /// The tiny devices, empty; making one takes longer than most inputs.
    static DEVICES: OnceCell<Vec<Device>> = const { OnceCell::new() };
}

/// Decisions from the fuzzer's input.
struct Input<'a>(Unstructured<'a>);

impl Draw for Input<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        // What the input no longer says is 0.
        self.0.int_in_range(0..=limit - 1).unwrap_or(0)
    }

    fn is_over(&mut self) -> bool {
        self.0.is_empty()
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(Unstructured::new(data));
    let device = DEVICES.with(|devices| {
        let devices =
            devices.get_or_init(|| stranger::configs().iter().map(stranger::device).collect());
        devices[input.below(devices.len() as u64) as usize].clone()
    });
    stranger::run(device, &mut input);
});
