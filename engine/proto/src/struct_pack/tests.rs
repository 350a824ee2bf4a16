//! Test vectors captured from stock Mooncake, and properties over all inputs.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::store::release_0_3_13::{ReplicaDescriptor, Segment, TaskAssignment};
use crate::store::{ErrorCode, Uuid};

#[test]
fn literals_have_the_captured_hashes() {
    assert_eq!(type_hash::<Result<(), ErrorCode>>().to_string(), "af2868cc");
    assert_eq!(type_hash::<Uuid>().to_string(), "3c6d83e0");
    assert_eq!(type_hash::<String>().to_string(), "9dcffa76");
    assert_eq!(type_hash::<(String, String)>().to_string(), "7cf91ed8");
    assert_eq!(type_hash::<(Segment, Uuid)>().to_string(), "9ef70dae");
    assert_eq!(
        type_hash::<Vec<Result<(), ErrorCode>>>().to_string(),
        "39fc52ce"
    );
    assert_eq!(
        type_hash::<Result<BTreeMap<Uuid, Vec<String>>, ErrorCode>>().to_string(),
        "f594fb3c"
    );
    assert_eq!(literal_text(&Uuid::NODE.literal()), "fd04048989ff");
}

#[test]
fn one_long_string_widens_every_length_of_its_message() {
    let message = ("k".repeat(300), String::from("t"));
    let body = encode(&message);
    assert_eq!(body[..5], [0xd9, 0x1e, 0xf9, 0x7c, 0x08]);
    assert_eq!(body[5..7], 300_u16.to_le_bytes());
    assert_eq!(body[body.len() - 3..], [1, 0, b't']);
    assert_eq!(decode::<(String, String)>(&body), Ok(message));
}

#[test]
fn another_type_is_a_schema_error_with_both_hashes_and_the_received_literal() {
    let mut body = 0x7cf9_1ed9_u32.to_le_bytes().to_vec();
    body.extend([LITERAL_FOLLOWS]);
    body.extend(<(String, String)>::NODE.literal());
    body.extend([0, 1, b'k', 1, b't']);
    assert_eq!(
        decode::<(String, String)>(&body),
        Ok(("k".into(), "t".into()))
    );
    let error = decode::<String>(&body).unwrap_err().to_string();
    assert!(
        error.contains("7cf91ed8") && error.contains("9dcffa76"),
        "{error}"
    );
    assert!(error.contains("fd800c800cff"), "{error}");
    // The same hash with another literal is another type.
    body[6] = 0x81;
    assert!(matches!(
        decode::<(String, String)>(&body),
        Err(DecodeError::Schema { .. })
    ));
}

#[test]
fn an_allocation_is_limited_by_the_body_and_not_by_the_received_count() {
    let mut body = (type_hash::<Vec<Uuid>>().0 | METAINFO_FOLLOWS)
        .to_le_bytes()
        .to_vec();
    body.push(LengthWidth::from_code(3).code() << 3);
    body.extend(u64::MAX.to_le_bytes());
    body.extend([0; 40]);
    let error = decode::<Vec<Uuid>>(&body).unwrap_err();
    assert!(
        matches!(error, DecodeError::Truncated { left: 40, .. }),
        "{error}"
    );
    body[5..13].copy_from_slice(&2_u64.to_le_bytes());
    assert_eq!(decode::<Vec<Uuid>>(&body).map(|ids| ids.len()), Ok(2));
}

#[test]
fn trailing_bytes_are_ignored_and_missing_bytes_are_an_error() {
    let mut body = encode(&(7_u64, true));
    assert_eq!(
        decode::<(u64, bool)>(&body[..body.len() - 1]).unwrap_err(),
        DecodeError::Truncated {
            part: "bool",
            wanted: 1,
            left: 0
        }
    );
    body.push(9);
    assert_eq!(decode(&body), Ok((7_u64, true)));
}

/// A body with the right hash and any payload; a random hash would always fail.
fn with_prefix<T: Packed>(width: u8, payload: &[u8]) -> Vec<u8> {
    let mut body = (type_hash::<T>().0 | METAINFO_FOLLOWS)
        .to_le_bytes()
        .to_vec();
    body.push((width & 3) << 3);
    body.extend_from_slice(payload);
    body
}

