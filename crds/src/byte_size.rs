//! A size in bytes, written as a Kubernetes quantity (`1Gi`, `512M`, `1073741824`).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes. Parses the Kubernetes suffixes `k M G T P E` (powers of 1000) and `Ki Mi Gi Ti Pi Ei` (powers
/// of 1024). Fractions must be whole bytes (`1.5Gi`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error(
        "`{0}` is not a quantity of bytes: write a number and one of Ki, Mi, Gi, Ti, k, M, G, T"
    )]
    Malformed(String),
    #[error("`{0}` is not a whole number of bytes")]
    Fraction(String),
    #[error("`{0}` is more than 2^64 - 1 bytes")]
    TooLarge(String),
}

const SUFFIXES: [(&str, u64); 13] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("", 1),
];

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Malformed(text.to_owned());
        let (number, scale) = SUFFIXES
            .iter()
            .find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)))
            .ok_or_else(malformed)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
            return Err(malformed());
        }
        let too_large = || ParseError::TooLarge(text.to_owned());
        let whole: u128 = whole.parse().map_err(|_| too_large())?;
        let mut bytes = whole.checked_mul(u128::from(scale)).ok_or_else(too_large)?;
        if !fraction.is_empty() {
            let unit = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| malformed())?);
            let part: u128 = fraction.parse().map_err(|_| malformed())?;
            let scaled = part * u128::from(scale);
            if !scaled.is_multiple_of(unit) {
                return Err(ParseError::Fraction(text.to_owned()));
            }
            bytes += scaled / unit;
        }
        u64::try_from(bytes).map(Self).map_err(|_| too_large())
    }
}

impl fmt::Display for ByteSize {
    /// Writes the largest binary suffix without loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suffix, scale) in SUFFIXES[..6].iter().rev() {
            if self.0 != 0 && self.0.is_multiple_of(*scale) {
                return write!(f, "{}{suffix}", self.0 / scale);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": "^[0-9]+(\\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$",
            "maxLength": 32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_in_kubernetes() {
        for (text, bytes) in [
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("512M", 512_000_000),
            ("0", 0),
            ("17179869184", 16 << 30),
            ("0.5k", 500),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected_with_their_text() {
        for text in ["", "Gi", "1GB", "-1", "1e3", "1.Gi.2", " 1", "1 Gi", "one"] {
            assert!(
                matches!(text.parse::<ByteSize>(), Err(ParseError::Malformed(_))),
                "{text}"
            );
        }
        assert!(matches!(
            "0.3".parse::<ByteSize>(),
            Err(ParseError::Fraction(_))
        ));
        assert!(matches!(
            "16Ei".parse::<ByteSize>(),
            Err(ParseError::TooLarge(_))
        ));
    }

    #[test]
    fn a_size_is_written_with_the_largest_suffix_without_loss() {
        assert_eq!(ByteSize(1 << 30).to_string(), "1Gi");
        assert_eq!(ByteSize(1536 << 20).to_string(), "1536Mi");
        assert_eq!(ByteSize(1001).to_string(), "1001");
        assert_eq!(ByteSize(0).to_string(), "0");
    }
}
