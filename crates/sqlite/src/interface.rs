//! The C interface: SQLite's virtual file system, whose call-backs become calls of the world.
//!
//! Place in the data flow: SQLite, on a thread that [`crate::guest`] began, calls these functions; each asks the [`Client`] of its
//! thread. On other threads every file fails to open.
//!
//! What [`device_characteristics`] says: SQLITE_IOCAP_POWERSAFE_OVERWRITE, because file systems here write whole blocks of 4 KiB, and a
//! device tears no mapping unit, so bytes beside those that are written never change; SQLITE_IOCAP_SUBPAGE_READ, because reads may begin
//! and end anywhere. Everything else would be false: write-back keeps no order (SEQUENTIAL), a file's size may be durable before its data
//! (SAFE_APPEND, in F2FS), names go while files are open (UNDELETABLE_WHEN_OPEN), and no file system promises that a write of several
//! blocks is atomic (ATOMIC…). With [`JournalMode::BatchAtomic`](crate::order::JournalMode::BatchAtomic) there is SQLITE_IOCAP_BATCH_ATOMIC, too.
//!
//! Invariants: nothing here panics, which could not unwind through C; memory of C holds numbers of ours only, never pointers.
//!
//! Deliberately absent: memory maps (xFetch), loading of extensions, system-call overrides.
#![allow(unsafe_code)]

use crate::guest::{Call, Client, FileKind, OpenFile, Opening, Value, with_client};
use crate::locks::{Level, Owner};
use flashweir_core::Duration;
use flashweir_fs::vfs::Errno;
use rusqlite::ffi;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

/// The name of the file system in SQLite.
pub const VFS: &str = "flashweir";
const C_NAME: &CStr = c"flashweir";
/// Longest path in bytes, with the zero at its end.
const PATH_BYTES_MAX: usize = 512;
/// Milliseconds from the day on which SQLite begins to count, noon of 24 November 4714 BC, to 1970.
const JULIAN_EPOCH_MS: i64 = 210_866_760_000_000;

/// A file, as SQLite keeps it for us.
#[repr(C)]
struct CFile {
    base: ffi::sqlite3_file,
    number: Owner,
}

/// Makes the file system known to SQLite.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let vfs = Box::leak(Box::new(ffi::sqlite3_vfs {
            iVersion: 2,
            szOsFile: size_of::<CFile>() as c_int,
            mxPathname: PATH_BYTES_MAX as c_int,
            pNext: ptr::null_mut(),
            zName: C_NAME.as_ptr(),
            pAppData: ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_path),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: Some(last_error),
            xCurrentTimeInt64: Some(current_time_ms),
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        }));
        // SAFETY: the structure lives for ever and is not used by us again; its functions keep SQLite's contract.
        let code = unsafe { ffi::sqlite3_vfs_register(vfs, 0) };
        assert_eq!(code, ffi::SQLITE_OK, "SQLite takes a file system");
    });
}

/// Seeds SQLite's random numbers, which all connections of the process share.
pub(crate) fn seed_random(seed: u64) {
    // Zero would mean none.
    let seed = seed as c_int | 1;
    // SAFETY: this test control takes an int and a connection, which may be null.
    unsafe {
        ffi::sqlite3_test_control(ffi::SQLITE_TESTCTRL_PRNG_SEED, seed, ptr::null_mut::<ffi::sqlite3>())
    };
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// The code for a failed call, of which `general` is the kind.
fn code_of(errno: Errno, general: c_int) -> c_int {
    match errno {
        Errno::ENOSPC => ffi::SQLITE_FULL,
        _ => general,
    }
}

/// Asks the world for what has no value.
fn ask(call: Call, general: c_int) -> c_int {
    match with_client(|client| client.call(call)) {
        Some(Ok(_)) => ffi::SQLITE_OK,
        Some(Err(errno)) => code_of(errno, general),
        None => general,
    }
}

/// Asks the world for a number.
fn ask_number(call: Call, general: c_int) -> Result<u64, c_int> {
    match with_client(|client| client.call(call)) {
        Some(Ok(Value::Number(number))) => Ok(number),
        Some(Err(errno)) => Err(code_of(errno, general)),
        Some(Ok(_)) | None => Err(general),
    }
}

/// The number of a file of ours.
///
/// # Safety
/// `file` is one that [`open`] has filled.
unsafe fn number_of(file: *mut ffi::sqlite3_file) -> Owner {
    // SAFETY: SQLite gave `open` room for a whole CFile, and passes the same pointer to each method.
    unsafe { (*file.cast::<CFile>()).number }
}

/// A path of SQLite.
///
/// # Safety
/// `path` is null or ends with a zero.
unsafe fn path_of(path: *const c_char) -> Option<String> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(path) }.to_str().ok().map(str::to_owned)
}

