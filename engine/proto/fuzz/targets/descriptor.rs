//! Fuzzes the parser of segment descriptors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mooncake_proto::descriptor::Descriptor;

fuzz_target!(|input: &[u8]| {
    if let Ok(read) = Descriptor::parse(input) {
        let again = Descriptor::parse(&read.encode()).expect("what we write can be read");
        assert_eq!(again, read);
    }
});
