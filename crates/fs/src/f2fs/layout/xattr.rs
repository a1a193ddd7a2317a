//! Extended attributes: a header and entries, in the inline room of an inode and, continued without a gap, in a node of their own.

use super::bytes::{put, u16_at, u32_at};
use super::node::INLINE_XATTR_WORDS;
use crate::f2fs::error::{Result, corrupt};
use crate::xattrs::Xattr;

const MAGIC: u32 = 0xf2f5_2011;
const HEADER_BYTES: usize = 24;
const ENTRY_BYTES: usize = 4;
/// Bytes of the node that holds the attributes that do not fit into the inode.
pub const NODE_BYTES: usize = 4072;
/// Most bytes of a value (`MAX_VALUE_LEN` of Linux).
pub const VALUE_BYTES_MAX: usize = INLINE_XATTR_WORDS as usize * 4 + NODE_BYTES - HEADER_BYTES - ENTRY_BYTES;

/// Indexes of name prefixes, with the prefixes.
pub const PREFIXES: [(u8, &str); 9] = [
    (1, "user."),
    (2, "system.posix_acl_access"),
    (3, "system.posix_acl_default"),
    (4, "trusted."),
    (5, "lustre."),
    (6, "security."),
    (7, "system.advise"),
    (9, "encryption."),
    (11, "verity."),
];

impl Xattr {
    fn bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.len() + self.value.len()).next_multiple_of(4)
    }
}

/// Decodes the attributes of a whole room: inline bytes, then those of the node. Errors: entries that exceed it.
pub fn decode(room: &[u8]) -> Result<Vec<Xattr>> {
    let mut xattrs = Vec::new();
    if room.len() < HEADER_BYTES || u32_at(room, 0) != MAGIC {
        // A room without a header holds no attributes.
        return Ok(xattrs);
    }
    let mut at = HEADER_BYTES;
    while at + ENTRY_BYTES <= room.len() && u32_at(room, at) != 0 {
        let (name, value) = (usize::from(room[at + 1]), usize::from(u16_at(room, at + 2)));
        let name_at = at + ENTRY_BYTES;
        if name_at + name + value > room.len() {
            return corrupt(format!(
                "the extended attribute at byte {at} has {name} + {value} bytes of {}",
                room.len()
            ));
        }
        let xattr = Xattr {
            index: room[at],
            name: room[name_at..name_at + name].to_vec(),
            value: room[name_at + name..name_at + name + value].to_vec(),
        };
        at += xattr.bytes();
        xattrs.push(xattr);
    }
    Ok(xattrs)
}

/// Encodes attributes into a room of `room_bytes`; `None` if they do not fit. The list ends with a zero word.
pub fn encode(xattrs: &[Xattr], room_bytes: usize) -> Option<Vec<u8>> {
    let mut room = vec![0; room_bytes];
    if xattrs.is_empty() {
        return Some(room);
    }
    let end = HEADER_BYTES + xattrs.iter().map(Xattr::bytes).sum::<usize>();
    if end + 4 > room_bytes {
        return None;
    }
    put(&mut room, 0, &MAGIC.to_le_bytes());
    put(&mut room, 4, &1_u32.to_le_bytes());
    let mut at = HEADER_BYTES;
    for xattr in xattrs {
        room[at] = xattr.index;
        room[at + 1] = xattr.name.len() as u8;
        put(&mut room, at + 2, &(xattr.value.len() as u16).to_le_bytes());
        put(&mut room, at + ENTRY_BYTES, &xattr.name);
        put(&mut room, at + ENTRY_BYTES + xattr.name.len(), &xattr.value);
        at += xattr.bytes();
    }
    Some(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_there_and_back() {
        let xattrs: Vec<Xattr> = (0..5)
            .map(|n| Xattr {
                index: 1,
                name: vec![b'a' + n; usize::from(n) + 1],
                value: vec![n; 17 * usize::from(n)],
            })
            .collect();
        let room = encode(&xattrs, 400).unwrap();
        assert_eq!(decode(&room).unwrap(), xattrs);
        assert_eq!(encode(&xattrs, 200), None);
        assert_eq!(decode(&encode(&[], 200).unwrap()).unwrap(), []);
        assert!(decode(&room[..60]).unwrap_err().to_string().contains("extended attribute at byte"));
    }
}
