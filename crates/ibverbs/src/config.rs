//! What the environment asks for, read once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

use fulmen_soft::Profile;
use fulmen_verbs::{FaultPlan, FaultSpecError};

/// What rules do that a program breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lint {
    /// The device alone says what it refuses.
    Off,
    /// A line in the log for each broken rule.
    Log,
    /// The call fails.
    Fail,
}

/// What becomes of a registration that crosses a 4 GiB boundary under the `thunderbolt` profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aliasing {
    /// Data lands exactly 4 GiB low, as on the hardware.
    Reproduce,
    /// The registration fails.
    Refuse,
}

/// The environment's wishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `FULMEN_VERBS_PROFILE`.
    pub profile: Profile,
    /// `FULMEN_VERBS_STRICT`: 3 queue pairs, 6 completion queues, 6 protection domains.
    pub strict: bool,
    /// `FULMEN_VERBS_DEVICES`: how many devices there are.
    pub devices: u8,
    /// `FULMEN_LINT`.
    pub lint: Lint,
    /// `FULMEN_LINT_REPORT`: a file to which a line is appended for each broken rule.
    pub lint_report: Option<PathBuf>,
    /// `FULMEN_VERBS_ALIASING`.
    pub aliasing: Aliasing,
    /// `FULMEN_FAULTS`, with `FULMEN_FAULTS_SEED`.
    pub faults: Option<FaultPlan>,
    /// `FULMEN_LOG`.
    pub log: String,
    /// Not `FULMEN_VERBS_NO_VM`: peers' memory may be reached through `process_vm_readv` and `process_vm_writev`.
    pub process_vm: bool,
}

/// A variable that says what nobody understands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value}: {problem}")]
pub struct ConfigError {
    /// The variable.
    pub variable: &'static str,
    /// What it says.
    pub value: String,
    /// What is wrong with that, and what would be right.
    pub problem: String,
}

/// Devices that one process can have.
pub const MOST_DEVICES: u8 = 8;

impl Config {
    /// Reads it out of variables.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one that cannot be understood.
    pub fn read(variable: impl Fn(&'static str) -> Option<OsString>) -> Result<Config, ConfigError> {
        let text = |name: &'static str| -> Result<Option<String>, ConfigError> {
            match variable(name).filter(|value| !value.is_empty()).map(OsString::into_string) {
                None => Ok(None),
                Some(Ok(value)) => Ok(Some(value)),
                Some(Err(value)) => {
                    let value = value.to_string_lossy().into_owned();
                    Err(ConfigError { variable: name, value, problem: "is no UTF-8".to_owned() })
                }
            }
        };
        let flag = |name| choice(name, text(name)?, &[("0", false), ("1", true)], false);
        let profile = match text("FULMEN_VERBS_PROFILE")? {
            None => Profile::Infiniband,
            Some(value) => parse::<Profile>("FULMEN_VERBS_PROFILE", value, |error| error.to_string())?,
        };
        let thunderbolt = profile == Profile::Thunderbolt;
        let devices = match text("FULMEN_VERBS_DEVICES")? {
            None if thunderbolt => 3,
            None => 1,
            Some(value) => {
                let problem = format!("say a number from 1 to {MOST_DEVICES}");
                let count = parse::<u8>("FULMEN_VERBS_DEVICES", value.clone(), |_| problem.clone())?;
                if !(1..=MOST_DEVICES).contains(&count) {
                    return Err(ConfigError { variable: "FULMEN_VERBS_DEVICES", value, problem });
                }
                count
            }
        };
        let strict = flag("FULMEN_VERBS_STRICT")?;
        if strict && !thunderbolt {
            let problem = "only the thunderbolt profile has a strict variant".to_owned();
            return Err(ConfigError { variable: "FULMEN_VERBS_STRICT", value: "1".to_owned(), problem });
        }
        let levels = [("off", Lint::Off), ("log", Lint::Log), ("fail", Lint::Fail)];
        let lint = if thunderbolt { Lint::Log } else { Lint::Off };
        let aliasing = [("reproduce", Aliasing::Reproduce), ("refuse", Aliasing::Refuse)];
        let seed = match text("FULMEN_FAULTS_SEED")? {
            None => 0,
            Some(value) => parse("FULMEN_FAULTS_SEED", value, |_: &std::num::ParseIntError| "say a number".to_owned())?,
        };
        let faults = match text("FULMEN_FAULTS")? {
            None => None,
            Some(value) => {
                Some(FaultPlan { seed, ..parse("FULMEN_FAULTS", value, |error: &FaultSpecError| error.to_string())? })
            }
        };
        Ok(Config {
            profile,
            strict,
            devices,
            lint: choice("FULMEN_LINT", text("FULMEN_LINT")?, &levels, lint)?,
            lint_report: variable("FULMEN_LINT_REPORT").filter(|path| !path.is_empty()).map(PathBuf::from),
            aliasing: choice("FULMEN_VERBS_ALIASING", text("FULMEN_VERBS_ALIASING")?, &aliasing, Aliasing::Reproduce)?,
            faults,
            log: text("FULMEN_LOG")?.unwrap_or_else(|| "warn".to_owned()),
            process_vm: !flag("FULMEN_VERBS_NO_VM")?,
        })
    }

