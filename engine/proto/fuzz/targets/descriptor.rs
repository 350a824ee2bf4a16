//! Fuzzes the parser of segment descriptors. Most inputs are edits of one that a stock engine has sent.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::descriptor::Descriptor;
use mooncake_proto::handshake::PREFIX_LENGTH;

/// A frame of an engine of the wheel 0.3.13.post1: length, type, descriptor.
const FRAME: &[u8] = include_bytes!("../captured/handshake/metadata-reply");
const CAPTURED: &[u8] = FRAME.split_at(PREFIX_LENGTH + 1).1;
/// Of which each edit matters.
const SHORT: &[u8] = br#"{"buffers":[{"addr":1,"length":1,"name":"a"}],"protocol":"tcp","tcp_data_host":"","tcp_pipeline_depth":1}"#;

fn descriptor(bytes: &[u8]) {
    if let Ok(read) = Descriptor::parse(bytes) {
        let again = Descriptor::parse(&read.encode()).expect("what we write can be read");
        assert_eq!(again, read);
    }
}

fn check_captured() {
    let read = Descriptor::parse(CAPTURED).expect("a captured descriptor");
    assert_eq!(read.encode(), CAPTURED);
    assert!(Descriptor::parse(SHORT).is_ok());
}

fuzz_target!(init: check_captured(), |input: &[u8]| {
    let Some((which, rest)) = input.split_first() else {
        return;
    };
    match which % 3 {
        0 => descriptor(&edited(CAPTURED, rest)),
        1 => descriptor(&edited(SHORT, rest)),
        _ => descriptor(rest),
    }
});
