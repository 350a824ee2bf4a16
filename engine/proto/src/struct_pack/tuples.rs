//! Argument lists as tuples, packed like a struct of their members.

use super::{DecodeError, Node, Packed, Reader, Writer};

macro_rules! tuples {
    ($(($($member:ident),+);)*) => {$(
        impl<$($member: Packed),+> Packed for ($($member,)+) {
            const NODE: &'static Node = &Node::Struct(&[$($member::NODE),+]);
            const LEAST_BYTES: usize = 0 $(+ $member::LEAST_BYTES)+;

            #[allow(non_snake_case, reason = "each member has the name of its type")]
            fn longest(&self) -> usize {
                let ($($member,)+) = self;
                0 $(.max($member.longest()))+
            }

            #[allow(non_snake_case, reason = "each member has the name of its type")]
            fn pack(&self, out: &mut Writer) {
                let ($($member,)+) = self;
                $($member.pack(out);)+
            }

            fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(($($member::unpack(from)?,)+))
            }
        }
    )*};
}

tuples! {
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
    (A, B, C, D, E, F);
    (A, B, C, D, E, F, G);
}
