//! Integration tests of the laboratory: worlds against answers that we did not write.

mod amplification;
mod answers;
mod courses;
mod planes;
mod support;
mod timeline;
