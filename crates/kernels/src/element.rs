//! The Rust types that buffers hold.

use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::DType;

/// A complex number of two binary32.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Complex64 {
    /// The real part.
    pub re: f32,
    /// The imaginary part.
    pub im: f32,
}

impl Complex64 {
    /// `re + im·i`.
    pub const fn new(re: f32, im: f32) -> Self {
        Self { re, im }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type whose values buffers hold and collectives move.
///
/// # Safety
/// `Self` has the size that [`DType::size`] states and no padding; every bit pattern is a value of `Self`, except for
/// `bool`, whose bytes this crate normalises whenever they come from memory that others write. The trait is sealed.
pub unsafe trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The type's name on the wire.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        // SAFETY: the assertion below checks the size; all these types are free of padding, and all but `bool` accept
        // every bit pattern.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$type>() == DType::$dtype.size());
    )*};
}

elements! {
    bool => Bool,
    i8 => I8,
    i16 => I16,
    i32 => I32,
    i64 => I64,
    u8 => U8,
    u16 => U16,
    u32 => U32,
    u64 => U64,
    f16 => F16,
    bf16 => BF16,
    f32 => F32,
    f64 => F64,
    Complex64 => Complex64,
}

/// The bytes of `elements`, in the machine's own order.
pub fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an `Element` has no padding, so each of its bytes is initialised; the borrow lasts as long as the slice's.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
