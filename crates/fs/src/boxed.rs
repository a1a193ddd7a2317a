//! Futures in boxes, so that a body is compiled once: by the crate that makes the box (`any`).

use std::future::Future;
use std::pin::Pin;

/// A future of which only the result is known. The crate that makes the box compiles what is in it.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
