//! The variables with which a program opens Fulmen's library instead of the system's, and which set up the device.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::folder::NAMES;
use super::{Options, lint};
use crate::run::Profile;

/// Where the dynamic linker looks first, and what it loads before the program's own libraries.
const SEARCH: &str = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
const PRELOAD: &str = if cfg!(target_os = "macos") { "DYLD_INSERT_LIBRARIES" } else { "LD_PRELOAD" };

/// How the device is to be.
pub struct Settings<'a> {
    /// Whose limits and rules it follows, if that was said.
    pub profile: Option<Profile>,
    /// The rest of the command line.
    pub options: &'a Options,
    /// Where broken rules are written.
    pub report: Option<&'a Path>,
}

impl Settings<'_> {
    /// The variables for a folder of links, given those that are there. What the command line leaves open is not set.
    pub fn variables(
        &self,
        folder: &Path,
        inherited: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        let Options { strict, devices, lint, faults, seed } = self.options;
        // Loaded before all others, the library also answers for the files that some programs look for before they load it.
        let library = folder.join(NAMES[0]);
        let mut variables = vec![
            (SEARCH, first(folder.as_os_str(), inherited(SEARCH))),
            (PRELOAD, first(library.as_os_str(), inherited(PRELOAD))),
        ];
        let mut set = |name, value: Option<OsString>| variables.extend(value.map(|value| (name, value)));
        set("FULMEN_VERBS_PROFILE", self.profile.map(|profile| profile.name().into()));
        set("FULMEN_VERBS_STRICT", strict.then(|| "1".into()));
        set("FULMEN_VERBS_DEVICES", devices.map(|count| count.to_string().into()));
        set("FULMEN_LINT", lint.map(|lint| lint.name().into()));
        set(lint::REPORT, self.report.map(|path| path.as_os_str().to_owned()));
        set("FULMEN_FAULTS", faults.as_ref().map(OsString::from));
        set("FULMEN_FAULTS_SEED", seed.map(|seed| seed.to_string().into()));
        variables
    }
}

/// An entry in front of a list, and only there: setting the environment twice changes nothing.
fn first(entry: &OsStr, list: Option<OsString>) -> OsString {
    let list = list.unwrap_or_default();
    let others = list.as_bytes().split(|byte| *byte == b':').filter(|other| !other.is_empty());
    let all = std::iter::once(entry.as_bytes()).chain(others.filter(|other| *other != entry.as_bytes()));
    OsString::from_vec(all.collect::<Vec<_>>().join(&b':'))
}

/// A shell command that sets a variable to any value.
pub fn export(name: &str, value: &OsStr) -> String {
    let value = value.to_string_lossy();
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-:,=@%+".contains(character);
    match !value.is_empty() && value.chars().all(plain) {
        true => format!("export {name}={value}\n"),
        false => format!("export {name}='{}'\n", value.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Lint;
    use super::*;

    fn settings(profile: Option<Profile>, options: &Options, report: Option<&Path>) -> Vec<(&'static str, OsString)> {
        Settings { profile, options, report }.variables(Path::new("/run/x"), |_| None)
    }

    #[test]
    fn what_was_not_said_is_not_set() {
        let names: Vec<&str> = settings(None, &Options::default(), None).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [SEARCH, PRELOAD]);
    }

    #[test]
    fn what_was_said_is_set() {
        let options = Options {
            strict: true,
            devices: Some(2),
            lint: Some(Lint::Fail),
            faults: Some("drop@1/100".into()),
            seed: Some(7),
        };
        let variables = settings(Some(Profile::Thunderbolt), &options, Some(Path::new("/run/x/lint")));
        for (name, value) in [
            ("FULMEN_VERBS_PROFILE", "thunderbolt"),
            ("FULMEN_VERBS_STRICT", "1"),
            ("FULMEN_VERBS_DEVICES", "2"),
            ("FULMEN_LINT", "fail"),
            ("FULMEN_LINT_REPORT", "/run/x/lint"),
            ("FULMEN_FAULTS", "drop@1/100"),
            ("FULMEN_FAULTS_SEED", "7"),
        ] {
            assert!(variables.contains(&(name, value.into())), "{name}={value} in {variables:?}");
        }
    }

    #[test]
    fn the_users_own_entries_stay_behind_ours() {
        let theirs = |name: &str| (name == SEARCH).then(|| OsString::from("/a:/run/x:/b"));
        let variables = Settings { profile: None, options: &Options::default(), report: None }
            .variables(Path::new("/run/x"), theirs);
        assert_eq!(variables[0], (SEARCH, "/run/x:/a:/b".into()));
    }

    #[test]
    fn a_shell_reads_back_what_was_exported() {
        for value in ["plain", "", "two words", "it's", "a;b `c` $d \"e\"", "new\nline"] {
            let script = format!("{}printf %s \"$NAME\"", export("NAME", OsStr::new(value)));
            let out = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&out.stdout), value);
        }
    }
}
