//! The engine on in-memory files.

mod bed;
mod files;
mod load;
mod model;
mod stop;
mod torn;
mod transactions;
