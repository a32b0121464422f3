//! The C header.

use core::fmt;

use crate::layout::{ALIGNMENT, CONSTANTS, Constant, FieldLayout, RECORDS, StructLayout};

/// The C header, as text: what `include/fulmen_abi.h` has.
#[must_use]
pub fn header() -> Header {
    Header
}

/// Writes the C header wherever text goes; `to_string` gives all of it.
#[derive(Clone, Copy, Debug)]
pub struct Header;

const HEAD: &str = "\
/*
 * Fixed layouts that programs, GPUs and other languages share with Fulmen through registered memory.
 *
 * Generated from the definitions of the crate fulmen-abi (FULMEN_BLESS=1 cargo test -p fulmen-abi): change those.
 *
 * Words are little endian. Memory of zeros is a free record; what has no meaning is zero, or the record is refused. Store
 * a state with release after all that it speaks of, and load it with acquire before you read that: __atomic_store_n and
 * __atomic_load_n of GCC and Clang, atomic_ref of C++20, cuda::atomic_ref with thread_scope_system on a GPU. Where a
 * state is changed by compare-and-swap, nothing else will do. Copy a record before you check and believe it.
 */
#ifndef FULMEN_ABI_H
#define FULMEN_ABI_H

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error \"Fulmen's layouts are little endian\"
#endif

#ifdef __cplusplus
#define FULMEN_ASSERT(condition, message) static_assert(condition, message)
#define FULMEN_ALIGNAS(bytes) alignas(bytes)
#define FULMEN_ALIGNOF(type) alignof(type)
#else
#define FULMEN_ASSERT(condition, message) _Static_assert(condition, message)
#define FULMEN_ALIGNAS(bytes) _Alignas(bytes)
#define FULMEN_ALIGNOF(type) _Alignof(type)
#endif
";

const FOOT: &str = "
#undef FULMEN_ASSERT
#undef FULMEN_ALIGNAS
#undef FULMEN_ALIGNOF

#endif
";

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for constants in CONSTANTS {
            f.write_str("\n")?;
            comment(f, "", constants.doc)?;
            for constant in constants.list {
                define(f, constant)?;
            }
        }
        for record in RECORDS {
            f.write_str("\n")?;
            comment(f, "", record.doc)?;
            structure(f, record)?;
        }
        f.write_str(FOOT)
    }
}

fn define(f: &mut fmt::Formatter<'_>, constant: &Constant) -> fmt::Result {
    let Constant { name, value, bits, doc } = constant;
    comment(f, "", doc)?;
    // Magic numbers and the numbers of nodes are easier to read so.
    if *value > 0xff_ffff {
        writeln!(f, "#define {name} UINT{bits}_C({value:#x})")
    } else {
        writeln!(f, "#define {name} UINT{bits}_C({value})")
    }
}

fn structure(f: &mut fmt::Formatter<'_>, record: &StructLayout) -> fmt::Result {
    let StructLayout { c_name, size, fields, .. } = record;
    writeln!(f, "typedef struct {c_name} {{")?;
    for FieldLayout { name, c_type, count, offset, doc, .. } in *fields {
        comment(f, "    ", doc)?;
        // The first one's alignment is the record's.
        let align = if *offset == 0 { format_args!("FULMEN_ALIGNAS({ALIGNMENT}) ") } else { format_args!("") };
        match count {
            Some(count) => writeln!(f, "    {align}{c_type} {name}[{count}];")?,
            None => writeln!(f, "    {align}{c_type} {name};")?,
        }
    }
    writeln!(f, "}} {c_name};")?;
    writeln!(f, "FULMEN_ASSERT(sizeof({c_name}) == {size}, \"size of {c_name}\");")?;
    writeln!(f, "FULMEN_ASSERT(FULMEN_ALIGNOF({c_name}) == {ALIGNMENT}, \"alignment of {c_name}\");")?;
    for FieldLayout { name, offset, .. } in *fields {
        writeln!(f, "FULMEN_ASSERT(offsetof({c_name}, {name}) == {offset}, \"{c_name}.{name}\");")?;
    }
    Ok(())
}

/// Documentation, as it stands in the source: a space before each line.
fn comment(f: &mut fmt::Formatter<'_>, indent: &str, lines: &[&str]) -> fmt::Result {
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim_end();
        let line = line.strip_prefix(' ').unwrap_or(line);
        let (begin, space) = if index == 0 { ("/*", " ") } else { (" *", if line.is_empty() { "" } else { " " }) };
        write!(f, "{indent}{begin}{space}{line}")?;
        f.write_str(if index + 1 == lines.len() { " */\n" } else { "\n" })?;
    }
    Ok(())
}
