//! The open channel under power cuts.

use flashweir_crash::open::explore;

#[test]
fn an_open_channel_keeps_what_completed_whenever_the_power_goes() {
    let mut states = 0;
    for seed in 1..=6 {
        let counts = explore(seed, 60, 4).unwrap_or_else(|what| panic!("{what}"));
        assert_eq!(counts.boots, 12, "three devices");
        assert!(counts.commands > 200 && counts.interrupted > counts.cuts, "{counts:?}");
        states += counts.states;
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn a_history_repeats() {
    assert_eq!(explore(9, 40, 2), explore(9, 40, 2));
}
