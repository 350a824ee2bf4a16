//! Faults: files that could not be read, by path and cause. A fault is a fact like any other, never a silent zero.

use std::fmt;
use std::str::FromStr;

use rustix::io::Errno;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most bytes of a malformed text in a message.
const EXCERPT: usize = 40;

/// One thing that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Path below the root.
    pub path: String,
    pub problem: Problem,
}

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The kernel's error.
    Errno(i32),
    /// Longer than any file of its kind should be.
    TooLarge,
    /// Not UTF-8.
    NotText,
    /// Not a regular file.
    NotAFile,
    /// A text that cannot be parsed; its beginning.
    Malformed(String),
    /// The device did not answer in time.
    Hung,
    /// It existed, but the recording does not contain it.
    NotRecorded,
}

impl Problem {
    pub const ABSENT: Self = Self::Errno(Errno::NOENT.raw_os_error());

    pub fn malformed(text: &str) -> Self {
        let end = text.floor_char_boundary(EXCERPT);
        Self::Malformed(text[..end].escape_debug().to_string())
    }
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

/// Names of the errors that devices return; any other is shown by its number.
const NAMES: [(&str, Errno); 19] = [
    ("EACCES", Errno::ACCESS),
    ("EAGAIN", Errno::AGAIN),
    ("EBUSY", Errno::BUSY),
    ("EINVAL", Errno::INVAL),
    ("EIO", Errno::IO),
    ("EISDIR", Errno::ISDIR),
    ("ELOOP", Errno::LOOP),
    ("ENAMETOOLONG", Errno::NAMETOOLONG),
    ("ENODATA", Errno::NODATA),
    ("ENODEV", Errno::NODEV),
    ("ENOENT", Errno::NOENT),
    ("ENOMEM", Errno::NOMEM),
    ("ENOTDIR", Errno::NOTDIR),
    ("ENXIO", Errno::NXIO),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("EPERM", Errno::PERM),
    ("ESRCH", Errno::SRCH),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("EXDEV", Errno::XDEV),
];

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(number) => {
                let known = NAMES
                    .iter()
                    .find(|(_, errno)| errno.raw_os_error() == *number);
                match known {
                    Some((name, _)) => f.write_str(name),
                    None => write!(f, "errno {number}"),
                }
            }
            Self::TooLarge => f.write_str("TooLarge"),
            Self::NotText => f.write_str("NotText"),
            Self::NotAFile => f.write_str("NotAFile"),
            Self::Malformed(text) => write!(f, "Malformed: {text}"),
            Self::Hung => f.write_str("Hung"),
            Self::NotRecorded => f.write_str("NotRecorded"),
        }
    }
}

/// A text that is not a [`Problem`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a known problem")]
pub struct NoProblem(String);

impl FromStr for Problem {
    type Err = NoProblem;

    fn from_str(text: &str) -> Result<Self, NoProblem> {
        if let Some((_, errno)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok((*errno).into());
        }
        if let Some(excerpt) = text.strip_prefix("Malformed: ") {
            return Ok(Self::Malformed(excerpt.to_owned()));
        }
        let number = text.strip_prefix("errno ").map(str::parse);
        match (text, number) {
            (_, Some(Ok(number))) => Ok(Self::Errno(number)),
            ("TooLarge", _) => Ok(Self::TooLarge),
            ("NotText", _) => Ok(Self::NotText),
            ("NotAFile", _) => Ok(Self::NotAFile),
            ("Hung", _) => Ok(Self::Hung),
            ("NotRecorded", _) => Ok(Self::NotRecorded),
            _ => Err(NoProblem(text.to_owned())),
        }
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Problem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_parsed_from_its_text() {
        let mut problems: Vec<_> = NAMES.iter().map(|(_, errno)| (*errno).into()).collect();
        problems.extend([
            Problem::Errno(131),
            Problem::TooLarge,
            Problem::NotText,
            Problem::NotAFile,
            Problem::malformed("4 ACTIVE\n\u{7f}"),
            Problem::Hung,
            Problem::NotRecorded,
        ]);
        for problem in problems {
            assert_eq!(problem.to_string().parse::<Problem>().unwrap(), problem);
        }
        assert!("ENONSENSE".parse::<Problem>().is_err());
    }
}
