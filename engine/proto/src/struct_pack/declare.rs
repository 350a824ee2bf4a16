//! Macros that declare message types.

/// Declares a struct, whose members are packed in order.
macro_rules! packed_struct {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)+
        }

        impl $crate::struct_pack::Packed for $name {
            const NODE: &'static $crate::struct_pack::Node = &$crate::struct_pack::Node::Struct(&[
                $(<$type as $crate::struct_pack::Packed>::NODE),+
            ]);
            const LEAST_BYTES: usize =
                0 $(+ <$type as $crate::struct_pack::Packed>::LEAST_BYTES)+;

            fn longest(&self) -> usize {
                0 $(.max($crate::struct_pack::Packed::longest(&self.$field)))+
            }

            fn pack(&self, out: &mut $crate::struct_pack::Writer) {
                $($crate::struct_pack::Packed::pack(&self.$field, out);)+
            }

            fn unpack(
                from: &mut $crate::struct_pack::Reader<'_>,
            ) -> Result<Self, $crate::struct_pack::DecodeError> {
                Ok(Self { $($field: $crate::struct_pack::Packed::unpack(from)?,)+ })
            }
        }
    };
}
pub(crate) use packed_struct;

/// Declares an enum, packed as its underlying integer. Unknown values are kept, so that the answer of a
/// newer peer can be displayed.
macro_rules! packed_enum {
    ($(#[$meta:meta])* pub enum $name:ident: $integer:ty {
        $($(#[$value_meta:meta])* $variant:ident = $value:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_meta])* $variant,)+
            /// An unknown value.
            Unknown($integer),
        }

        impl $name {
            /// Returns the number on the wire.
            #[must_use]
            pub fn code(self) -> $integer {
                match self {
                    $(Self::$variant => $value,)+
                    Self::Unknown(code) => code,
                }
            }
        }

        impl From<$integer> for $name {
            fn from(code: $integer) -> Self {
                match code {
                    $($value => Self::$variant,)+
                    other => Self::Unknown(other),
                }
            }
        }

        /// Writes the name and the number on the wire.
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    Self::Unknown(code) => write!(f, "unknown ({code})"),
                    named => write!(f, "{named:?} ({})", named.code()),
                }
            }
        }

        impl $crate::struct_pack::Packed for $name {
            const NODE: &'static $crate::struct_pack::Node =
                <$integer as $crate::struct_pack::Packed>::NODE;
            const LEAST_BYTES: usize = <$integer as $crate::struct_pack::Packed>::LEAST_BYTES;

            fn longest(&self) -> usize {
                0
            }

            fn pack(&self, out: &mut $crate::struct_pack::Writer) {
                self.code().pack(out);
            }

            fn unpack(
                from: &mut $crate::struct_pack::Reader<'_>,
            ) -> Result<Self, $crate::struct_pack::DecodeError> {
                <$integer as $crate::struct_pack::Packed>::unpack(from).map(Self::from)
            }
        }
    };
}
pub(crate) use packed_enum;
