//! A volume: the medium of one device in a directory.
