//! Layouts that Rust and device code share, each written once.
//!
//! **Invariant:** a Rust item and its C++ text come from the same tokens, and each compiler checks the layout by
//! itself. Rust refuses a struct with implicit padding (every offset is the sum of the sizes before it) or of another
//! size than declared. The C++ text repeats the offsets that Rust computed as `static_assert`s. So a layout on which
//! the two sides differ does not compile on one of them.
//!
//! The text includes no header, names no alias, and NVRTC takes it as it is.
//!
//! ```
//! mkernel_core::abi_struct! {
//!     /// A count and where it is read.
//!     pub struct Cell: size 16 {
//!         /// Byte offset in its region.
//!         pub offset: u64,
//!         /// Threshold.
//!         pub wanted: u32,
//!         /// Zero.
//!         pub reserved: [u8; 4],
//!     }
//! }
//! assert!(Cell::cpp().contains("static_assert(MKERNEL_OFFSETOF(Cell, wanted) == 8"));
//! ```
//!
//! Implicit padding is refused:
//! ```compile_fail
//! mkernel_core::abi_struct! {
//!     /// Four bytes lie unnamed between the fields.
//!     pub struct Padded: size 16 {
//!         /// Small.
//!         pub small: u32,
//!         /// Large.
//!         pub large: u64,
//!     }
//! }
//! ```
//!
//! So is a wrong size:
//! ```compile_fail
//! mkernel_core::abi_struct! {
//!     /// Is 4 bytes.
//!     pub struct Sized: size 8 {
//!         /// Small.
//!         pub small: u32,
//!     }
//! }
//! ```

use std::fmt::Write;

/// Opens the C++ text: how an offset is taken, and the sizes that every field type relies on.
///
/// NVRTC 13.0 knows no `__builtin_offsetof` and brings no `<cstddef>`; `__INTADDR__` is its front end's own operator.
pub const PRELUDE: &str = "\
#ifdef __CUDACC_RTC__
#define MKERNEL_OFFSETOF(type, member) __INTADDR__(&(((type*)0)->member))
#else
#define MKERNEL_OFFSETOF(type, member) __builtin_offsetof(type, member)
#endif
static_assert(sizeof(unsigned char) == 1 && sizeof(unsigned short) == 2 && sizeof(unsigned int) == 4, \"integers\");
static_assert(sizeof(int) == 4 && sizeof(unsigned long long) == 8 && sizeof(float) == 4, \"numbers\");
";

/// The C++ text of `items`, in order: a nested struct comes before the struct that holds it.
pub fn text(items: &[fn() -> String]) -> String {
    let mut text = PRELUDE.to_owned();
    for item in items {
        text.push('\n');
        text.push_str(&item());
    }
    text
}

/// A type that may be a field of an ABI struct: any bit pattern is a value, and C++ has the same type.
///
/// An ABI enum is none, since not every u32 is one: a struct holds the u32, and the reader converts it.
pub trait AbiType: Copy {
    /// The C++ type of the innermost element.
    const ELEMENT: &'static str;

    /// What follows a field's name in C++: the extents of an array, outermost first.
    fn extents() -> String {
        String::new()
    }
}

macro_rules! primitives {
    ($($rust:ty => $cpp:literal),* $(,)?) => {
        $(impl AbiType for $rust {
            const ELEMENT: &'static str = $cpp;
        })*
    };
}

primitives! {
    u8 => "unsigned char",
    u16 => "unsigned short",
    u32 => "unsigned int",
    u64 => "unsigned long long",
    i32 => "int",
    f32 => "float",
}

impl<T: AbiType, const N: usize> AbiType for [T; N] {
    const ELEMENT: &'static str = T::ELEMENT;

    fn extents() -> String {
        const { assert!(N > 0, "C++ has no empty arrays") };
        format!("[{N}]{}", T::extents())
    }
}

/// A field of an ABI struct as Rust laid it out.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in both languages.
    pub name: &'static str,
    /// Its documentation, line by line.
    pub docs: &'static [&'static str],
    /// The C++ type of its innermost element.
    pub element: &'static str,
    /// The extents that follow its name in C++.
    pub extents: fn() -> String,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Bytes it takes.
    pub size: usize,
}

/// Holds the layout of a struct to its declaration; [`abi_struct!`](crate::abi_struct) calls it at compile time.
///
/// # Panics
/// If there is implicit padding, or if the size is not the declared one.
pub const fn check_layout(fields: &[Field], size: usize, declared: usize) {
    let mut end = 0;
    let mut index = 0;
    while index < fields.len() {
        assert!(fields[index].offset == end, "implicit padding before a field: name it");
        end += fields[index].size;
        index += 1;
    }
    assert!(size == end, "implicit padding after the last field: name it");
    assert!(size == declared, "the size differs from the declared one");
}

/// The C++ text of a struct; [`abi_struct!`](crate::abi_struct) calls it.
pub fn struct_text(name: &str, docs: &[&str], fields: &[Field], size: usize, align: usize) -> String {
    let mut text = comment("", docs);
    line(&mut text, format_args!("struct {name} {{"));
    for field in fields {
        text.push_str(&comment("  ", field.docs));
        line(&mut text, format_args!("  {} {}{};", field.element, field.name, (field.extents)()));
    }
    line(&mut text, format_args!("}};"));
    line(&mut text, format_args!("static_assert(sizeof({name}) == {size}, \"size of {name}\");"));
    line(&mut text, format_args!("static_assert(alignof({name}) == {align}, \"alignment of {name}\");"));
    for Field { name: field, offset, .. } in fields {
        let offset_of = format!("MKERNEL_OFFSETOF({name}, {field})");
        line(&mut text, format_args!("static_assert({offset_of} == {offset}, \"offset of {name}::{field}\");"));
    }
    text
}

