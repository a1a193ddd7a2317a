//! The vfs over a file system in memory.

mod acl;
mod atomic;
mod bed;
mod cache;
mod changes;
mod copy;
mod disk;
mod each;
mod ext4;
mod f2fs;
mod files;
mod kinds;
mod links;
mod model;
mod nameless;
mod nodes;
mod posix;
mod script;
mod seek;
mod sets;
mod writeback;
