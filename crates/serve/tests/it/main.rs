//! Integration tests of the front ends.

mod nbd;