type Everything = (
    Vec<ReplicaDescriptor>,
    Result<Option<String>, ErrorCode>,
    BTreeMap<String, bool>,
);

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode::<Everything>(&bytes);
        let _ = decode::<String>(&bytes);
    }

    #[test]
    fn no_payload_of_the_right_type_makes_the_decoder_panic(
        width in any::<u8>(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = decode::<Everything>(&with_prefix::<Everything>(width, &payload));
        let _ = decode::<Vec<TaskAssignment>>(&with_prefix::<Vec<TaskAssignment>>(width, &payload));
    }

    #[test]
    fn what_was_encoded_decodes_to_the_same(
        text in ".{0,400}",
        numbers in prop::collection::vec(any::<i64>(), 0..300),
        code in any::<i32>(),
        ids in prop::collection::btree_map(any::<u64>(), any::<(u64, u64)>(), 0..5),
    ) {
        let ids: BTreeMap<Uuid, u16> = ids
            .into_iter()
            .map(|(first, (second, _))| (Uuid { first, second }, 3))
            .collect();
        let value = (text.clone(), numbers, Some(Blob(text.into_bytes())), ids);
        prop_assert_eq!(decode(&encode(&value)), Ok(value));
        let refused: Result<(), ErrorCode> = Err(code.into());
        prop_assert_eq!(decode(&encode(&refused)), Ok(refused));
    }
}

#[test]
fn the_count_of_a_vector_is_limited_by_the_smallest_encoding() {
    assert_eq!(Segment::LEAST_BYTES, 16 + 1 + 8 + 8 + 1 + 1 + 1);
    assert_eq!(ReplicaDescriptor::LEAST_BYTES, 8 + 1 + 9 + 4);
}

#[test]
fn the_elements_of_all_containers_of_a_message_are_limited_together() {
    type Message = (Vec<String>, Vec<u64>);
    let value: Message = (vec!["a".into(), "bcd".into()], vec![1, 2]);
    let body = encode(&value);
    let read = |most| {
        let reader = Schema::of::<Message>().open(&body)?;
        Message::unpack(&mut reader.with_most_elements(most))
    };
    assert_eq!(read(4), Ok(value.clone()));
    assert_eq!(
        read(3),
        Err(DecodeError::TooManyElements {
            part: "vector",
            length: 2,
            left: 1
        })
    );
}

#[test]
fn each_malformed_part_of_a_body_has_its_error() {
    let error = |body: &[u8]| decode::<(Option<bool>, Result<(), ErrorCode>)>(body).unwrap_err();
    let whole = encode(&(Some(true), Result::<(), ErrorCode>::Ok(())));
    assert_eq!(whole[4..], [1, 1, 1]);
    for (at, part) in [(4, "optional"), (5, "bool"), (6, "expected")] {
        let mut body = whole.clone();
        body[at] = 2;
        assert_eq!(error(&body), DecodeError::OutOfRange { part, value: 2 });
    }
    let truncated = |part, wanted, left| DecodeError::Truncated { part, wanted, left };
    assert_eq!(error(&whole[..3]), truncated("type hash", 4, 3));
    let sent = u32::from_le_bytes([whole[0], whole[1], whole[2], whole[3]]) | METAINFO_FOLLOWS;
    let prefix = sent.to_le_bytes();
    assert_eq!(error(&prefix), truncated("metainfo", 1, 0));
    // Bits of members that no store message has, and of later versions.
    for metainfo in [1, 2, 0x20, 0xff] {
        let body = [&prefix[..], &[metainfo]].concat();
        assert_eq!(error(&body), DecodeError::Metainfo(metainfo));
    }
    let endless = [&prefix[..], &[LITERAL_FOLLOWS, 0xfd]].concat();
    assert_eq!(error(&endless), DecodeError::EndlessLiteral);
}

#[test]
fn text_must_be_utf_8_and_bytes_need_not_be() {
    let body = encode(&Blob(vec![b'a', 0xff]));
    assert_eq!(decode::<String>(&body), Err(DecodeError::NotUtf8));
    assert_eq!(decode(&body), Ok(Blob(vec![b'a', 0xff])));
}

#[test]
fn each_width_of_lengths_is_read() {
    for (code, length) in [(0, &[2][..]), (1, &[2, 0]), (2, &[2, 0, 0, 0])] {
        let payload = [length, b"ab"].concat();
        let body = with_prefix::<String>(code, &payload);
        assert_eq!(decode(&body), Ok(String::from("ab")));
        let cut = DecodeError::Truncated {
            part: "string",
            wanted: length.len() as u64,
            left: length.len() - 1,
        };
        let body = with_prefix::<String>(code, &payload[1..length.len()]);
        assert_eq!(decode::<String>(&body), Err(cut));
    }
    // More than two bytes of length.
    let long = "k".repeat(1 << 16);
    let body = encode(&long);
    assert_eq!(body[4..9], [2 << 3, 0, 0, 1, 0]);
    assert_eq!(decode(&body), Ok(long));
}

#[test]
fn what_has_no_content_has_no_body() {
    assert!(encode(&()).is_empty());
    assert_eq!(decode::<()>(b"ignored"), Ok(()));
}

#[test]
fn codes_are_shown_with_their_names() {
    assert_eq!(
        ErrorCode::ObjectNotFound.to_string(),
        "ObjectNotFound (-704)"
    );
    assert_eq!(ErrorCode::from(-7).to_string(), "unknown (-7)");
}
