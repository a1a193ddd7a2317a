//! Options: how a client and a session agree on an export.
//!
//! Invariants: the data of an option are looked at when they are complete, and no length inside them is believed;
//! each option but `NBD_OPT_EXPORT_NAME` ends with an acknowledgement or one error.

use super::export::{Export, PAYLOAD_BYTES_MAX, TlsMode};
use super::session::{Discarded, Fatal, Phase, Session, Step};
use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, OPTION_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_BYTES_MAX,
    be16, be32, be64, info, option, option_reply,
};

/// Longest data of an option, bytes. It fits the input beside its header.
const OPTION_DATA_BYTES_MAX: u32 = 64 << 10;

/// Why an option gets an error: its type and a text for people.
struct Refusal(u32, String);

fn invalid(why: &str) -> Refusal {
    Refusal(option_reply::ERR_INVALID, why.into())
}

/// The data of an option, from front to back.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], Refusal> {
        let (field, rest) =
            self.0.split_at_checked(n).ok_or_else(|| invalid("a field is longer than the option"))?;
        self.0 = rest;
        Ok(field)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        Ok(be16(self.bytes(2)?, 0))
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        Ok(be32(self.bytes(4)?, 0))
    }

    fn string(&mut self) -> Result<&'a [u8], Refusal> {
        let length = self.u32()? as usize;
        if length > STRING_BYTES_MAX {
            return Err(invalid("a string is longer than 4096 bytes"));
        }
        self.bytes(length)
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(invalid("the option is longer than its fields")) }
    }
}

impl Session {
    /// Looks for the next option.
    pub(super) fn option(&mut self) -> Result<Step, Fatal> {
        let unread = self.input.unread();
        let Some(header) = unread.get(..OPTION_BYTES) else { return Ok(Step::NeedBytes) };
        let (magic, number, length) = (be64(header, 0), be32(header, 8), be32(header, 12));
        if magic != OPTION_MAGIC {
            return Err(Fatal::OptionMagic(magic));
        }
        if number == option::EXPORT_NAME && length as usize > STRING_BYTES_MAX {
            return Err(Fatal::NameTooLong(length));
        }
        if length > OPTION_DATA_BYTES_MAX {
            self.input.consume(OPTION_BYTES);
            self.discard = Some((length.into(), Discarded::Option(number)));
            return Ok(Step::Again);
        }
        let Some(data) = unread.get(OPTION_BYTES..OPTION_BYTES + length as usize) else {
            return Ok(Step::NeedBytes);
        };
        let data = data.to_vec();
        self.input.consume(OPTION_BYTES + data.len());
        let tls_missing = self.config.tls() == TlsMode::Required && !self.tls;
        if number == option::EXPORT_NAME {
            return match () {
                () if tls_missing => Err(Fatal::TlsRequired),
                () if self.shutting_down => Err(Fatal::ShuttingDown),
                () => self.export_name(&data),
            };
        }
        let done = match number {
            option::ABORT => {
                self.phase = Phase::Leaving;
                Ok(())
            }
            _ if self.shutting_down => Err(Refusal(option_reply::ERR_SHUTDOWN, "the server stops".into())),
            option::STARTTLS => self.start_tls(&data),
            _ if tls_missing => Err(Refusal(option_reply::ERR_TLS_REQD, "this server requires TLS".into())),
            option::LIST => self.list(&data),
            option::INFO | option::GO => self.info(number, &data),
            option::STRUCTURED_REPLY => self.structured_reply(&data),
            option::LIST_META_CONTEXT => self.list_context(&data),
            option::SET_META_CONTEXT => self.set_context(&data),
            _ => Err(Refusal(option_reply::ERR_UNSUP, format!("option {number} is not supported"))),
        };
        match done {
            Ok(()) => self.option_reply(number, option_reply::ACK, &[]),
            Err(Refusal(kind, why)) => self.option_reply(number, kind, why.as_bytes()),
        }
        Ok(Step::Again)
    }

    /// The answer to an option whose data were skipped.
    pub(super) fn option_too_big(&mut self, number: u32) {
        let why = format!("the data of an option may have up to {OPTION_DATA_BYTES_MAX} bytes");
        self.option_reply(number, option_reply::ERR_TOO_BIG, why.as_bytes());
    }

    fn option_reply(&mut self, number: u32, kind: u32, data: &[u8]) {
        let out = self.output.end();
        out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(data);
    }

