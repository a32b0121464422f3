//! What ranks tell one another when a fabric starts, and whether it fits together.

use serde::{Deserialize, Serialize};

use crate::StartError;
use crate::options::Flow;

/// The version of everything that ranks share: this message, control regions, frames.
const VERSION: u16 = 7;

/// What a rank says about itself. The version comes first, as two bytes whose place never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The release that the rank was built from.
    pub build: String,
    pub settings: Settings,
    pub reach: Option<ReachHello>,
}

/// What must be the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub windows: bool,
    /// Whether links run over devices.
    pub devices: bool,
    /// Whether what goes by TCP is sealed; none where nothing does.
    pub sealed: Option<bool>,
    pub profile: Option<String>,
    pub flow: Flow,
    pub verify_data: bool,
}

/// Where the rank's memory is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReachHello {
    /// The bytes of its node's address.
    pub node: Vec<u8>,
    /// The key of its control region.
    pub control: u64,
    /// The key of its pool.
    pub pool: u64,
}

impl Hello {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let bytes = VERSION.to_le_bytes().to_vec();
        postcard::to_extend(self, bytes).expect("a vector takes what is written to it")
    }

    fn from_bytes(rank: u32, bytes: &[u8]) -> Result<Hello, StartError> {
        let Some((version, rest)) = bytes.split_first_chunk() else { return Err(StartError::Garbled { rank }) };
        let theirs = u16::from_le_bytes(*version);
        if theirs != VERSION {
            return Err(StartError::Version { rank, theirs, ours: VERSION });
        }
        postcard::from_bytes(rest).map_err(|_| StartError::Garbled { rank })
    }
}

/// Reads what all ranks said and checks that it is the same where it must be. All ranks see the same blobs and so come to
/// the same verdict; each is told in comparison with rank 0.
pub(crate) fn agree(blobs: &[Vec<u8>]) -> Result<Vec<Hello>, StartError> {
    let hellos = (0..).zip(blobs).map(|(rank, blob)| Hello::from_bytes(rank, blob)).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = hellos.first() else { return Ok(hellos) };
    for (rank, hello) in (0..).zip(&hellos) {
        for (what, ours, theirs) in differences(first, hello) {
            if ours != theirs {
                return Err(StartError::Disagree { what, ours, rank, theirs });
            }
        }
    }
    Ok(hellos)
}

fn differences(one: &Hello, other: &Hello) -> [(&'static str, String, String); 11] {
    let both = |what, show: &dyn Fn(&Hello) -> String| (what, show(one), show(other));
    [
        both("release", &|hello| hello.build.clone()),
        both("device profile", &|hello| hello.settings.profile.clone().unwrap_or_else(|| "none".into())),
        both("windows", &|hello| if hello.settings.windows { "on" } else { "off" }.into()),
        both("devices", &|hello| if hello.settings.devices { "given" } else { "not given" }.into()),
        both("TCP between hosts", &|hello| {
            match hello.settings.sealed {
                Some(true) => "sealed",
                Some(false) => "not sealed (FULMEN_TRUSTED_RAIL)",
                None => "none",
            }
            .into()
        }),
        both("verification of data", &|hello| if hello.settings.verify_data { "on" } else { "off" }.into()),
        both("frame size", &|hello| hello.settings.flow.frame.to_string()),
        both("credits", &|hello| hello.settings.flow.credits.to_string()),
        both("rendezvous size", &|hello| hello.settings.flow.rendezvous.to_string()),
        both("rendezvous size over TCP", &|hello| hello.settings.flow.rendezvous_tcp.to_string()),
        both("bound of unexpected messages", &|hello| hello.settings.flow.unexpected.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        let settings = Settings {
            windows: true,
            devices: false,
            sealed: None,
            profile: None,
            flow: Flow::default(),
            verify_data: true,
        };
        Hello { build: "1.0".into(), settings, reach: Some(ReachHello { node: vec![7; 48], control: 9, pool: 8 }) }
    }

    #[test]
    fn equal_settings_agree() {
        let blobs = vec![hello().to_bytes(); 3];
        assert_eq!(agree(&blobs).unwrap(), vec![hello(); 3]);
    }

    #[test]
    fn each_difference_names_the_rank_and_both_values() {
        type Change = fn(&mut Hello);
        let changes: [(Change, &str); 11] = [
            (|hello| hello.build = "2.0".into(), "2.0"),
            (|hello| hello.settings.profile = Some("thunderbolt".into()), "thunderbolt"),
            (|hello| hello.settings.windows = false, "off"),
            (|hello| hello.settings.devices = true, "not given"),
            (|hello| hello.settings.sealed = Some(false), "FULMEN_TRUSTED_RAIL"),
            (|hello| hello.settings.verify_data = false, "off"),
            (|hello| hello.settings.flow.frame = 4095, "4095"),
            (|hello| hello.settings.flow.credits = 33, "33"),
            (|hello| hello.settings.flow.rendezvous = 12345, "12345"),
            (|hello| hello.settings.flow.rendezvous_tcp = 54321, "54321"),
            (|hello| hello.settings.flow.unexpected = 777, "777"),
        ];
        for (change, value) in changes {
            let mut other = hello();
            change(&mut other);
            let error = agree(&[hello().to_bytes(), hello().to_bytes(), other.to_bytes()]).unwrap_err().to_string();
            assert!(error.contains("rank 2") && error.contains("rank 0") && error.contains(value), "{error}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut blob = hello().to_bytes();
        blob[0] = 99;
        let error = agree(&[hello().to_bytes(), blob]).unwrap_err();
        assert!(matches!(error, StartError::Version { rank: 1, theirs: 99, .. }), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..64), versioned in any::<bool>()) {
            if versioned && bytes.len() >= 2 {
                bytes[..2].copy_from_slice(&VERSION.to_le_bytes());
            }
            let parsed = Hello::from_bytes(0, &bytes);
            if let Ok(hello) = parsed {
                prop_assert!(hello.to_bytes().len() <= bytes.len());
            }
        }
    }
}