    /// What this process's environment asked for when it was first looked at.
    ///
    /// # Errors
    /// [`ConfigError`] for the first variable that cannot be understood.
    pub fn get() -> Result<&'static Config, &'static ConfigError> {
        static CONFIG: OnceLock<Result<Config, ConfigError>> = OnceLock::new();
        CONFIG.get_or_init(|| Config::read(std::env::var_os)).as_ref()
    }

    /// The name of device `index`, from 0.
    #[must_use]
    pub fn device_name(&self, index: u8) -> String {
        match self.profile {
            Profile::Infiniband => format!("fulmen_{index}"),
            // The first Thunderbolt port of a Mac is its third network interface.
            Profile::Thunderbolt => format!("rdma_en{}", index + 2),
        }
    }
}

fn parse<T: FromStr>(
    variable: &'static str,
    value: String,
    problem: impl FnOnce(&T::Err) -> String,
) -> Result<T, ConfigError> {
    value.parse().map_err(|error| ConfigError { variable, problem: problem(&error), value })
}

fn choice<T: Copy>(
    variable: &'static str,
    value: Option<String>,
    choices: &[(&str, T)],
    default: T,
) -> Result<T, ConfigError> {
    let Some(value) = value else { return Ok(default) };
    match choices.iter().find(|(name, _)| *name == value) {
        Some((_, choice)) => Ok(*choice),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            Err(ConfigError { variable, value, problem: format!("say {}", names.join(" or ")) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::read(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn profiles_have_defaults_of_their_own() {
        let config = read(&[]).unwrap();
        assert_eq!((config.profile, config.devices, config.lint), (Profile::Infiniband, 1, Lint::Off));
        assert!(config.process_vm && !config.strict);
        let config = read(&[("FULMEN_VERBS_PROFILE", "thunderbolt"), ("FULMEN_VERBS_STRICT", "1")]).unwrap();
        assert_eq!((config.devices, config.lint, config.strict), (3, Lint::Log, true));
        assert_eq!(config.device_name(1), "rdma_en3");
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (variable, value) in [
            ("FULMEN_VERBS_PROFILE", "roce"),
            ("FULMEN_VERBS_DEVICES", "0"),
            ("FULMEN_VERBS_DEVICES", "9"),
            ("FULMEN_VERBS_STRICT", "1"),
            ("FULMEN_VERBS_STRICT", "yes"),
            ("FULMEN_LINT", "on"),
            ("FULMEN_VERBS_ALIASING", "no"),
            ("FULMEN_FAULTS_SEED", "-1"),
            ("FULMEN_FAULTS", "rain@3"),
            ("FULMEN_VERBS_NO_VM", "2"),
        ] {
            let error = read(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
        }
    }
}
