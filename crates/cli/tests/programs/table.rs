//! Running the cases, and the table of what came out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use fulmen_testbed::Tier;
use libtest_mimic::{Arguments, Trial};

use crate::case::{Case, Program};

/// Passed and failed cases by program.
type Counts = Arc<Mutex<BTreeMap<Program, [u32; 2]>>>;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verbs.md");

/// Runs the cases of this tier whose programs are installed.
pub fn run(arguments: &Arguments, cases: Vec<Case>) -> ExitCode {
    let programs: BTreeSet<Program> = cases.iter().map(|case| case.program).collect();
    let missing: BTreeSet<Program> = programs.iter().copied().filter(|program| !program.is_installed()).collect();
    if !arguments.list {
        for Program { name, package } in &missing {
            println!("SKIPPED: {name}: it is not installed (apt-get install {package})");
        }
    }
    let counts = Counts::default();
    let tier = fulmen_testbed::by_tier(Tier::Fast, Tier::Full, Tier::Soak);
    let mut trials: Vec<Trial> = cases
        .into_iter()
        .filter(|case| case.tier <= tier || arguments.include_ignored)
        .filter(|case| !missing.contains(&case.program))
        .map(|case| trial(case, &counts))
        .collect();
    trials.push(Trial::test("the table in docs/verbs.md names these programs", move || Ok(compare(&programs)?)));
    let conclusion = libtest_mimic::run(arguments, trials);
    if let Some(path) = std::env::var_os("FULMEN_TEST_TABLE") {
        fs::write(&path, render(&counts)).expect("the table can be written");
    }
    conclusion.exit_code()
}

fn trial(case: Case, counts: &Counts) -> Trial {
    let counts = counts.clone();
    Trial::test(case.name(), move || {
        let outcome = (case.run)();
        let mut counts = counts.lock().expect("no test panics while it counts");
        counts.entry(case.program).or_default()[usize::from(outcome.is_err())] += 1;
        Ok(outcome?)
    })
}

fn render(counts: &Counts) -> String {
    let mut text = String::from("| program | package | version | cases passed | failed |\n|---|---|---|--:|--:|\n");
    for (program, [passed, failed]) in counts.lock().expect("no test panics while it counts").iter() {
        let Program { name, package } = program;
        let _ = writeln!(text, "| `{name}` | {package} | {} | {passed} | {failed} |", program.version());
    }
    text
}

/// Compares the programs of the documented table with those of the cases.
fn compare(programs: &BTreeSet<Program>) -> Result<(), String> {
    let page = fs::read_to_string(Path::new(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let rows = page.lines().skip_while(|line| !line.starts_with("| program | package | version |")).skip(2);
    let named: BTreeSet<&str> =
        rows.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('`').nth(1)).collect();
    let tested: BTreeSet<&str> = programs.iter().map(|program| program.name).collect();
    if named == tested { Ok(()) } else { Err(format!("the table names {named:?}, the tests run {tested:?}")) }
}
