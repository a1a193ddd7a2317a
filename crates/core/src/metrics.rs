//! Declared metrics: a counter is a field of a struct, with its unit and meaning beside it.
//!
//! Deliberately absent: a registry, and lookup of names at run time.

/// One counter, as a report shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name, with the unit last where it is not a plain count.
    pub name: &'static str,
    /// Meaning of the counter.
    pub help: &'static str,
    /// Value.
    pub value: u64,
}

/// Returns the differences between two lists of the same counters.
pub fn since(later: &[Metric], earlier: &[Metric]) -> Vec<Metric> {
    let pairs = later.iter().zip(earlier);
    pairs.map(|(later, earlier)| Metric { value: later.value - earlier.value, ..*later }).collect()
}

/// Declares a struct of `u64` counters; the doc comment of each field is its help text.
#[macro_export]
macro_rules! metrics {
    ($(#[doc = $doc:literal])* $vis:vis struct $name:ident { $($(#[doc = $help:literal])+ $field:ident),+ $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        $vis struct $name { $($(#[doc = $help])+ pub $field: u64),+ }

        impl $name {
            /// Lists every counter with its meaning, in the order of declaration.
            $vis fn list(&self) -> Vec<$crate::metrics::Metric> {
                vec![$($crate::metrics::Metric {
                    name: stringify!($field),
                    help: concat!($($help),+).trim_start(),
                    value: self.$field,
                }),+]
            }

            /// Returns what was counted since `earlier`.
            $vis fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field - earlier.$field),+ }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::metrics! {
        /// Test.
        struct Two {
            /// First one.
            a,
            /// Second one.
            b,
        }
    }

    #[test]
    fn counters_are_listed_with_their_meaning() {
        let earlier = Two { a: 1, b: 2 };
        let later = Two { a: 4, b: 2 };
        assert_eq!(later.since(&earlier), Two { a: 3, b: 0 });
        let list = later.list();
        assert_eq!((list[0].name, list[0].help, list[0].value), ("a", "First one.", 4));
    }
}
