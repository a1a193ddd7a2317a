//! Two-sided litmus tests (crash-laboratory §3.8): named histories with every final state that the contract allows.
//!
//! Each allowed state is reached by some device, each forbidden one by none. The list of allowed states is complete:
//! whatever is not listed is forbidden. The forbidden states named here are those that a likely mistake would produce.
//!
//! A device that completes an operation for which the program does not wait may narrow the states of that run, but
//! never widens them.

use crate::log::Content;
use crate::oracle::Observed;
use crate::policy::DeviceKind;
use crate::program::{self, Step, Value};
use flashweir_core::Lpn;

/// One litmus test, in the notation of [`program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Litmus {
    /// Its name.
    pub name: &'static str,
    /// Kinds of device that the test applies to.
    pub kinds: &'static [DeviceKind],
    /// Operations before the cut.
    pub program: &'static str,
    /// Every state that may be observed.
    pub allowed: &'static str,
    /// States that must not be observed.
    pub forbidden: &'static str,
}

/// The verdict of a litmus test on a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The allowed state of this number.
    Allowed(usize),
    /// The named forbidden state of this number.
    Forbidden(usize),
    /// A state that is forbidden because it is not listed.
    Unlisted,
}

impl Litmus {
    /// Returns the steps of the program.
    pub fn steps(&self) -> Vec<Step> {
        program::parse(self.program).unwrap_or_else(|error| panic!("litmus {}: {error}", self.name))
    }

    /// Returns the allowed states: the value of each unit of the program.
    pub fn allowed(&self) -> Vec<Vec<Value>> {
        self.states(self.allowed)
    }

    /// Returns the forbidden states that are named.
    pub fn forbidden(&self) -> Vec<Vec<Value>> {
        self.states(self.forbidden)
    }

    fn states(&self, text: &str) -> Vec<Vec<Value>> {
        let units = program::unit_count(&self.steps());
        program::parse_states(text, units).unwrap_or_else(|error| panic!("litmus {}: {error}", self.name))
    }

    /// Judges what is read after the cut; unit 0 of the program lies at `base`.
    pub fn judge(
        &self,
        base: Lpn,
        initial: impl Fn(Lpn) -> Content,
        observed: impl Fn(Lpn) -> Observed,
    ) -> Outcome {
        let shows = |state: &Vec<Value>| {
            state.iter().zip(base.0..).all(|(value, lpn)| {
                let lpn = Lpn(lpn);
                observed(lpn) == Observed::Content(value.content(lpn, initial(lpn)))
            })
        };
        if let Some(allowed) = self.allowed().iter().position(shows) {
            Outcome::Allowed(allowed)
        } else if let Some(forbidden) = self.forbidden().iter().position(shows) {
            Outcome::Forbidden(forbidden)
        } else {
            Outcome::Unlisted
        }
    }
}

/// Devices without volatile data.
const SAFE: &[DeviceKind] = &[DeviceKind::D0, DeviceKind::D2];
/// Devices with a volatile buffer.
const VOLATILE: &[DeviceKind] = &[DeviceKind::D1, DeviceKind::D3, DeviceKind::D4];
/// Devices with a volatile buffer and without barriers.
const UNORDERED: &[DeviceKind] = &[DeviceKind::D1];
/// Devices with barriers.
const ORDERED: &[DeviceKind] = &[DeviceKind::D3, DeviceKind::D4];
/// Every device.
const ALL: &[DeviceKind] = &DeviceKind::ALL;

/// A table of litmus tests, one row each: name, kinds, program, allowed, forbidden.
macro_rules! litmus {
    ($($name:literal $kinds:ident: $program:literal => $allowed:literal, not $forbidden:literal;)+) => {
        &[$(Litmus {
            name: $name,
            kinds: $kinds,
            program: $program,
            allowed: $allowed,
            forbidden: $forbidden,
        }),+]
    };
}

