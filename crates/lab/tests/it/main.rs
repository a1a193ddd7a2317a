//! Integration tests of the laboratory: worlds against answers that we did not write.

mod amplification;
mod answers;
mod crash;
mod support;
mod timeline;
