//! What a process is told: strings, one after the other.

use core::fmt;

use super::{NAME, TEXT_MAX};
use crate::error::{AbiError, Field};

const TEXT: Field = Field { of: NAME, name: "text" };

/// Strings, in their order.
#[derive(Clone, Copy)]
pub struct Strings<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    List(&'a [&'a str]),
    /// With a NUL behind each.
    Packed {
        text: &'a str,
        count: usize,
    },
}

/// A program with its arguments, variables and directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// The program, a path or a name that is looked for in PATH, and its arguments.
    pub args: Strings<'a>,
    /// Variables, as NAME=value, beside those of the agent. Of two with one name, the last one counts.
    pub env: Strings<'a>,
    /// Where it runs: an absolute path. The agent's own directory if there is none.
    pub cwd: Option<&'a str>,
}

/// How many strings of a text are what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextCounts {
    /// Arguments, the program included.
    pub args: u32,
    /// Variables.
    pub env: u32,
    /// Whether there is a directory.
    pub cwd: bool,
}

impl<'a> Strings<'a> {
    /// None.
    pub const EMPTY: Strings<'static> = Strings(Form::List(&[]));

    /// These.
    #[must_use]
    pub const fn new(list: &'a [&'a str]) -> Strings<'a> {
        Strings(Form::List(list))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Form::List(list) => list.len(),
            Form::Packed { count, .. } => count,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (list, text) = match self.0 {
            Form::List(list) => (list, ""),
            Form::Packed { text, .. } => (&[][..], text),
        };
        list.iter().copied().chain(text.split_terminator('\0'))
    }
}

impl PartialEq for Strings<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Strings<'_> {}

impl fmt::Debug for Strings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Command<'a> {
    /// How many strings are what.
    ///
    /// # Errors
    /// [`AbiError::TooLarge`] if there are more than a text can have.
    pub fn counts(&self) -> Result<TextCounts, AbiError> {
        let count = |strings: &Strings<'_>| {
            // Each has a NUL at least.
            let count = strings.len();
            if count <= TEXT_MAX { Ok(count as u32) } else { Err(too_large(count, TEXT_MAX)) }
        };
        Ok(TextCounts { args: count(&self.args)?, env: count(&self.env)?, cwd: self.cwd.is_some() })
    }

    /// Bytes of its text.
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.strings().fold(0, |sum, string| sum.saturating_add(string.len()).saturating_add(1))
    }

    /// Writes the text to the beginning of `out`: how many bytes it has.
    ///
    /// # Errors
    /// [`AbiError::TooLarge`] if it does not fit into `out`, or has more than [`TEXT_MAX`] bytes; and whatever
    /// [`Command::parse`] would refuse.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, AbiError> {
        let (len, max) = (self.text_len(), out.len().min(TEXT_MAX));
        if len > max {
            return Err(too_large(len, max));
        }
        if self.strings().any(|string| string.contains('\0')) {
            return Err(AbiError::Nul { field: TEXT });
        }
        self.check()?;
        let mut at = 0;
        for string in self.strings() {
            let end = at + string.len();
            out[at..end].copy_from_slice(string.as_bytes());
            out[end] = 0;
            at = end + 1;
        }
        Ok(at)
    }

    /// The command that a text says.
    ///
    /// # Errors
    /// [`AbiError::NotUtf8`], [`AbiError::Unterminated`], [`AbiError::TooLarge`] beyond [`TEXT_MAX`],
    /// [`AbiError::Count`] if it has other strings than the counts say, [`AbiError::Missing`] without a program,
    /// [`AbiError::Malformed`] for a variable without a name and a directory that is no absolute path.
    pub fn parse(text: &'a [u8], counts: TextCounts) -> Result<Command<'a>, AbiError> {
        if text.len() > TEXT_MAX {
            return Err(too_large(text.len(), TEXT_MAX));
        }
        let text = str::from_utf8(text).map_err(|error| AbiError::NotUtf8 { field: TEXT, at: error.valid_up_to() })?;
        if !text.is_empty() && !text.ends_with('\0') {
            return Err(AbiError::Unterminated { field: TEXT });
        }
        let counted = u64::from(counts.args) + u64::from(counts.env) + u64::from(counts.cwd);
        let found = text.bytes().filter(|byte| *byte == 0).count() as u64;
        if found != counted {
            return Err(AbiError::Count { field: TEXT, found, counted });
        }
        let (args, rest) = take(text, counts.args as usize);
        let (env, rest) = take(rest, counts.env as usize);
        let command = Command { args, env, cwd: rest.strip_suffix('\0') };
        command.check()?;
        Ok(command)
    }

    /// All strings, in the text's order.
    fn strings(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.args.iter().chain(self.env.iter()).chain(self.cwd)
    }

    fn check(&self) -> Result<(), AbiError> {
        if self.args.iter().next().is_none_or(str::is_empty) {
            return Err(AbiError::Missing { field: Field { of: NAME, name: "text (the program)" } });
        }
        if !self.env.iter().all(|variable| variable.find('=').is_some_and(|at| at > 0)) {
            return Err(AbiError::Malformed { field: TEXT, why: "a variable must be NAME=value" });
        }
        if !self.cwd.is_none_or(|path| path.starts_with('/')) {
            return Err(AbiError::Malformed { field: TEXT, why: "the directory must be an absolute path" });
        }
        Ok(())
    }
}

/// Without the values of variables, which may be secrets.
impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("args", &self.args)
            .field("env", &format_args!("{} variables", self.env.len()))
            .field("cwd", &self.cwd)
            .finish()
    }
}

/// The first `count` strings of a text that has as many, and what follows them.
fn take(text: &str, count: usize) -> (Strings<'_>, &str) {
    let end = match count {
        0 => 0,
        _ => text.match_indices('\0').nth(count - 1).map_or(text.len(), |(at, _)| at + 1),
    };
    let (text, rest) = text.split_at(end);
    (Strings(Form::Packed { text, count }), rest)
}

fn too_large(value: usize, max: usize) -> AbiError {
    AbiError::TooLarge { field: TEXT, value: value as u64, max: max as u64 }
}
