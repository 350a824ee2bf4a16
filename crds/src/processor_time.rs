//! A number of processors, written as a Kubernetes quantity (`250m`, `1`, `0.5`).

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Thousandths of a processor, as Kubernetes counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessorTime(pub u32);

/// A text that is no number of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a number of processors: write one such as 250m, 1 or 0.5")]
pub struct ParseError(String);

impl FromStr for ProcessorTime {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError(text.to_owned());
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let number = digits.parse::<u32>().ok();
            number.filter(|_| is_number).ok_or_else(malformed)
        };
        if let Some(thousandths) = text.strip_suffix('m') {
            return Ok(Self(number(thousandths)?));
        }
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        if fraction.is_empty() || fraction.len() > 3 {
            return Err(malformed());
        }
        let part = number(&format!("{fraction:0<3}"))?;
        let whole = number(whole)?.checked_mul(1000);
        let sum = whole.and_then(|whole| whole.checked_add(part));
        sum.map(Self).ok_or_else(malformed)
    }
}

impl fmt::Display for ProcessorTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1000 {
            0 => write!(f, "{}", self.0 / 1000),
            _ => write!(f, "{}m", self.0),
        }
    }
}

impl Serialize for ProcessorTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProcessorTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(processors) => processors.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ProcessorTime {
    fn schema_name() -> Cow<'static, str> {
        "ProcessorTime".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": "^([0-9]{1,6}m|[0-9]{1,3}(\\.[0-9]{1,3})?)$",
            "maxLength": 8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_in_kubernetes() {
        for (text, thousandths) in [
            ("250m", 250),
            ("1", 1000),
            ("0.5", 500),
            ("1.25", 1250),
            ("0.001", 1),
        ] {
            assert_eq!(text.parse(), Ok(ProcessorTime(thousandths)), "{text}");
        }
        let written = |json: &str| serde_json::from_str::<ProcessorTime>(json).unwrap();
        assert_eq!(
            written("2"),
            written("'2000m'".replace('\'', "\"").as_str())
        );
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        for text in [
            "", "m", "-1", "1.", ".5", "0.0001", "1k", "1Gi", "+1", "4294968",
        ] {
            assert!(text.parse::<ProcessorTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_is_written_as_kubernetes_writes_it() {
        assert_eq!(ProcessorTime(250).to_string(), "250m");
        assert_eq!(ProcessorTime(1500).to_string(), "1500m");
        assert_eq!(ProcessorTime(2000).to_string(), "2");
    }
}