unsafe extern "C" fn open(
    _vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // SAFETY: `file` points to `szOsFile` bytes for us; a null method table says that there is nothing to close.
    unsafe {
        file.cast::<CFile>().write(CFile { base: ffi::sqlite3_file { pMethods: ptr::null() }, number: 0 })
    };
    let kind = match flags {
        flags if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 => FileKind::Database,
        flags if flags & ffi::SQLITE_OPEN_MAIN_JOURNAL != 0 => FileKind::Journal,
        flags if flags & ffi::SQLITE_OPEN_WAL != 0 => FileKind::Wal,
        _ => FileKind::Other,
    };
    let opening = Opening {
        kind,
        creates: flags & ffi::SQLITE_OPEN_CREATE != 0,
        is_exclusive: flags & ffi::SQLITE_OPEN_EXCLUSIVE != 0,
        writes: flags & ffi::SQLITE_OPEN_READWRITE != 0,
    };
    // SAFETY: SQLite's names end with a zero; no name is a temporary file.
    let name = unsafe { path_of(name) };
    let is_temporary = name.is_none() || flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0;
    let opened = with_client(|client| {
        let path = name.unwrap_or_else(|| {
            client.temporary += 1;
            let random = client.random();
            format!("/sqlite-temporary-{}-{random:016x}", client.temporary)
        });
        let opened = client.call(Call::Open { path: path.clone(), opening });
        if let Ok(Value::File(number)) = opened {
            client.files.insert(number, OpenFile { path, is_temporary, regions: BTreeMap::new() });
        }
        opened
    });
    let Some(Ok(Value::File(number))) = opened else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: as above; the table of methods lives for ever, and `flags_out` is null or for us to write to.
    unsafe {
        file.cast::<CFile>()
            .write(CFile { base: ffi::sqlite3_file { pMethods: &raw const METHODS }, number });
        if !flags_out.is_null() {
            *flags_out = flags;
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    let done = with_client(|client| {
        let opened = client.files.remove(&number);
        if let Some(opened) = &opened {
            client.locks.unlock(&opened.path, number, Level::None);
        }
        let done = client.call(Call::Close { file: number });
        if let Some(opened) = opened.filter(|opened| opened.is_temporary) {
            // No other connection knows the name.
            let _ = client.call(Call::Delete { path: opened.path, syncs_dir: false });
        }
        done
    });
    match done {
        Some(Ok(_)) => ffi::SQLITE_OK,
        _ => ffi::SQLITE_IOERR_CLOSE,
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    len: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    let (len, offset) = (len as usize, offset as u64);
    match with_client(|client| client.call(Call::Read { file: number, offset, len })) {
        Some(Ok(Value::Bytes(bytes))) => {
            let read = bytes.len().min(len);
            // SAFETY: SQLite has `len` bytes there; what is missing at the end of the file has to be zeros.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), read);
                ptr::write_bytes(buffer.cast::<u8>().add(read), 0, len - read);
            }
            if read == len { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_SHORT_READ }
        }
        _ => ffi::SQLITE_IOERR_READ,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    len: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: a method of a file that `open` filled; SQLite has `len` bytes in the buffer.
    let (number, bytes) =
        unsafe { (number_of(file), std::slice::from_raw_parts(buffer.cast::<u8>(), len as usize).to_vec()) };
    ask(Call::Write { file: number, offset: offset as u64, bytes }, ffi::SQLITE_IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    ask(Call::Truncate { file: number, size: size as u64 }, ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    ask(Call::Sync { file: number }, ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut ffi::sqlite3_int64) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    match ask_number(Call::Size { file: number }, ffi::SQLITE_IOERR_FSTAT) {
        Ok(bytes) => {
            // SAFETY: SQLite asks for the size there.
            unsafe { *size = bytes as i64 };
            ffi::SQLITE_OK
        }
        Err(code) => code,
    }
}

/// Does something with a file of this thread.
///
/// # Safety
/// `file` is one that [`open`] has filled.
unsafe fn with_file<T>(
    file: *mut ffi::sqlite3_file,
    work: impl FnOnce(&Client, &OpenFile, Owner) -> T,
) -> Option<T> {
    // SAFETY: the caller says so.
    let number = unsafe { number_of(file) };
    with_client(|client| client.files.get(&number).map(|opened| work(client, opened, number))).flatten()
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let done = unsafe {
        with_file(file, |client, opened, number| client.locks.lock(&opened.path, number, Level::of(level)))
    };
    match done {
        Some(true) => ffi::SQLITE_OK,
        Some(false) => ffi::SQLITE_BUSY,
        None => ffi::SQLITE_IOERR_LOCK,
    }
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let done = unsafe {
        with_file(file, |client, opened, number| client.locks.unlock(&opened.path, number, Level::of(level)))
    };
    if done.is_some() { ffi::SQLITE_OK } else { ffi::SQLITE_IOERR_UNLOCK }
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, is_held: *mut c_int) -> c_int {
    // SAFETY: a method of a file that `open` filled; SQLite asks for the answer in `is_held`.
    unsafe {
        let held = with_file(file, |client, opened, _| client.locks.is_reserved(&opened.path));
        *is_held = c_int::from(held.unwrap_or(false));
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(file: *mut ffi::sqlite3_file, op: c_int, _arg: *mut c_void) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let file = unsafe { number_of(file) };
    let (call, general) = match op {
        ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE => (Call::BeginSet { file }, ffi::SQLITE_IOERR_BEGIN_ATOMIC),
        ffi::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE => (Call::ReleaseSet { file }, ffi::SQLITE_IOERR_COMMIT_ATOMIC),
        ffi::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE => {
            (Call::ForgetSet { file }, ffi::SQLITE_IOERR_ROLLBACK_ATOMIC)
        }
        _ => return ffi::SQLITE_NOTFOUND,
    };
    // SQLite writes a journal where a set is refused for whatever reason; a full disk is no other.
    if ask(call, general) == ffi::SQLITE_OK { ffi::SQLITE_OK } else { general }
}

unsafe extern "C" fn sector_size(_file: *mut ffi::sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_file: *mut ffi::sqlite3_file) -> c_int {
    let sets = match with_client(|client| client.has_sets) {
        Some(true) => ffi::SQLITE_IOCAP_BATCH_ATOMIC,
        _ => 0,
    };
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE | ffi::SQLITE_IOCAP_SUBPAGE_READ | sets
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    index: c_int,
    bytes: c_int,
    extends: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    let region = with_client(|client| {
        let opened = client.files.get_mut(&number)?;
        let (index, bytes) = (index as usize, bytes as usize);
        let region = client.locks.region(&opened.path, number, index, bytes, extends != 0);
        if let Some(region) = &region {
            opened.regions.insert(index, region.clone());
        }
        Some(region)
    });
    let Some(Some(region)) = region else { return ffi::SQLITE_IOERR_SHMMAP };
    // SAFETY: the memory is of atomics, so it may be written to through a pointer from a shared reference, and the file keeps it until
    // SQLite unmaps it. Other threads use it only while this one waits (`guest`). `out` is for the answer.
    unsafe {
        *out = region.map_or(ptr::null_mut(), |region| region.as_ptr().cast_mut().cast::<c_void>());
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    let slots = first as usize..(first + count) as usize;
    let (is_lock, is_shared) = (flags & ffi::SQLITE_SHM_LOCK != 0, flags & ffi::SQLITE_SHM_SHARED != 0);
    // SAFETY: a method of a file that `open` filled.
    let done = unsafe {
        with_file(file, |client, opened, number| {
            client.locks.lock_slots(&opened.path, number, slots, is_lock, is_shared)
        })
    };
    match done {
        Some(true) => ffi::SQLITE_OK,
        Some(false) => ffi::SQLITE_BUSY,
        None => ffi::SQLITE_IOERR_SHMLOCK,
    }
}

unsafe extern "C" fn shm_barrier(_file: *mut ffi::sqlite3_file) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _deletes: c_int) -> c_int {
    // SAFETY: a method of a file that `open` filled.
    let number = unsafe { number_of(file) };
    with_client(|client| {
        if let Some(opened) = client.files.get_mut(&number) {
            client.locks.unmap(&opened.path, number);
            opened.regions.clear();
        }
    });
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(_vfs: *mut ffi::sqlite3_vfs, path: *const c_char, syncs_dir: c_int) -> c_int {
    // SAFETY: SQLite's names end with a zero.
    let Some(path) = (unsafe { path_of(path) }) else { return ffi::SQLITE_IOERR_DELETE };
    match with_client(|client| client.call(Call::Delete { path, syncs_dir: syncs_dir & 1 != 0 })) {
        Some(Ok(_)) => ffi::SQLITE_OK,
        Some(Err(Errno::ENOENT)) => ffi::SQLITE_IOERR_DELETE_NOENT,
        _ => ffi::SQLITE_IOERR_DELETE,
    }
}

unsafe extern "C" fn access(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    _flags: c_int,
    result: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's names end with a zero.
    let Some(path) = (unsafe { path_of(path) }) else { return ffi::SQLITE_IOERR_ACCESS };
    // SQLite may read and write everything here.
    match ask_number(Call::Exists { path }, ffi::SQLITE_IOERR_ACCESS) {
        Ok(exists) => {
            // SAFETY: SQLite asks for the answer there.
            unsafe { *result = c_int::from(exists != 0) };
            ffi::SQLITE_OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn full_path(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite's names end with a zero.
    let Some(path) = (unsafe { path_of(path) }) else { return ffi::SQLITE_CANTOPEN };
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    if path.len() >= len as usize {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has room for `len` bytes, and the path and its zero are not more.
    unsafe {
        ptr::copy_nonoverlapping(path.as_ptr(), out.cast::<u8>(), path.len());
        *out.add(path.len()) = 0;
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(_vfs: *mut ffi::sqlite3_vfs, len: c_int, out: *mut c_char) -> c_int {
    with_client(|client| {
        for at in 0..len as usize {
            // SAFETY: SQLite has `len` bytes there.
            unsafe { *out.add(at) = client.random() as c_char };
        }
    });
    len
}

unsafe extern "C" fn sleep(_vfs: *mut ffi::sqlite3_vfs, micros: c_int) -> c_int {
    let span = Duration::from_micros(micros.max(0) as u64);
    ask(Call::Sleep(span), ffi::SQLITE_IOERR);
    micros
}

/// Civil time in milliseconds, from the day on which SQLite begins to count.
fn julian_ms() -> i64 {
    JULIAN_EPOCH_MS + with_client(|client| client.civil_ms()).unwrap_or(0)
}

unsafe extern "C" fn current_time(_vfs: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    // SAFETY: SQLite asks for the answer there.
    unsafe { *out = julian_ms() as f64 / 86_400_000.0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn current_time_ms(_vfs: *mut ffi::sqlite3_vfs, out: *mut ffi::sqlite3_int64) -> c_int {
    // SAFETY: SQLite asks for the answer there.
    unsafe { *out = julian_ms() };
    ffi::SQLITE_OK
}

unsafe extern "C" fn last_error(_vfs: *mut ffi::sqlite3_vfs, _len: c_int, _out: *mut c_char) -> c_int {
    0
}
