//! Input of a trace: a file or standard input, plain or compressed.
//!
//! Place in the data flow: [`super::reader`] reads lines from the stream that [`open`] returns. Compression is
//! recognised by the first bytes, not by the name of the file.

use super::{Problem, TraceError};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Path that stands for standard input.
const STANDARD_INPUT: &str = "-";

const BUFFER_BYTES: usize = 1 << 18;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Opens a trace for reading; `-` is standard input.
pub(super) fn open(path: &Path) -> Result<Box<dyn BufRead>, TraceError> {
    let input = match path == Path::new(STANDARD_INPUT) {
        true => Ok(Box::new(io::stdin()) as Box<dyn Read>),
        false => File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    input
        .and_then(expanded)
        .map_err(|error| Problem::Read { message: error.to_string() }.at(&path.display().to_string(), 0))
}

/// Returns the decompressed stream of gzip or zstd data, or the input unchanged.
pub(super) fn expanded(input: Box<dyn Read>) -> io::Result<Box<dyn BufRead>> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
    let head = input.fill_buf()?;
    let buffered = |input: Box<dyn Read>| Box::new(BufReader::with_capacity(BUFFER_BYTES, input));
    Ok(if head.starts_with(&GZIP_MAGIC) {
        buffered(Box::new(MultiGzDecoder::new(input)))
    } else if head.starts_with(&ZSTD_MAGIC) {
        buffered(Box::new(Frames(Some(frame(input)?))))
    } else {
        Box::new(input)
    })
}

type Input = BufReader<Box<dyn Read>>;
type Frame = StreamingDecoder<Input, ruzstd::decoding::FrameDecoder>;

fn frame(input: Input) -> io::Result<Frame> {
    StreamingDecoder::new(input)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// The frames of a zstd file, one after the other: programs that compress on several processors write many.
struct Frames(Option<Frame>);

impl Read for Frames {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let count = decoder.read(bytes)?;
            if count > 0 || bytes.is_empty() {
                return Ok(count);
            }
            let mut input = self.0.take().expect("it was there").into_inner();
            self.0 = match input.fill_buf()?.is_empty() {
                true => None,
                false => Some(frame(input)?),
            };
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write as _;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &str) -> Vec<u8> {
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    }

    fn read(bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        expanded(Box::new(io::Cursor::new(bytes)))?.read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn what_is_compressed_reads_as_it_was() {
        let lines: String = (0..50_000).map(|at| format!("{at} 0 {} 8 1\n", at * 8)).collect();
        let (first, second) = lines.split_at(100_000);
        assert_eq!(read(lines.clone().into_bytes()).unwrap(), lines);
        assert_eq!(read(gzip(&lines)).unwrap(), lines);
        assert_eq!(read(zstd(&lines)).unwrap(), lines);
        assert_eq!(read([gzip(first), gzip(second)].concat()).unwrap(), lines);
        assert_eq!(read([zstd(first), zstd(second)].concat()).unwrap(), lines);
        assert_eq!(read(Vec::new()).unwrap(), "");
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        for compressed in [gzip("1 2 3 4 5\n"), zstd("1 2 3 4 5\n")] {
            let cut = compressed[..compressed.len() - 5].to_vec();
            assert!(read(cut).is_err(), "{compressed:?}");
        }
    }
}
