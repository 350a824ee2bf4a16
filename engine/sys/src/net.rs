//! Sockets in other network namespaces, and packets that carry descriptors.

pub mod namespace;
pub mod seqpacket;

pub use namespace::Namespace;
