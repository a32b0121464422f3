//! Looking things up in an environment.

use std::ffi::OsString;

use super::LaunchError;

/// The variables of a process, or of a test.
pub(super) struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<OsString>);

/// A variable that is set, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set<T> {
    pub name: &'static str,
    pub value: T,
}

impl Environment<'_> {
    /// What the system says, even if it is empty.
    pub fn raw(&self, name: &str) -> Option<OsString> {
        (self.0)(name)
    }

    /// Whether a variable is set to something. A launcher's variable that is empty counts as not set.
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some_and(|value| !value.is_empty())
    }

    /// The value of a variable; `None` if it is not set or empty.
    pub fn text(&self, name: &'static str) -> Result<Option<String>, LaunchError> {
        match self.raw(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => parse(name, &value, "text", |text| Some(text.trim().to_owned())).map(Some),
        }
    }

    /// The first of these variables that is set: newer and older names of the same thing.
    pub fn first(&self, names: &[&'static str]) -> Result<Option<Set<String>>, LaunchError> {
        for &name in names {
            if let Some(value) = self.text(name)? {
                return Ok(Some(Set { name, value }));
            }
        }
        Ok(None)
    }

    /// The first of these variables that is set, which must be a number.
    pub fn number(&self, names: &[&'static str]) -> Result<Option<Set<u32>>, LaunchError> {
        let Some(Set { name, value }) = self.first(names)? else { return Ok(None) };
        let value = parse(name, &value.into(), "a number from 0", number)?;
        Ok(Some(Set { name, value }))
    }
}

/// Reads a value, or says what it must be.
pub(super) fn parse<T>(
    name: &'static str,
    value: &OsString,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, LaunchError> {
    let malformed =
        || LaunchError::Malformed { name, value: value.to_string_lossy().escape_debug().collect(), expected };
    value.to_str().and_then(read).ok_or_else(malformed)
}

/// Digits alone: `u32`'s own parser would take a sign.
pub(super) fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}
