//! Enums whose variants are names on the wire: Reasons, checks, fixes, rules and states.
//!
//! Names of release 0.1.0 are read for one release, so that stored objects stay valid. They are also the words that are
//! written (see [`Vocabulary::written`](crate::word::Vocabulary::written)).

/// Declares an enum of names from a list: description, name, the name in release 0.1.0 and, if any, a value of type `$row`.
/// `formerly` is the former name of the same thing. `nearest` is the closest name of something that release 0.1.0
/// does not know; it is written, but never read as the new name.
macro_rules! catalog {
    (
        $(#[$meta:meta])* $kind:ident: $row:ty;
        $(
            $(#[doc = $doc:literal])+ $name:ident
            $(formerly $former:literal)? $(nearest $nearest:literal)? $(= $value:expr)?;
        )+
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $kind {
            $($(#[doc = $doc])+ $(#[serde(alias = $former)])? $name,)+
        }

        impl $kind {
            /// Every name, in the order of the list.
            pub const ALL: &[Self] = &[$(Self::$name),+];
            /// Names of release 0.1.0 and their successors.
            pub const FORMER: &[(&str, Self)] = &[$($(($former, Self::$name),)?)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The description, in one line.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }

            #[allow(dead_code, clippy::unused_unit, reason = "not every list has values")]
            fn row(self) -> $row {
                match self { $(Self::$name => { $($value)? })+ }
            }
        }

        impl crate::word::Vocabulary for $kind {
            const WORDS: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                self.as_str()
            }

            fn written(self) -> &'static str {
                match self {
                    $(Self::$name => {
                        let words = [$($former,)? $($nearest,)? stringify!($name)];
                        words[0]
                    })+
                }
            }

            fn read(word: &str) -> Option<Self> {
                match word {
                    $(stringify!($name) $(| $former)? => Some(Self::$name),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        /// Accepts the current names, then the former ones.
        impl schemars::JsonSchema for $kind {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let former = Self::FORMER.iter().map(|(name, _)| *name);
                let names: Vec<_> = Self::ALL.iter().map(|name| name.as_str()).chain(former).collect();
                schemars::json_schema!({ "type": "string", "enum": names })
            }
        }
    };
}

pub(crate) use catalog;
