//! Words that one component writes and another reads: Reasons, checks, states. They are open strings on the wire, so
//! that an object with a word of another release can be read. What each reader does with a word that it does not know
//! is in [`crate::skew`].

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum length of a word in bytes.
pub const WORD_LIMIT: usize = 63;

/// Pattern of a word in the schemas of component-written fields.
pub const WORD_PATTERN: &str = "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$";

/// A list of words.
pub trait Vocabulary: Copy + 'static {
    /// Every word of the list.
    const WORDS: &'static [Self];

    /// Returns the name in this release. People read it in logs, Events, conditions and metrics.
    fn name(self) -> &'static str;

    /// Returns the word to write into fields that release 0.1.0 reads. Its readers know no word of a later release, and a
    /// reader of 0.1.0 may appear at any time: after a rollback it reads what this release has written.
    fn written(self) -> &'static str;

    /// Returns the entry with this name in this release or in release 0.1.0.
    fn read(word: &str) -> Option<Self>;

    /// Returns whether release 0.1.0 has this entry, under this name or its former one.
    fn is_in_0_1_0(self) -> bool
    where
        Self: PartialEq,
    {
        Self::read(self.written()) == Some(self)
    }
}

/// A word as it was read: an entry of the list, or a word of another release, which is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word<T> {
    Known(T),
    Other(OtherWord),
}

/// A word that this release does not know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherWord {
    bytes: [u8; WORD_LIMIT],
    length: usize,
}

impl OtherWord {
    fn new(word: &str) -> Option<Self> {
        let mut bytes = [0; WORD_LIMIT];
        bytes
            .get_mut(..word.len())?
            .copy_from_slice(word.as_bytes());
        let length = word.len();
        Some(Self { bytes, length })
    }

    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.length);
        bytes
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }
}

impl<T: Vocabulary> Word<T> {
    /// Returns the entry of the list; `None` for a word of another release.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(entry) => Some(entry),
            Self::Other(_) => None,
        }
    }

    /// Returns the name for people.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(entry) => entry.name(),
            Self::Other(word) => word.as_str(),
        }
    }
}

impl<T> From<T> for Word<T> {
    fn from(entry: T) -> Self {
        Self::Known(entry)
    }
}

/// A word of another release equals no entry.
impl<T: PartialEq> PartialEq<T> for Word<T> {
    fn eq(&self, entry: &T) -> bool {
        matches!(self, Self::Known(known) if known == entry)
    }
}

impl<T: Vocabulary> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Vocabulary> fmt::Debug for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Vocabulary> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Known(entry) => entry.written(),
            Self::Other(word) => word.as_str(),
        })
    }
}

impl<'de, T: Vocabulary> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(WordVisitor(PhantomData))
    }
}

struct WordVisitor<T>(PhantomData<T>);

impl<T: Vocabulary> Visitor<'_> for WordVisitor<T> {
    type Value = Word<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a word of at most {WORD_LIMIT} bytes")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Word<T>, E> {
        let known = T::read(word).map(Word::Known);
        let read = known.or_else(|| OtherWord::new(word).map(Word::Other));
        read.ok_or_else(|| E::invalid_length(word.len(), &self))
    }
}

/// Any word: the API server must store the words of every release.
impl<T> schemars::JsonSchema for Word<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": WORD_PATTERN, "maxLength": WORD_LIMIT })
    }
}

/// Serializes an entry under the name that release 0.1.0 has for it; for copies of fields that users write. A later entry keeps
/// its name: the nearest one is something else, for which the user has set nothing.
pub(crate) fn as_written<T: Vocabulary + PartialEq, S: Serializer>(
    entry: &T,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_str(if entry.is_in_0_1_0() {
        entry.written()
    } else {
        entry.name()
    })
}

/// Opens the schema of copies of fields that users write: in an object that a component writes, each list of allowed words
/// becomes a pattern, and rules for values are left to the object that the user writes.
pub(crate) fn open_words(schema: &mut schemars::Schema) {
    if let Some(fields) = schema.as_object_mut() {
        fields.values_mut().for_each(open);
    }
}

fn open(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            // Variants with descriptions are a `oneOf` here.
            let described = fields
                .get("oneOf")
                .is_some_and(|variants| variants[0]["const"].is_string());
            if described || fields.contains_key("enum") {
                fields.remove("oneOf");
                fields.remove("enum");
                fields.insert("type".to_owned(), "string".into());
                fields.insert("pattern".to_owned(), WORD_PATTERN.into());
                fields.insert("maxLength".to_owned(), WORD_LIMIT.into());
                fields.remove("default");
            }
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(open);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(open),
        _ => {}
    }
}

/// Reads the entries that this release understands. Another release may write others, and one entry must not make an
/// object unreadable.
pub(crate) fn readable_entries<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let entries = Option::<Vec<serde_json::Value>>::deserialize(from).map_err(D::Error::custom)?;
    let readable = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| serde_json::from_value(entry).ok());
    Ok(readable.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{CheckId, Reason};

    fn read<T: Vocabulary>(word: &str) -> Word<T> {
        serde_json::from_value(Value::from(word)).unwrap()
    }

    #[test]
    fn a_word_of_another_release_is_kept_unchanged() {
        let word = read::<Reason>("OfTheNextRelease");
        assert_eq!((word.known(), word.as_str()), (None, "OfTheNextRelease"));
        assert_eq!(
            serde_json::to_value(word).unwrap(),
            json!("OfTheNextRelease")
        );
        let longest = "A".repeat(WORD_LIMIT);
        assert_eq!(read::<CheckId>(&longest).as_str(), longest);
        let longer = Value::from("A".repeat(WORD_LIMIT + 1));
        assert!(serde_json::from_value::<Word<Reason>>(longer).is_err());
    }

    #[test]
    fn a_renamed_word_is_read_under_both_names_and_written_under_the_former() {
        for word in ["HugepagesInsufficient", "HugepagesShort"] {
            let word = read::<Reason>(word);
            assert!(word == Reason::HugepagesInsufficient);
            assert_eq!(word.to_string(), "HugepagesInsufficient");
            assert_eq!(serde_json::to_value(word).unwrap(), json!("HugepagesShort"));
        }
    }
}
