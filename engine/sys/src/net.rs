//! Sockets in other network namespaces, and Unix packets that carry descriptors.

pub mod namespace;
pub mod seqpacket;
pub mod socket;

pub use namespace::Namespace;
