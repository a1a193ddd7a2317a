//! The contract against its definition: oracle, enumeration and model device against brute force, litmus
//! tests from both sides, and the rules that a first version of the contract lacked, each by its name.

mod brute;
mod history;
mod larger;
mod litmus;
mod model;
mod rules;
