//! The engine on in-memory files.

mod bed;
mod load;
mod model;
mod stop;
mod torn;
mod transactions;
