//! fio's own log of requests (`write_iolog`), versions 2 and 3. The first line names the version. Then
//! come lines about files (`filename add`, `open`, `close`) and about requests
//! (`filename read|write|trim|sync|datasync offset length`). Each file is a device here.
//!
//! Time: in version 3 each line begins with a timestamp relative to the beginning of the run; the manual
//! does not give its unit, fio writes microseconds. Version 2 has no timestamps but
//! `filename wait offset length`, which lets `offset` microseconds pass since the wait before, so requests
//! between two waits start together: such a log is best replayed as a closed loop. (fio discards waits
//! below 100 µs because it cannot sleep that shortly; here they count.)
//!
//! A sync of either kind becomes a flush of the device; writes that the file system adds to it are not in the log.
//!
//! One action is ours and none of fio's: `filename share offset length source` makes the range take over the content of the one
//! at `source` (SHARE).

use super::error::Problem;
use super::record::{Parsed, Record};
use super::text::{byte_range, number, time};
use flashweir_core::Duration;
use flashweir_sim::request::Kind;
use std::collections::BTreeSet;

const COLUMNS_V2: &str = "filename action [offset length]";
const COLUMNS_V3: &str = "timestamp filename action [offset length]";
const SHARE_V2: &str = "filename share offset length source";
const SHARE_V3: &str = "timestamp filename share offset length source";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

/// Parses the lines of a log.
#[derive(Default)]
pub(super) struct Fio {
    version: Option<Version>,
    files: BTreeSet<String>,
    clock: Duration,
}

impl Fio {
    pub(super) fn parse<'a>(&mut self, text: &'a str) -> Result<Option<Parsed<'a>>, Problem> {
        let Some(version) = self.version else {
            self.version = Some(match text.trim_end() {
                "fio version 2 iolog" => Version::Two,
                "fio version 3 iolog" => Version::Three,
                _ => return Err(Problem::field(text, "a header", "`fio version 2 iolog` or 3")),
            });
            return Ok(None);
        };
        let mut fields = text.split_ascii_whitespace();
        let columns = match version {
            Version::Two => COLUMNS_V2,
            Version::Three => COLUMNS_V3,
        };
        let wrong = || Problem::Columns { found: text.split_ascii_whitespace().count(), columns };
        if version == Version::Three {
            self.clock = time(fields.next().ok_or_else(wrong)?, 1_000, "microseconds")?;
        }
        let file = fields.next().ok_or_else(wrong)?;
        let action = fields.next().ok_or_else(wrong)?;
        if action == "share" {
            let columns = if version == Version::Two { SHARE_V2 } else { SHARE_V3 };
            let found = text.split_ascii_whitespace().count();
            let (Some(offset), Some(length), Some(source), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(Problem::Columns { found, columns });
            };
            self.known(file)?;
            let ((lba, blocks), (source, _)) = (byte_range(offset, length)?, byte_range(source, length)?);
            return Ok(Some(Parsed { device: file, record: Record::share(self.clock, lba, source, blocks) }));
        }
        let range = match (fields.next(), fields.next(), fields.next()) {
            (None, ..) => None,
            (Some(offset), Some(length), None) => Some((offset, length)),
            _ => return Err(wrong()),
        };
        self.act(version, file, action, range, wrong)
    }

    fn act<'a>(
        &mut self,
        version: Version,
        file: &'a str,
        action: &str,
        range: Option<(&str, &str)>,
        wrong: impl Fn() -> Problem,
    ) -> Result<Option<Parsed<'a>>, Problem> {
        let kind = match action {
            "add" => {
                self.files.insert(file.to_owned());
                return Ok(None);
            }
            "open" | "close" => {
                self.known(file)?;
                return Ok(None);
            }
            "wait" if version == Version::Two => {
                let (offset, _) = range.ok_or_else(wrong)?;
                let ns = number(offset, "a wait")?.checked_mul(1_000);
                let after = ns.and_then(|ns| ns.checked_add(self.clock.as_nanos()));
                let after = after.ok_or_else(|| Problem::field(offset, "a wait", "less than 584 years"))?;
                self.clock = Duration::from_nanos(after);
                return Ok(None);
            }
            "sync" | "datasync" => {
                self.known(file)?;
                return Ok(Some(Parsed { device: file, record: Record::flush(self.clock) }));
            }
            "read" => Kind::Read,
            "write" => Kind::Write,
            "trim" => Kind::Trim,
            _ if version == Version::Two => {
                let expected = "add, open, close, read, write, trim, share, sync, datasync or wait";
                return Err(Problem::field(action, "an action of version 2", expected));
            }
            _ => {
                let expected = "add, open, close, read, write, trim, share, sync or datasync";
                return Err(Problem::field(action, "an action of version 3", expected));
            }
        };
        self.known(file)?;
        let (offset, length) = range.ok_or_else(wrong)?;
        let (lba, blocks) = byte_range(offset, length)?;
        Ok(Some(Parsed { device: file, record: Record::new(self.clock, kind, lba, blocks) }))
    }

    fn known(&self, file: &str) -> Result<(), Problem> {
        if self.files.contains(file) {
            return Ok(());
        }
        Err(Problem::field(file, "a file of this log", "one that was added before"))
    }
}