/// A named u32 of an ABI enum or constant group.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name in both languages.
    pub name: &'static str,
    /// Its documentation, line by line.
    pub docs: &'static [&'static str],
    /// Its value in both languages.
    pub value: u32,
}

/// The C++ text of an enum; [`abi_enum!`](crate::abi_enum) calls it.
pub fn enum_text(name: &str, docs: &[&str], constants: &[Constant]) -> String {
    let mut text = comment("", docs);
    line(&mut text, format_args!("enum class {name} : unsigned int {{"));
    for Constant { name, docs, value } in constants {
        text.push_str(&comment("  ", docs));
        line(&mut text, format_args!("  {name} = {value}u,"));
    }
    line(&mut text, format_args!("}};"));
    text
}

/// The C++ text of a constant group; [`abi_const!`](crate::abi_const) calls it.
pub fn const_text(name: &str, docs: &[&str], constants: &[Constant]) -> String {
    let mut text = comment("", docs);
    line(&mut text, format_args!("struct {name} {{"));
    for Constant { name, docs, value } in constants {
        text.push_str(&comment("  ", docs));
        line(&mut text, format_args!("  static constexpr unsigned int {name} = {value}u;"));
    }
    line(&mut text, format_args!("}};"));
    text
}

fn comment(indent: &str, docs: &[&str]) -> String {
    // A backslash at the end of a `//` comment would swallow the line after it.
    docs.iter().map(|doc| format!("{indent}//{}\n", doc.trim_end_matches('\\'))).collect()
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a String takes any text");
}

/// Defines a struct for Rust and C++ at once: `#[repr(C)]`, its layout asserted, and `cpp()` for its C++ text.
///
/// The declared size is in bytes. Fields are [`AbiType`](crate::abi::AbiType)s; padding is named.
#[macro_export]
macro_rules! abi_struct {
    (
        $(#[doc = $doc:literal])+
        $vis:vis struct $name:ident: size $size:literal {
            $($(#[doc = $field_doc:literal])+ $field_vis:vis $field:ident: $ty:ty),+ $(,)?
        }
    ) => {
        $(#[doc = $doc])+
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Default)]
        $vis struct $name {
            $($(#[doc = $field_doc])+ $field_vis $field: $ty),+
        }

        impl $name {
            const ABI_FIELDS: &'static [$crate::abi::Field] = &[$($crate::abi::Field {
                name: stringify!($field),
                docs: &[$($field_doc),+],
                element: <$ty as $crate::abi::AbiType>::ELEMENT,
                extents: <$ty as $crate::abi::AbiType>::extents,
                offset: ::core::mem::offset_of!($name, $field),
                size: ::core::mem::size_of::<$ty>(),
            }),+];

            /// The same struct as C++ text, with its layout asserted.
            $vis fn cpp() -> String {
                let (size, align) = (::core::mem::size_of::<$name>(), ::core::mem::align_of::<$name>());
                $crate::abi::struct_text(stringify!($name), &[$($doc),+], Self::ABI_FIELDS, size, align)
            }
        }

        impl $crate::abi::AbiType for $name {
            const ELEMENT: &'static str = stringify!($name);
        }

        const _: () = $crate::abi::check_layout($name::ABI_FIELDS, ::core::mem::size_of::<$name>(), $size);
    };
}

/// Defines a u32 enum for Rust and C++ at once, with `from_abi` to read it and `cpp()` for its C++ text.
#[macro_export]
macro_rules! abi_enum {
    (
        $(#[doc = $doc:literal])+
        $vis:vis enum $name:ident {
            $($(#[doc = $variant_doc:literal])+ $variant:ident = $value:literal),+ $(,)?
        }
    ) => {
        $(#[doc = $doc])+
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[doc = $variant_doc])+ $variant = $value),+
        }

        impl $name {
            /// The variant that the other side wrote, if it is one.
            $vis const fn from_abi(value: u32) -> Option<$name> {
                match value {
                    $($value => Some($name::$variant),)+
                    _ => None,
                }
            }

            /// The same enum as C++ text.
            $vis fn cpp() -> String {
                let constants = [$($crate::abi::Constant {
                    name: stringify!($variant),
                    docs: &[$($variant_doc),+],
                    value: $value,
                }),+];
                $crate::abi::enum_text(stringify!($name), &[$($doc),+], &constants)
            }
        }
    };
}

/// Defines a group of u32 constants for Rust and C++ at once: `Group::NAME` in both, and `cpp()` for the C++ text.
#[macro_export]
macro_rules! abi_const {
    (
        $(#[doc = $doc:literal])+
        $vis:vis struct $name:ident {
            $($(#[doc = $constant_doc:literal])+ $constant:ident = $value:expr),+ $(,)?
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug)]
        $vis struct $name;

        impl $name {
            $($(#[doc = $constant_doc])+ $vis const $constant: u32 = $value;)+

            /// The same constants as C++ text.
            $vis fn cpp() -> String {
                let constants = [$($crate::abi::Constant {
                    name: stringify!($constant),
                    docs: &[$($constant_doc),+],
                    value: $name::$constant,
                }),+];
                $crate::abi::const_text(stringify!($name), &[$($doc),+], &constants)
            }
        }
    };
}