    fn enter_transmission(&mut self, export: usize) {
        self.export = Some(export);
        self.phase = Phase::Transmission;
    }

    fn export_name(&mut self, name: &[u8]) -> Result<Step, Fatal> {
        let Some(index) = self.config.find(name) else {
            return Err(Fatal::UnknownExport(String::from_utf8_lossy(name).into_owned()));
        };
        let export = &self.config.exports()[index];
        let out = self.output.end();
        out.extend_from_slice(&export.size.to_be_bytes());
        out.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        self.enter_transmission(index);
        Ok(Step::Again)
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Refusal> {
        Fields(data).end()?;
        if self.tls {
            return Err(invalid("TLS is there already"));
        }
        if self.config.tls() == TlsMode::Off {
            return Err(Refusal(option_reply::ERR_POLICY, "this server has no TLS".into()));
        }
        self.phase = Phase::StartTls;
        Ok(())
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<(), Refusal> {
        Fields(data).end()?;
        self.structured = true;
        Ok(())
    }

    fn list(&mut self, data: &[u8]) -> Result<(), Refusal> {
        Fields(data).end()?;
        let config = self.config.clone();
        for Export { name, description, .. } in config.exports() {
            let length = (name.len() as u32).to_be_bytes();
            let entry = [&length, name.as_bytes(), description.as_bytes()].concat();
            self.option_reply(option::LIST, option_reply::SERVER, &entry);
        }
        Ok(())
    }

    fn find_export(&self, name: &[u8]) -> Result<usize, Refusal> {
        self.config.find(name).ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            Refusal(option_reply::ERR_UNKNOWN, format!("there is no export '{name:.80}'"))
        })
    }

    fn info(&mut self, number: u32, data: &[u8]) -> Result<(), Refusal> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let asked = fields.bytes(usize::from(count) * 2)?;
        fields.end()?;
        let index = self.find_export(name)?;
        let config = self.config.clone();
        let export = &config.exports()[index];
        let is_asked = |kind: u16| asked.chunks_exact(2).any(|word| word == kind.to_be_bytes());

        let flags = export.flags(self.structured);
        let fact =
            [&info::EXPORT.to_be_bytes()[..], &export.size.to_be_bytes(), &flags.to_be_bytes()].concat();
        self.option_reply(number, option_reply::INFO, &fact);
        let sizes =
            [export.least_block, export.preferred_block, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes).concat();
        let fact = [&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat();
        self.option_reply(number, option_reply::INFO, &fact);
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if is_asked(kind) {
                let fact = [&kind.to_be_bytes()[..], text.as_bytes()].concat();
                self.option_reply(number, option_reply::INFO, &fact);
            }
        }
        if number == option::GO {
            self.enter_transmission(index);
        }
        Ok(())
    }

    /// The export of a question for metadata contexts, and whether `is_asked` holds for one of its queries.
    /// `None` stands for no query at all.
    fn contexts(
        &self,
        data: &[u8],
        is_asked: impl Fn(&[u8]) -> bool,
    ) -> Result<(usize, Option<bool>), Refusal> {
        if !self.structured {
            return Err(invalid("metadata contexts need structured replies"));
        }
        let mut fields = Fields(data);
        let export = fields.string()?;
        let queries = fields.u32()?;
        let mut found = None;
        // Each query takes four bytes at least, so a false count ends the loop soon.
        for _ in 0..queries {
            let query = fields.string()?;
            found = Some(found.unwrap_or(false) || is_asked(query));
        }
        fields.end()?;
        Ok((self.find_export(export)?, found))
    }

    fn context_reply(&mut self, number: u32, id: u32) {
        let context = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat();
        self.option_reply(number, option_reply::META_CONTEXT, &context);
    }

    fn list_context(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let (_, found) =
            self.contexts(data, |query| query == b"base:" || query == BASE_ALLOCATION.as_bytes())?;
        if found.unwrap_or(true) {
            self.context_reply(option::LIST_META_CONTEXT, 0);
        }
        Ok(())
    }

    fn set_context(&mut self, data: &[u8]) -> Result<(), Refusal> {
        // What was chosen before is gone, also where this question is wrong.
        self.context = None;
        let (export, found) = self.contexts(data, |query| query == BASE_ALLOCATION.as_bytes())?;
        if found == Some(true) {
            self.context = Some(export);
            self.context_reply(option::SET_META_CONTEXT, BASE_ALLOCATION_ID);
        }
        Ok(())
    }
}
