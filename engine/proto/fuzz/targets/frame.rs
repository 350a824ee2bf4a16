//! Fuzzes headers and status frames that arrive in parts of any length. Most inputs are edits of what a stock engine has sent.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::frame::{HEADER_LENGTH, Header, Partial, STATUS_LENGTH, Status};

/// Requests of versions 1 and 2 with their payloads, which are read as headers too.
const CAPTURED: [&[u8]; 2] = [
    include_bytes!("../captured/data_session/version-1"),
    include_bytes!("../captured/data_session/version-2"),
];

fuzz_target!(|input: &[u8]| {
    let [which, step, rest @ ..] = input else {
        return;
    };
    let captured = CAPTURED.get(usize::from(which % 3));
    let stream = captured.map_or(rest.to_vec(), |captured| edited(captured, rest));
    let stream = stream.as_slice();
    let step = usize::from(*step).max(1);
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
