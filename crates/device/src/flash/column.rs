//! Numbers and contents of a block's units, as small as they allow.
//!
//! Place in the data flow: [`super::media`] has three of them for each block that was programmed, of which a large device has millions.
//! Where a segment is written from its first unit to its last, owners are a run and contents tags.
//!
//! Invariant: what is read is what was pushed, whatever form it has.

use flashweir_core::Payload;

/// Numbers, one for each unit. The form is the first one that fits all of them.
#[derive(Clone, Debug)]
pub(super) enum Column {
    /// `first`, and each next one by `step` more.
    Run { first: u64, step: u64, len: u32 },
    /// Distances from `first`.
    Narrow { first: u64, distances: Vec<u32> },
    /// The numbers.
    Wide(Vec<u64>),
}

impl Default for Column {
    fn default() -> Self {
        Self::Run { first: 0, step: 0, len: 0 }
    }
}

impl Column {
    /// Adds a number; there will be at most `capacity`.
    #[inline]
    pub(super) fn push(&mut self, capacity: u32, number: u64) {
        match self {
            Self::Wide(numbers) => return numbers.push(number),
            Self::Narrow { first, distances } => {
                if let Ok(distance) = u32::try_from(number.wrapping_sub(*first)) {
                    return distances.push(distance);
                }
            }
            Self::Run { first, step, len } => {
                match *len {
                    0 => *first = number,
                    1 => *step = number.wrapping_sub(*first),
                    _ => {}
                }
                if number == first.wrapping_add(step.wrapping_mul(u64::from(*len))) {
                    *len += 1;
                    return;
                }
            }
        }
        self.widen(capacity, number);
    }

    /// Adds a number that does not fit the form.
    #[cold]
    fn widen(&mut self, capacity: u32, number: u64) {
        let first = self.iter().next().unwrap_or(number);
        let distance = |number: u64| u32::try_from(number.wrapping_sub(first)).ok();
        let is_run = matches!(self, Self::Run { .. });
        *self = if is_run && self.iter().chain([number]).all(|number| distance(number).is_some()) {
            let mut distances = Vec::with_capacity(capacity as usize);
            distances.extend(self.iter().chain([number]).filter_map(distance));
            Self::Narrow { first, distances }
        } else {
            let mut wide = Vec::with_capacity(capacity as usize);
            wide.extend(self.iter().chain([number]));
            Self::Wide(wide)
        };
    }

    /// The number of a unit, which has one.
    #[inline]
    pub(super) fn get(&self, unit: u32) -> u64 {
        match self {
            Self::Run { first, step, len } => {
                debug_assert!(unit < *len, "the unit has a number");
                first.wrapping_add(step.wrapping_mul(u64::from(unit)))
            }
            Self::Narrow { first, distances } => first.wrapping_add(u64::from(distances[unit as usize])),
            Self::Wide(numbers) => numbers[unit as usize],
        }
    }

    fn len(&self) -> u32 {
        match self {
            Self::Run { len, .. } => *len,
            Self::Narrow { distances, .. } => distances.len() as u32,
            Self::Wide(numbers) => numbers.len() as u32,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|unit| self.get(unit))
    }

    /// Forgets all numbers. A list keeps its room, because a block that needed one usually needs one again.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Wide(numbers) => numbers.clear(),
            Self::Run { .. } | Self::Narrow { .. } => *self = Self::default(),
        }
    }

    /// Bytes of memory beside itself.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Run { .. } => 0,
            Self::Narrow { distances, .. } => distances.capacity() * size_of::<u32>(),
            Self::Wide(numbers) => numbers.capacity() * size_of::<u64>(),
        }
    }
}

/// Contents, one for each unit.
#[derive(Clone, Debug)]
pub(super) enum Payloads {
    /// Nothing but tags.
    Tags(Vec<u64>),
    /// Anything.
    Any(Vec<Payload>),
}

impl Default for Payloads {
    fn default() -> Self {
        Self::Tags(Vec::new())
    }
}

