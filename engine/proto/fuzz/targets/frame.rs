//! Fuzzes headers and status frames that arrive in parts of any length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mooncake_proto::frame::{HEADER_LENGTH, Header, Partial, STATUS_LENGTH, Status};

fuzz_target!(|input: &[u8]| {
    let Some((&step, stream)) = input.split_first() else {
        return;
    };
    let step = usize::from(step).max(1);
    let mut header = Partial::<HEADER_LENGTH>::default();
    let mut status = Partial::<STATUS_LENGTH>::default();
    let headers = whole(&mut header, stream, step);
    assert_eq!(headers.len(), stream.len() / HEADER_LENGTH);
    for bytes in headers {
        let read = Header::decode(bytes);
        assert_eq!(Header::decode(read.encode()), read);
    }
    for bytes in whole(&mut status, stream, step) {
        if let Ok(read) = Status::decode(bytes) {
            assert_eq!(read.encode(), bytes);
        }
    }
});

/// Returns the frames of a stream that arrives `step` bytes at a time.
fn whole<const N: usize>(partial: &mut Partial<N>, stream: &[u8], step: usize) -> Vec<[u8; N]> {
    let mut frames = Vec::new();
    for mut piece in stream.chunks(step) {
        while !piece.is_empty() {
            let spare = partial.spare();
            let count = spare.len().min(piece.len());
            spare[..count].copy_from_slice(&piece[..count]);
            piece = &piece[count..];
            frames.extend(partial.advance(count));
        }
    }
    frames
}
