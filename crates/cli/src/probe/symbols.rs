//! `symbols`: which calls the machine's verbs library has.

use fulmen::parts::system::Library;

use super::answer::{Answer, Symbol};
use super::worker::{Done, Voice};

/// Looks for every call that Fulmen knows.
pub fn symbols(voice: &Voice) -> anyhow::Result<Done> {
    voice.at("opening the verbs library");
    let library = Library::open()?;
    let symbols = library.symbols().into_iter().map(|symbol| Symbol {
        name: symbol.name.to_string(),
        needed: symbol.needed,
        present: symbol.present,
        purpose: symbol.purpose.to_string(),
    });
    Ok(Done { answer: Some(Answer::Symbols(symbols.collect())), wrong: Vec::new() })
}