impl Payloads {
    /// Adds a content; there will be at most `capacity`.
    #[inline]
    pub(super) fn push(&mut self, capacity: u32, payload: Payload) {
        match (&mut *self, payload) {
            (Self::Any(payloads), payload) => payloads.push(payload),
            (Self::Tags(tags), Payload::Tag(tag)) => {
                if tags.is_empty() {
                    tags.reserve_exact(capacity as usize);
                }
                tags.push(tag);
            }
            (Self::Tags(_), payload) => self.of_any(capacity).push(payload),
        }
    }

    /// The contents in the form that takes any.
    fn of_any(&mut self, capacity: u32) -> &mut Vec<Payload> {
        if let Self::Tags(tags) = self {
            let mut payloads = Vec::with_capacity(capacity as usize);
            payloads.extend(tags.iter().copied().map(Payload::Tag));
            *self = Self::Any(payloads);
        }
        let Self::Any(payloads) = self else { unreachable!("it was changed to that") };
        payloads
    }

    /// The content of a unit, if it has one.
    #[inline]
    pub(super) fn get(&self, unit: u32) -> Option<Payload> {
        match self {
            Self::Tags(tags) => tags.get(unit as usize).copied().map(Payload::Tag),
            Self::Any(payloads) => payloads.get(unit as usize).cloned(),
        }
    }

    /// Contents that may own memory, by unit.
    #[inline]
    pub(super) fn any_mut(&mut self) -> &mut [Payload] {
        match self {
            Self::Tags(_) => &mut [],
            Self::Any(payloads) => payloads,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Payload> + '_ {
        (0..).map_while(|unit| self.get(unit))
    }

    /// Forgets all contents.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Tags(tags) => tags.clear(),
            Self::Any(payloads) => payloads.clear(),
        }
    }

    /// Bytes of memory beside itself, without what contents own.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Tags(tags) => tags.capacity() * size_of::<u64>(),
            Self::Any(payloads) => payloads.capacity() * size_of::<Payload>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashweir_core::RandomStream;
    use std::sync::Arc;

    /// Numbers of every kind, and changes from one kind to another at every place.
    #[test]
    fn a_column_has_what_was_pushed() {
        let mut random = RandomStream::new(1, "columns");
        let mut column = Column::default();
        let mut forms = [0; 3];
        for round in 0..3_000 {
            let (first, step) = (random.below(u64::MAX), [1, 32, u64::MAX, 0][round % 4]);
            let (breaks, far) = (random.below(40), random.below(40));
            let numbers: Vec<u64> = (0..random.below(20))
                .map(|at| match at {
                    at if at >= far => random.below(u64::MAX),
                    at if at >= breaks => first.wrapping_add(random.below(1 << 32)),
                    at => first.wrapping_add(step.wrapping_mul(at)),
                })
                .collect();
            numbers.iter().for_each(|number| column.push(20, *number));
            assert_eq!(column.iter().collect::<Vec<_>>(), numbers, "round {round}");
            forms[match column {
                Column::Run { .. } => 0,
                Column::Narrow { .. } => 1,
                Column::Wide(_) => 2,
            }] += 1;
            column.clear();
            assert_eq!(column.iter().count(), 0);
            if round % 2 == 0 {
                column = Column::default();
            }
        }
        assert!(forms.iter().all(|count| *count > 100), "{forms:?}");
    }

    #[test]
    fn contents_are_what_was_pushed() {
        let bytes = Payload::Bytes(Arc::from([7u8; 16]));
        for all in [
            vec![Payload::Tag(1), Payload::Tag(u64::MAX)],
            vec![Payload::Tag(1), Payload::Zero, Payload::Tag(2)],
            vec![bytes.clone(), Payload::Tag(3)],
        ] {
            let mut payloads = Payloads::default();
            all.iter().for_each(|payload| payloads.push(4, payload.clone()));
            assert_eq!(payloads.iter().collect::<Vec<_>>(), all);
            assert_eq!(payloads.get(all.len() as u32), None);
            payloads.any_mut().iter_mut().for_each(|payload| *payload = Payload::Zero);
            let left = payloads.iter().filter(|payload| *payload == bytes).count();
            assert_eq!(left, 0, "contents with memory of their own can be given up");
        }
    }
}
