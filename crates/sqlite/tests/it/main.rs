//! SQLite on stacks, as its users see it.

mod basics;
mod crash;
