//! Memory that is shared by descriptor: sealed memfds and mappings of them.

pub mod memfd;
pub mod region;

pub use region::{NumaPolicy, Region};

use std::io;

/// The size of the pages that back an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// The machine's ordinary page, 4 KiB on x86-64.
    Base,
    /// 2 MiB huge pages.
    Mib2,
    /// 1 GiB huge pages.
    Gib1,
}

impl PageSize {
    /// Bytes of one page.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Base => rustix::param::page_size() as u64,
            Self::Mib2 => 2 << 20,
            Self::Gib1 => 1 << 30,
        }
    }

    /// The page size of that many bytes, if it is one of the three.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        [Self::Base, Self::Mib2, Self::Gib1]
            .into_iter()
            .find(|page| page.bytes() == bytes)
    }
}

/// Why memory could not be made, mapped or moved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{call} on a memory extent: {source}")]
    Call {
        /// The call, and what it was for.
        call: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The descriptor could still shrink or grow under its users.
    #[error(
        "the extent is not sealed against shrinking and growing; \
         its owner must add F_SEAL_SHRINK and F_SEAL_GROW before handing it over"
    )]
    NotSealed,
    /// The descriptor is not of the declared length.
    #[error("the extent has {found} bytes but {declared} were declared")]
    WrongLength {
        /// Bytes that its owner declared.
        declared: u64,
        /// Bytes that the kernel counts.
        found: u64,
    },
    /// The descriptor is not backed by the declared pages.
    #[error("the extent has pages of {found} bytes but {declared} were declared")]
    WrongPageSize {
        /// Page bytes that its owner declared.
        declared: u64,
        /// Page bytes that the kernel reports.
        found: u64,
    },
    /// The length is zero or no whole number of pages.
    #[error("a length of {length} bytes is not a whole, positive number of {page}-byte pages")]
    BadLength {
        /// The length asked for, in bytes.
        length: u64,
        /// The page size asked for, in bytes.
        page: u64,
    },
    /// The range leaves the extent.
    #[error("the range of {length} bytes at offset {offset} leaves the extent of {extent} bytes")]
    OutOfRange {
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        length: u64,
        /// Bytes of the extent.
        extent: u64,
    },
    /// Pages could not be had: the cgroup's limit, or no huge page left.
    #[error(
        "the machine gave no pages for {length} bytes at offset {offset}: {source}; \
         check the memory limit of this container and the free huge pages of the node"
    )]
    NoPages {
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        length: u64,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A NUMA node number beyond what a policy can name.
    #[error("NUMA node {node} is beyond the {limit} that a policy can name")]
    BadNode {
        /// The node asked for.
        node: u32,
        /// Nodes that a policy can name.
        limit: u32,
    },
}

impl Error {
    pub(crate) fn call(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Call {
            call,
            source: errno.into(),
        }
    }
}
