//! The engine on files in memory.

mod bed;
mod load;
mod model;
mod stop;
mod torn;
mod transactions;
