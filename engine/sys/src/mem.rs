//! Shared memory: sealed memfds and mappings of them.

pub mod memfd;
pub mod parts;
pub mod region;

pub use region::Region;

use std::io;

/// The size of the pages that back an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// The kernel's base page, 4 KiB on x86-64.
    Base,
    /// 2 MiB huge pages.
    Huge2Mi,
    /// 1 GiB huge pages.
    Huge1Gi,
}

impl PageSize {
    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Base => rustix::param::page_size() as u64,
            Self::Huge2Mi => 2 << 20,
            Self::Huge1Gi => 1 << 30,
        }
    }

    /// Returns the page size of that many bytes, if there is one.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        [Self::Base, Self::Huge2Mi, Self::Huge1Gi]
            .into_iter()
            .find(|page| page.bytes() == bytes)
    }
}

/// Why an operation on shared memory failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{call} failed on a memory extent: {source}")]
    Call {
        /// The system call.
        call: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The descriptor is not sealed, so it could shrink or grow while it is used.
    #[error(
        "the extent is not sealed against shrinking and growing; \
         its owner must add F_SEAL_SHRINK and F_SEAL_GROW before sending it"
    )]
    NotSealed,
    /// The descriptor does not have the declared length.
    #[error("the extent has {found} bytes but {declared} were declared")]
    WrongLength {
        /// Declared bytes.
        declared: u64,
        /// Bytes that the kernel reports.
        found: u64,
    },
    /// The descriptor is not backed by pages of the declared size.
    #[error("the extent has pages of {found} bytes but {declared} were declared")]
    WrongPageSize {
        /// Declared page size in bytes.
        declared: u64,
        /// Page size that the kernel reports, in bytes.
        found: u64,
    },
    /// The length is zero or not a multiple of the page size.
    #[error(
        "the length of {length} bytes is not a positive multiple of the page size of {page} bytes"
    )]
    BadLength {
        /// Requested length in bytes.
        length: u64,
        /// Requested page size in bytes.
        page: u64,
    },
    /// The range is not inside the extent.
    #[error("{length} bytes at offset {offset} are not inside the extent of {extent} bytes")]
    OutOfRange {
        /// Offset of the range.
        offset: u64,
        /// Bytes of the range.
        length: u64,
        /// Bytes of the extent.
        extent: u64,
    },
    /// The kernel cannot allocate pages: the cgroup's limit is reached, or no huge page is free.
    #[error(
        "cannot allocate pages for {length} bytes at offset {offset}: {source}; \
         check the memory limit of this container and the free huge pages of the node"
    )]
    NoPages {
        /// Offset of the range.
        offset: u64,
        /// Bytes of the range.
        length: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The NUMA node number does not fit the kernel's node mask.
    #[error("NUMA node {node} is out of range; a memory policy supports nodes below {limit}")]
    BadNode {
        /// Requested node.
        node: u32,
        /// First unsupported node.
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
