//! Layouts and numbers: each is defined once, for Rust, and described for other languages.
//!
//! The macros of this module make a type and its description from the same lines, so that neither can differ from the
//! other; sizes and offsets are written down there and asserted.

use crate::{buffer, error_code, network, party, share, spawn, work};

/// A number with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// As C has it.
    pub name: &'static str,
    /// What it is.
    pub value: u64,
    /// Of the word that it stands in: 32 or 64.
    pub bits: u32,
    /// Its documentation, by lines.
    pub doc: &'static [&'static str],
}

/// Numbers that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// The documentation of all, by lines.
    pub doc: &'static [&'static str],
    /// Each.
    pub list: &'static [Constant],
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLayout {
    /// Its name, the same in all languages.
    pub name: &'static str,
    /// The type in C of it, or of each of its elements.
    pub c_type: &'static str,
    /// Of an array: how many elements.
    pub count: Option<usize>,
    /// Bytes before it.
    pub offset: usize,
    /// Its bytes.
    pub size: usize,
    /// Its documentation, by lines.
    pub doc: &'static [&'static str],
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// Its name in Rust.
    pub name: &'static str,
    /// Its name in C.
    pub c_name: &'static str,
    /// Its bytes; it lies at multiples of [`ALIGNMENT`].
    pub size: usize,
    /// Its documentation, by lines.
    pub doc: &'static [&'static str],
    /// From its beginning to its end, without gaps.
    pub fields: &'static [FieldLayout],
}

/// Every record lies at a multiple of this.
pub const ALIGNMENT: usize = 8;

/// All constants, in the header's order.
pub const CONSTANTS: &[Constants] = &[
    party::CONSTANTS,
    error_code::ErrorCode::CONSTANTS,
    buffer::CONSTANTS,
    buffer::Rights::CONSTANTS,
    work::CONSTANTS,
    work::WorkKind::CONSTANTS,
    work::WorkState::CONSTANTS,
    spawn::CONSTANTS,
    spawn::SpawnFlags::CONSTANTS,
    spawn::SpawnState::CONSTANTS,
    spawn::ExitKind::CONSTANTS,
    network::CONSTANTS,
    network::NetworkOperation::CONSTANTS,
    network::Protocol::CONSTANTS,
    network::AddressFamily::CONSTANTS,
    network::NetworkState::CONSTANTS,
    share::CONSTANTS,
];

/// All records: each after those that it contains.
pub const RECORDS: &[StructLayout] = &[
    buffer::RdmaBuffer::LAYOUT,
    work::WorkItem::LAYOUT,
    spawn::SpawnRequest::LAYOUT,
    network::NetworkRequest::LAYOUT,
    share::ShareRequest::LAYOUT,
    share::ShareAnswer::LAYOUT,
];

/// What a field can be.
pub(crate) trait FieldType {
    const C: &'static str;
    const COUNT: Option<usize> = None;
}

macro_rules! words {
    ($($word:ty, $c:literal;)*) => {
        $(impl FieldType for $word {
            const C: &'static str = $c;
        })*
    };
}

words! {
    u8, "uint8_t";
    u32, "uint32_t";
    i32, "int32_t";
    u64, "uint64_t";
}

impl<T: FieldType, const N: usize> FieldType for [T; N] {
    const C: &'static str = {
        assert!(T::COUNT.is_none(), "arrays of arrays are not described");
        T::C
    };
    const COUNT: Option<usize> = Some(N);
}

/// A record: its name in C, its size, and its fields with their offsets.
macro_rules! layout {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident, $c:literal, $size:literal {
            $($(#[doc = $field_doc:literal])* $offset:literal $field:ident: $type:ty,)*
        }
    ) => {
        $(#[doc = $doc])*
        ///
        /// Its fields are as others wrote them: `decode` checks them.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(C, align(8))]
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == $crate::layout::ALIGNMENT);
            $(assert!(core::mem::offset_of!($name, $field) == $offset, stringify!($field));)*
        };

        impl $crate::layout::FieldType for $name {
            const C: &'static str = $c;
        }

        /// Without its bytes: they can hold secrets.
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl $name {
            /// Its description.
            pub const LAYOUT: $crate::layout::StructLayout = $crate::layout::StructLayout {
                name: stringify!($name),
                c_name: $c,
                size: $size,
                doc: &[$($doc),*],
                fields: &[$($crate::layout::FieldLayout {
                    name: stringify!($field),
                    c_type: <$type as $crate::layout::FieldType>::C,
                    count: <$type as $crate::layout::FieldType>::COUNT,
                    offset: $offset,
                    size: size_of::<$type>(),
                    doc: &[$($field_doc),*],
                }),*],
            };

            /// All zero.
            pub const ZERO: $name = zerocopy::transmute!([0_u8; $size]);

            /// The record that these bytes are, unchecked.
            ///
            /// # Errors
            /// [`AbiError::Size`](crate::AbiError::Size) if there are more or fewer than a record has.
            pub fn from_bytes(bytes: &[u8]) -> Result<$name, $crate::AbiError> {
                zerocopy::FromBytes::read_from_bytes(bytes).map_err(|_| $crate::AbiError::Size {
                    record: stringify!($name),
                    given: bytes.len(),
                    needed: $size,
                })
            }

            /// Its bytes, as they lie in memory.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                zerocopy::IntoBytes::as_bytes(self)
            }
        }
    };
}

/// Numbers of which a word holds one.
macro_rules! codes {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident: $word:ident, $c:literal {
            $($(#[doc = $code_doc:literal])* $variant:ident $code:literal = $value:literal,)*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($word)]
        pub enum $name {
            $($(#[doc = $code_doc])* $variant = $value,)*
        }

        impl $name {
            /// All that there are.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            pub(crate) const CONSTANTS: $crate::layout::Constants = $crate::layout::Constants {
                doc: &[$($doc),*],
                list: &[$($crate::layout::Constant {
                    name: concat!($c, "_", $code),
                    value: $value,
                    bits: $word::BITS,
                    doc: &[$($code_doc),*],
                }),*],
            };

            /// As it stands in memory.
            #[must_use]
            pub const fn word(self) -> $word {
                self as $word
            }

            /// What the word says; `None` if it means nothing.
            #[must_use]
            pub const fn from_word(word: $word) -> Option<$name> {
                match word {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

/// Bits of which a word of 32 holds any.
macro_rules! flags {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident, $c:literal {
            $($(#[doc = $flag_doc:literal])* $flag:ident = $value:literal,)*
        }
    ) => {
        bitflags::bitflags! {
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $name: u32 {
                $($(#[doc = $flag_doc])* const $flag = $value;)*
            }
        }

        impl $name {
            pub(crate) const CONSTANTS: $crate::layout::Constants = $crate::layout::Constants {
                doc: &[$($doc),*],
                list: &[$($crate::layout::Constant {
                    name: concat!($c, "_", stringify!($flag)),
                    value: $value,
                    bits: u32::BITS,
                    doc: &[$($flag_doc),*],
                }),*],
            };
        }
    };
}

/// Other numbers.
macro_rules! constants {
    (
        $doc:literal
        $($(#[doc = $constant_doc:literal])+ pub const $name:ident: $type:ty = $value:expr, $c:literal;)*
    ) => {
        $($(#[doc = $constant_doc])* pub const $name: $type = $value;)*

        pub(crate) const CONSTANTS: $crate::layout::Constants = $crate::layout::Constants {
            doc: &[$doc],
            list: &[$($crate::layout::Constant {
                name: $c,
                value: $name as u64,
                bits: u32::BITS,
                doc: &[$($constant_doc),*],
            }),*],
        };
    };
}
