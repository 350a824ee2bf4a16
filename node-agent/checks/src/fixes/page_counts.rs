//! Counts of hugepages by size and NUMA node, and their text in a change, for users and for the process that applies it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crds::ByteSize;
use crds::cluster::PageSize;

/// Sizes that are reserved.
const SIZES: [u64; 2] = [2 << 20, 1 << 30];

/// PageCounts of one size on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Size of one page in bytes.
    pub(super) size: u64,
    /// None on a machine without NUMA nodes.
    pub(super) node: Option<u32>,
}

impl Place {
    pub(super) fn new(size: PageSize, node: Option<u32>) -> Self {
        let size = size.bytes();
        Self { size, node }
    }
}

/// The kernel's name of a NUMA node.
pub(super) fn name(node: Option<u32>) -> String {
    node.map_or_else(|| "the node".to_owned(), |id| format!("node{id}"))
}

/// Counts of pages by place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PageCounts(pub(super) BTreeMap<Place, u64>);

impl PageCounts {
    pub(super) fn get(&self, place: Place) -> Option<u64> {
        self.0.get(&place).copied()
    }

    pub(super) fn set(&mut self, place: Place, count: u64) {
        self.0.insert(place, count);
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Place, u64)> + '_ {
        self.0.iter().map(|(place, count)| (*place, *count))
    }

    /// PageCounts of a size on all nodes.
    pub(super) fn of_size(&self, size: u64) -> u64 {
        let of = self.iter().filter(|(place, _)| place.size == size);
        of.map(|(_, count)| count).fold(0, u64::saturating_add)
    }

    /// Sizes that have a count, also of 0.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.iter().map(|(place, _)| place.size).collect();
        sizes.dedup();
        sizes
    }
}

/// `2Mi: node0 512, node1 0; 1Gi: node0 2, node1 2`.
impl fmt::Display for PageCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for (place, count) in self.iter() {
            match last {
                Some(size) if size == place.size => f.write_str(", ")?,
                Some(_) => write!(f, "; {}: ", ByteSize(place.size))?,
                None => write!(f, "{}: ", ByteSize(place.size))?,
            }
            last = Some(place.size);
            match place.node {
                Some(node) => write!(f, "node{node} {count}")?,
                None => write!(f, "{count}")?,
            }
        }
        Ok(())
    }
}

/// A text that is not a list of page counts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of hugepages: {0}")]
pub(super) struct InvalidCounts(String);

impl FromStr for PageCounts {
    type Err = InvalidCounts;

    fn from_str(text: &str) -> Result<Self, InvalidCounts> {
        read(text).ok_or_else(|| InvalidCounts(text.to_owned()))
    }
}

fn read(text: &str) -> Option<PageCounts> {
    let mut pages = PageCounts::default();
    for part in text.split("; ") {
        let (size, counts) = part.split_once(": ")?;
        let ByteSize(size) = size.parse().ok()?;
        if !SIZES.contains(&size) {
            return None;
        }
        for count in counts.split(", ") {
            let (node, count) = match count.split_once(' ') {
                Some((node, count)) => (Some(node.strip_prefix("node")?.parse().ok()?), count),
                None => (None, count),
            };
            pages.set(Place { size, node }, count.parse().ok()?);
        }
    }
    Some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_parsed_to_the_counts_that_wrote_it_and_others_are_refused() {
        for text in [
            "2Mi: node0 512, node1 0; 1Gi: node0 2, node1 2",
            "1Gi: node3 1",
            "2Mi: 4096",
        ] {
            let pages: PageCounts = text.parse().unwrap();
            assert_eq!(pages.to_string(), text);
        }
        let pages: PageCounts = "2Mi: node0 512, node1 3; 1Gi: node0 2".parse().unwrap();
        assert_eq!(pages.of_size(2 << 20), 515);
        assert_eq!(pages.sizes(), SIZES);
        for text in [
            "",
            "1000",
            "4Ki: node0 1",
            "2Mi: node/../x 1",
            "2Mi: node0 -1",
            "2Mi:",
        ] {
            assert!(text.parse::<PageCounts>().is_err(), "{text}");
        }
    }
}
