//! The vfs over a file system in memory.

mod bed;
mod cache;
mod changes;
mod disk;
mod ext4;
mod f2fs;
mod files;
mod model;
mod nodes;
mod posix;
mod script;
mod writeback;
