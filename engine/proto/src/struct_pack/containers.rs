//! Vectors, maps, optional values and results.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::packed::flag;
use super::{DecodeError, Node, Packed, Reader, Writer};

impl<T: Packed> Packed for Vec<T> {
    const NODE: &'static Node = &Node::Vector(T::NODE);
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        self.iter()
            .map(Packed::longest)
            .fold(self.len(), usize::max)
    }

    fn pack(&self, out: &mut Writer) {
        out.length(self.len());
        for element in self {
            element.pack(out);
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const {
            assert!(
                T::LEAST_BYTES > 0,
                "a count of empty elements is not limited by the input"
            )
        };
        let length = from.length("vector", T::LEAST_BYTES)?;
        let mut elements = Self::with_capacity(length);
        for _ in 0..length {
            elements.push(T::unpack(from)?);
        }
        Ok(elements)
    }
}

impl<K: Packed + Ord, V: Packed> Packed for BTreeMap<K, V> {
    const NODE: &'static Node = &Node::Map(K::NODE, V::NODE);
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        self.iter()
            .map(|(key, value)| key.longest().max(value.longest()))
            .fold(self.len(), usize::max)
    }

    fn pack(&self, out: &mut Writer) {
        out.length(self.len());
        for (key, value) in self {
            key.pack(out);
            value.pack(out);
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const {
            assert!(
                K::LEAST_BYTES > 0,
                "a count of empty keys is not limited by the input"
            )
        };
        let length = from.length("map", K::LEAST_BYTES + V::LEAST_BYTES)?;
        (0..length)
            .map(|_| Ok((K::unpack(from)?, V::unpack(from)?)))
            .collect()
    }
}

impl<T: Packed> Packed for Option<T> {
    const NODE: &'static Node = &Node::Optional(T::NODE);
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        self.as_ref().map_or(0, Packed::longest)
    }

    fn pack(&self, out: &mut Writer) {
        self.is_some().pack(out);
        if let Some(value) = self {
            value.pack(out);
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if flag(from, "optional")? {
            T::unpack(from).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// `expected<T, E>`.
impl<T: Packed, E: Packed> Packed for Result<T, E> {
    const NODE: &'static Node = &Node::Expected(T::NODE, E::NODE);
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        self.as_ref().map_or_else(Packed::longest, Packed::longest)
    }

    fn pack(&self, out: &mut Writer) {
        self.is_ok().pack(out);
        match self {
            Ok(value) => value.pack(out),
            Err(error) => error.pack(out),
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if flag(from, "expected")? {
            T::unpack(from).map(Ok)
        } else {
            E::unpack(from).map(Err)
        }
    }
}
