//! Names of the values of a table.

/// Returns the names of a table of values with names.
pub(super) const fn names<T, const COUNT: usize>(all: &[(T, &'static str); COUNT]) -> [&'static str; COUNT] {
    let (mut names, mut at) = ([""; COUNT], 0);
    while at < COUNT {
        names[at] = all[at].1;
        at += 1;
    }
    names
}
