//! Integration tests of the laboratory: worlds compared with results that we did not write.

mod amplification;
mod answers;
mod courses;
mod planes;
mod support;
mod timeline;
