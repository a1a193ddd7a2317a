//! What a directory shows, as one number.
//!
//! Place in the data flow: two recovered images of the same number are one directory to be judged.
//!
//! Invariant: everything counts that a program may have set: paths, kinds, contents, rights, owners, attributes, and times that a call
//! has named. Times that the file system has set itself do not: they are those of virtual time.

use crate::files::tree::read_whole;
use flashweir_core::Payload;
use flashweir_core::random::mix;
use flashweir_fs::vfs::{Attr, Creds, Errno, Follow, Fs, Kind, OpenFlags, Process, Seek, Timestamp, Vfs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of a file that are read at a time.
const PART_BYTES: u64 = 64 << 10;

fn text(text: &[u8]) -> u64 {
    Payload::Bytes(Arc::from(text)).identity()
}

/// Hashes everything that a mounted file system shows. Errors name a path.
pub(super) async fn digest<F: Fs>(vfs: &Vfs<F>, named: &BTreeSet<Timestamp>) -> Result<u64, String> {
    let process = vfs.process(Creds::ROOT);
    let mut digest = 0u64;
    let mut todo = vec![Vec::new()];
    // The first path of each inode; a further name refers to that.
    let mut paths: BTreeMap<u64, u64> = BTreeMap::new();
    while let Some(path) = todo.pop() {
        let wrong =
            |errno: Errno| format!("/{}: {errno}", String::from_utf8_lossy(&path).trim_start_matches('/'));
        let shown: &[u8] = if path.is_empty() { b"/" } else { &path };
        let attr = process.stat(shown, Follow::No).await.map_err(wrong)?;
        let name = text(&path);
        let is_new = !paths.contains_key(&attr.ino.0);
        let first = *paths.entry(attr.ino.0).or_insert(name);
        digest = digest.wrapping_add(mix(name ^ mix(first)));
        if !is_new {
            continue;
        }
        let body = match attr.kind {
            Kind::File => mix(1) ^ content(&process, shown, attr.size).await.map_err(wrong)?,
            Kind::Symlink => mix(2) ^ text(&process.readlink(shown).await.map_err(wrong)?),
            Kind::Directory => {
                for entry in process.list(shown).await.map_err(wrong)? {
                    todo.push([&path, &b"/"[..], &entry.name].concat());
                }
                mix(3)
            }
            special => mix(4) ^ text(format!("{special:?}").as_bytes()),
        };
        let seen = attributes(vfs, &attr, named).await.map_err(wrong)?;
        digest = digest.wrapping_add(mix(mix(first) ^ mix(body)) ^ seen);
    }
    Ok(digest)
}

async fn attributes<F: Fs>(vfs: &Vfs<F>, attr: &Attr, named: &BTreeSet<Timestamp>) -> Result<u64, Errno> {
    let mut hash = mix(u64::from(attr.mode)) ^ mix(u64::from(attr.uid) << 32 | u64::from(attr.gid));
    for (at, time) in [(1, attr.atime), (2, attr.mtime)] {
        if named.contains(&time) {
            hash = mix(hash ^ at ^ mix(time.seconds as u64 ^ u64::from(time.nanos) << 32));
        }
    }
    for name in vfs.xattr_names_of(&Creds::ROOT, attr.ino).await? {
        let value = vfs.xattr_of(&Creds::ROOT, attr.ino, &name).await?;
        hash = hash.wrapping_add(mix(text(&name) ^ mix(text(&value))));
    }
    Ok(hash)
}

/// Hashes the content of a file. Holes are not read, and count as the zeros that they show.
async fn content<F: Fs>(process: &Process<F>, path: &[u8], size: u64) -> Result<u64, Errno> {
    let file = process.open(path, OpenFlags::READ, 0).await?;
    let (mut hash, mut at) = (mix(size), 0);
    let mut part = vec![0; PART_BYTES.min(size) as usize];
    while at < size {
        match file.seek(Seek::Data(at)).await {
            Ok(data) => at = data - data % PART_BYTES,
            Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno),
        }
        let bytes = &mut part[..PART_BYTES.min(size - at) as usize];
        read_whole(&file, at, bytes).await?;
        if bytes.iter().any(|byte| *byte != 0) {
            hash = hash.wrapping_add(mix(mix(at) ^ text(bytes)));
        }
        at += bytes.len() as u64;
    }
    file.close().await?;
    Ok(hash)
}
