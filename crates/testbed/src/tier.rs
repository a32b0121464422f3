//! How much tests do.

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

    fn of(name: Option<&str>) -> Option<Tier> {
        match name? {
            "" | "fast" => Some(Tier::Fast),
            "full" => Some(Tier::Full),
            "soak" => Some(Tier::Soak),
            _ => None,
        }
    }
}

/// Whether cases run that the fast tier has no time for.
#[must_use]
pub fn is_full() -> bool {
    Tier::now() >= Tier::Full
}

/// What the tier has of something, such as rounds.
#[must_use]
pub fn by_tier<T>(fast: T, full: T, soak: T) -> T {
    match Tier::now() {
        Tier::Fast => fast,
        Tier::Full => full,
        Tier::Soak => soak,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_have_names() {
        let known = ["", "fast", "full", "soak"].map(|name| Tier::of(Some(name)).unwrap());
        assert_eq!(known, [Tier::Fast, Tier::Fast, Tier::Full, Tier::Soak]);
        assert!(known.is_sorted());
        assert_eq!([Some("Full"), Some("fuller"), None].map(Tier::of), [None; 3]);
    }
}