/// The litmus tests.
#[rustfmt::skip]
pub const LITMUS: &[Litmus] = litmus! {
    // Completion.
    "completed-write-is-durable" SAFE: "W x=1" => "x=1", not "x=-, x=0";
    "completed-write-may-be-lost" VOLATILE: "W x=1" => "x=-, x=1", not "x=0";
    "write-in-flight" ALL: "W x=1 &" => "x=-, x=1", not "x=0";
    "completed-overwrite-is-durable" SAFE: "W x=1; W x=2" => "x=2", not "x=1, x=-";
    "overwrite-in-flight" SAFE: "W x=1; W x=2 &" => "x=1, x=2", not "x=-";
    "any-version-of-an-overwrite" VOLATILE: "W x=1; W x=2" => "x=-, x=1, x=2", not "x=0";
    "torn-command" ALL: "W xy=1 &" => "x=- y=-, x=1 y=-, x=- y=1, x=1 y=1", not "x=0 y=1, x=1 y=0";
    "completed-command-is-whole" SAFE: "W xyz=1" => "x=1 y=1 z=1", not "x=1 y=1 z=-, x=- y=1 z=1";
    "completed-command-may-tear" VOLATILE:
        "W xy=1" => "x=- y=-, x=1 y=-, x=- y=1, x=1 y=1", not "x=1 y=0";
    "two-units-without-order" VOLATILE:
        "W x=1; W y=2" => "x=- y=-, x=1 y=-, x=- y=2, x=1 y=2", not "x=2, y=1";
    "completed-units-in-order" SAFE: "W x=1; W y=2 &" => "x=1 y=-, x=1 y=2", not "x=- y=2, x=- y=-";
    // FLUSH.
    "flush-makes-durable" ALL: "W x=1; F" => "x=1", not "x=-, x=0";
    "flush-in-flight" VOLATILE: "W x=1; F &" => "x=-, x=1", not "x=0";
    "flush-keeps-all-units" ALL: "W xy=1; W z=2; F" => "x=1 y=1 z=2", not "x=1 y=1, x=1 z=2, x=1 y=- z=2";
    "overwrite-after-flush" VOLATILE: "W x=1; F; W x=2" => "x=1, x=2", not "x=-, x=0";
    "flush-keeps-the-newest" VOLATILE: "W x=1; W x=2; F" => "x=2", not "x=1, x=-";
    "neighbour-after-flush" VOLATILE: "W x=1; F; W y=2" => "x=1 y=-, x=1 y=2", not "x=- y=2, x=- y=-";
    "flush-before-completion" VOLATILE: "W x=1 &; F; wait 1" => "x=-, x=1", not "x=0";
    "flush-concurrent-with-overwrite" VOLATILE: "W x=1; W x=2 &; F; wait 2" => "x=1, x=2", not "x=-";
    "the-last-flush-counts" VOLATILE: "W x=1; F &; W x=2; F; wait 2" => "x=2", not "x=1, x=-";
    "an-older-flush-that-ends-later" VOLATILE:
        "F &; W x=1; wait 1" => "x=-, x=1", not "x=0";
    // FUA.
    "fua-is-durable" ALL: "W! x=1" => "x=1", not "x=-, x=0";
    "fua-in-flight" ALL: "W! x=1 &" => "x=-, x=1", not "x=0";
    "fua-covers-each-of-its-units" ALL: "W! xy=1" => "x=1 y=1", not "x=1 y=-, x=- y=1";
    "fua-does-not-cover-neighbours" VOLATILE: "W x=1; W! y=2" => "x=- y=2, x=1 y=2", not "x=1 y=-, x=- y=-";
    "fua-hides-older-versions" VOLATILE: "W x=1; W! x=2" => "x=2", not "x=1, x=-";
    "overwrite-after-fua" VOLATILE: "W! x=1; W x=2" => "x=1, x=2", not "x=-";
    "torn-fua-in-flight" VOLATILE: "W! xy=1 &" => "x=- y=-, x=1 y=-, x=- y=1, x=1 y=1", not "x=0";
    // TRIM and WRITE_ZEROES.
    "trim-may-be-lost" VOLATILE: "W x=1; F; T x" => "x=0, x=1", not "x=-";
    "trim-before-flush" ALL: "W x=1; T x; F" => "x=0", not "x=1, x=-";
    "completed-trim-is-durable" SAFE: "T x" => "x=0", not "x=-";
    "trim-in-flight" ALL: "T x &" => "x=-, x=0", not "x=1";
    "trim-tears-by-unit" VOLATILE: "T xy" => "x=- y=-, x=0 y=-, x=- y=0, x=0 y=0", not "x=1";
    "write-after-trim" VOLATILE: "T x; W x=1" => "x=-, x=0, x=1", not "x=2";
    "no-resurrection-after-trim" VOLATILE: "W x=1; F; T x; F; W x=2" => "x=0, x=2", not "x=1, x=-";
    "zeroes-with-fua" ALL: "W x=1; Z! x" => "x=0", not "x=1, x=-";
    "zeroes-before-flush" ALL: "W xy=1; F; Z x; F" => "x=0 y=1", not "x=1 y=1, x=0 y=0";
    "zeroes-over-part-of-a-command" VOLATILE:
        "W xy=1; F; Z y" => "x=1 y=1, x=1 y=0", not "x=0 y=1, x=1 y=-, x=- y=0";
    // RFLUSH.
    "range-flush-of-a-unit" VOLATILE: "W x=1; W y=2; R x" => "x=1 y=-, x=1 y=2", not "x=- y=2, x=- y=-";
    "range-flush-of-a-tag" VOLATILE: "W#7 x=1; W#8 y=2; R#7" => "x=1 y=-, x=1 y=2", not "x=- y=2, x=- y=-";
    "range-flush-of-both" VOLATILE:
        "W#7 x=1; W y=2; W z=3; R#7 y" => "x=1 y=2 z=-, x=1 y=2 z=3", not "x=- y=2 z=3, x=1 y=- z=3";
    "range-flush-of-nothing" VOLATILE: "W#7 x=1; R#9" => "x=-, x=1", not "x=0";
    "range-flush-in-flight" VOLATILE: "W#7 x=1; R#7 &" => "x=-, x=1", not "x=0";
    "tags-unite-on-overwrite" VOLATILE: "W#7 x=1; W#8 x=2; R#7" => "x=1, x=2", not "x=-";
    "an-untagged-overwrite-keeps-the-tag" VOLATILE: "W#7 x=1; W x=2; R#7" => "x=1, x=2", not "x=-";
    "range-flush-of-the-newer-tag" VOLATILE: "W#7 x=1; W#8 x=2; R#8" => "x=2", not "x=1, x=-";
    "range-flush-covers-a-trim" VOLATILE: "W x=1; F; T x; R x" => "x=0", not "x=1, x=-";
    "range-flush-of-a-tagged-trim" VOLATILE: "W x=1; F; T#7 x; R#7" => "x=0", not "x=1, x=-";
    "a-tagged-trim-of-what-is-trimmed-already" VOLATILE: "W x=1; F; T x; T#7 x; R#7" => "x=0", not "x=1, x=-";
    "a-trim-inherits-the-tag" VOLATILE: "W#7 x=1; T x; R#7" => "x=0, x=1", not "x=-";
    "overwrite-after-range-flush" VOLATILE: "W x=1; R x; W x=2" => "x=1, x=2", not "x=-";
    "range-flush-keeps-all-units" ALL: "W#7 xyz=1; R#7" => "x=1 y=1 z=1", not "x=1 y=- z=1, x=- y=1 z=1";
    // Streams.
    "streams-mean-nothing-without-barriers" UNORDERED:
        "W@1| x=1; W@1 y=2" => "x=- y=-, x=1 y=-, x=- y=2, x=1 y=2", not "x=0";
    "epochs-persist-in-order" ORDERED:
        "W@1| x=1; W@1 y=2" => "x=- y=-, x=1 y=-, x=1 y=2", not "x=- y=2";
    "an-epoch-persists-in-any-order" ORDERED:
        "W@1 x=1; W@1 y=2" => "x=- y=-, x=1 y=-, x=- y=2, x=1 y=2", not "x=0";
    "a-barrier-command-closes-the-epoch" ORDERED:
        "W@1 x=1; B@1; W@1 y=2" => "x=- y=-, x=1 y=-, x=1 y=2", not "x=- y=2";
    "streams-are-independent" ORDERED:
        "W@1| x=1; W@2 y=2" => "x=- y=-, x=1 y=-, x=- y=2, x=1 y=2", not "x=0";
    "orderless-passes-a-barrier" ORDERED:
        "W@1| x=1; W y=2" => "x=- y=-, x=1 y=-, x=- y=2, x=1 y=2", not "x=0";
    "a-barrier-is-not-durable" ORDERED: "W@1| x=1; B@1" => "x=-, x=1", not "x=0";
    "fua-brings-earlier-epochs" ORDERED: "W@1| x=1; W!@1 y=2" => "x=1 y=2", not "x=- y=2, x=1 y=-";
    "trim-waits-for-its-epoch" ORDERED:
        "W@1| x=1; T@1 y" => "x=- y=-, x=1 y=-, x=1 y=0", not "x=- y=0";
    "a-superseded-epoch-leaves-no-trace" ORDERED:
        "W@1| x=1; W@1| y=2; W x=3" =>
        "x=- y=-, x=1 y=-, x=1 y=2, x=3 y=-, x=3 y=2", not "x=- y=2";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        for litmus in LITMUS {
            let (allowed, forbidden) = (litmus.allowed(), litmus.forbidden());
            assert!(!allowed.is_empty() && !forbidden.is_empty(), "{}", litmus.name);
            assert!(forbidden.iter().all(|state| !allowed.contains(state)), "{}", litmus.name);
            assert_eq!(LITMUS.iter().filter(|other| other.name == litmus.name).count(), 1);
        }
    }

    #[test]
    fn a_state_is_judged_by_content() {
        let litmus = LITMUS.iter().find(|l| l.name == "overwrite-after-flush").unwrap();
        let initial = Content(99);
        let judge = |value: Value| {
            let shown = value.content(Lpn(7), initial);
            litmus.judge(Lpn(7), |_| initial, |_| Observed::Content(shown))
        };
        assert_eq!(judge(Value::Number(1)), Outcome::Allowed(0));
        assert_eq!(judge(Value::Number(2)), Outcome::Allowed(1));
        assert_eq!(judge(Value::Initial), Outcome::Forbidden(0));
        assert_eq!(judge(Value::Number(9)), Outcome::Unlisted);
    }
}
