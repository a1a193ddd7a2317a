//! Promises of each kind of device (crash-laboratory §1).
//!
//! A kind is a name for a [`Policy`]; the oracle and the model device see only the policy, so a device that combines
//! kinds (a buffer, barriers and SHARE) is a policy without a name.

/// The point at which a device promises a command that completed successfully and is not FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The completion itself is the promise (contract §4.2: D0, D2).
    AtCompletion,
    /// A later FLUSH promises it (contract §4.1: D1).
    AtFlush,
}

/// The promise of a range flush for a version that it selects (contract §4.8). The two differ where a newer version of
/// the unit belongs to another stream: if the version itself persists, all earlier epochs of its stream persist as
/// well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeFlushed {
    /// The version, or a newer one of its unit, persists: the promise of the contract, on which hosts may rely.
    OrNewer,
    /// The version itself persists, even though a newer one hides it: the promise of Flashweir's own device. A newer
    /// version that is of no stream and was submitted before the range flush completed may replace it, because it has
    /// taken its place in the buffer (contract §6.2).
    Itself,
}

/// The rules of the contract that a device keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Promise of a completion.
    pub durability: Durability,
    /// Promise of a range flush.
    pub range_flushed: RangeFlushed,
    /// Whether epochs of one stream persist in order: relation (o) of contract §2.1.
    pub ordered: bool,
    /// Whether atomic commands persist wholly or not at all: relation (g) of contract §2.2.
    pub atomic: bool,
}

/// The kinds of device of crash-laboratory §1 that differ in what they promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// No volatile buffer.
    D0,
    /// Volatile buffer.
    D1,
    /// Volatile buffer with power-loss protection. To the host it is like D0; it is a separate kind because a degraded
    /// capacitor turns it into D1.
    D2,
    /// Volatile buffer with barriers.
    D3,
    /// Volatile buffer with barriers and SHARE.
    D4,
}

impl DeviceKind {
    /// Every kind, in order.
    pub const ALL: [Self; 5] = [Self::D0, Self::D1, Self::D2, Self::D3, Self::D4];

    /// Returns the rules that the kind keeps.
    pub const fn policy(self) -> Policy {
        let durability = match self {
            Self::D0 | Self::D2 => Durability::AtCompletion,
            Self::D1 | Self::D3 | Self::D4 => Durability::AtFlush,
        };
        let ordered = matches!(self, Self::D3 | Self::D4);
        let range_flushed = RangeFlushed::OrNewer;
        Policy { durability, range_flushed, ordered, atomic: matches!(self, Self::D4) }
    }
}
