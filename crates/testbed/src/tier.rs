//! How much tests do.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// How much tests do, as `FULMEN_TEST_TIER` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// What every change is tested with, in minutes: if nothing is said.
    Fast,
    /// `full`: more cases, and more rounds of what is random or kills; what continuous integration has the time for.
    Full,
    /// `soak`: every case, and as many rounds as find what is rare, in half an hour and more.
    Soak,
}

impl Tier {
    /// This run's.
    ///
    /// # Panics
    /// If the variable has another value: whoever set it would get less than was asked for.
    #[must_use]
    pub fn now() -> Tier {
        match std::env::var_os("FULMEN_TEST_TIER") {
            None => Tier::Fast,
            Some(tier) => Tier::of(tier.to_str()).unwrap_or_else(|| {
                panic!("FULMEN_TEST_TIER is {tier:?}; it may be fast, full or soak");
            }),
        }
    }

    /// This run's, for who does more in the full tier. Where `FULMEN_TEST_TIERED` names a file, a line tells it who that is, so that the full
    /// tier can be run of those tests alone: the test program's name and the test's, with a space between, or the program's alone if it
    /// is not known which test it was.
    fn asked() -> Tier {
        if let Some(file) = std::env::var_os("FULMEN_TEST_TIERED") {
            note(Path::new(&file), test().as_deref());
        }
        Tier::now()
    }

    fn of(name: Option<&str>) -> Option<Tier> {
        match name? {
            "" | "fast" => Some(Tier::Fast),
            "full" => Some(Tier::Full),
            "soak" => Some(Tier::Soak),
            _ => None,
        }
    }
}

/// A variable for a program that this test starts: it asks what the tier has for this test.
#[cfg(target_os = "linux")]
pub(crate) fn child_of_this_test() -> (&'static str, String) {
    (CHILD_OF, test().unwrap_or_default())
}

const CHILD_OF: &str = "FULMEN_TEST_CHILD_OF";

/// The test that this thread runs, if it is known: the harness names threads after their tests.
fn test() -> Option<String> {
    if let Ok(test) = std::env::var(CHILD_OF) {
        return Some(test).filter(|test| !test.is_empty());
    }
    // A program that a test has started as one of its program's tests, and without a word, tells nothing of that test.
    let is_child = std::env::args().any(|argument| argument == "--exact");
    let thread = std::thread::current();
    thread.name().filter(|name| *name != "main" && !is_child).map(str::to_owned)
}

/// Writes down who asks.
fn note(file: &Path, test: Option<&str>) {
    let program = std::env::current_exe().expect("this program has a file");
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let line = match test {
        Some(test) => format!("{program} {test}\n"),
        None => format!("{program}\n"),
    };
    let mut file = OpenOptions::new().append(true).create(true).open(file).expect("FULMEN_TEST_TIERED names a file");
    file.write_all(line.as_bytes()).expect("a line can be added to the file of FULMEN_TEST_TIERED");
}

/// Whether cases run that the fast tier has no time for.
#[must_use]
pub fn is_full() -> bool {
    Tier::asked() >= Tier::Full
}

/// What the tier has of something, such as rounds.
#[must_use]
pub fn by_tier<T>(fast: T, full: T, soak: T) -> T {
    match Tier::asked() {
        Tier::Fast => fast,
        Tier::Full => full,
        Tier::Soak => soak,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiered");
        note(&file, Some("some::test"));
        note(&file, None);
        let told = std::fs::read_to_string(&file).unwrap();
        assert_eq!(told, "fulmen_testbed some::test\nfulmen_testbed\n");

        // This very test may be the child of one that runs it by itself.
        if std::env::var_os(CHILD_OF).is_none() && !std::env::args().any(|argument| argument == "--exact") {
            assert_eq!(test().as_deref(), Some("tier::tests::whoever_asks_is_known"));
            std::thread::scope(|scope| assert_eq!(scope.spawn(test).join().unwrap(), None));
        }
    }

    #[test]
    fn tiers_have_names() {
        let known = ["", "fast", "full", "soak"].map(|name| Tier::of(Some(name)).unwrap());
        assert_eq!(known, [Tier::Fast, Tier::Fast, Tier::Full, Tier::Soak]);
        assert!(known.is_sorted());
        assert_eq!([Some("Full"), Some("fuller"), None].map(Tier::of), [None; 3]);
    }
}
