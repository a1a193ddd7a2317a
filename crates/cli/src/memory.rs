//! Memory of contents: giving back to the system what was freed.
//!
//! Invariant: one call of C, and no other unsafe code in this crate.
#![allow(unsafe_code)]

/// Gives memory back to the system that was freed. Contents are freed in pieces of 4 KiB, between which glibc keeps what it got from
/// the system unless it is asked.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn give_back() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: glibc's declaration; it takes any number, may be called at any time and from any thread, and changes nothing that is
    // in use.
    unsafe { malloc_trim(0) };
}

/// Other allocators do so by themselves, or cannot be asked.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back() {}
