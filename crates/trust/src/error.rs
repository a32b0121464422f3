//! Why a connection is not sealed.

use std::io;

use rustls::{AlertDescription, Error, PeerIncompatible};

/// Why there is no sealed connection, or none any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The other end speaks something else.
    #[error("the other end does not speak TLS (it begins with \"{first}\"): look which program has this port")]
    NotTls {
        /// Its first bytes, escaped.
        first: String,
    },
    /// The other end showed no certificate.
    #[error(
        "the other end is a stranger, without a certificate of this world: start it through the launcher of this world"
    )]
    Stranger,
    /// The other end's certificate is another authority's.
    #[error(
        "the other end belongs to another world ({cause}): both ends need the same secret, from one launcher or in one key file (FULMEN_SECRET_FILE)"
    )]
    WrongAuthority {
        /// What its certificate lacks.
        cause: String,
    },
    /// The other end takes this one for a stranger.
    #[error(
        "the other end takes this one for a stranger ({cause}): both ends need the same secret, from one launcher or in one key file (FULMEN_SECRET_FILE)"
    )]
    NotTrusted {
        /// The alert that it sent.
        cause: String,
    },
    /// The other end wants to speak another protocol, or another version of it.
    #[error("the other end does not speak {ours}: build both ends from the same release")]
    OtherProtocol {
        /// What this end speaks.
        ours: String,
    },
    /// The other end has no TLS 1.3.
    #[error(
        "the other end speaks an older TLS than 1.3, which is never accepted: it is no Fulmen, or something between changes what is sent"
    )]
    OlderTls,
    /// What came is no TLS 1.3 of this world: damaged, changed on the way, played back, or made up.
    #[error("what the other end sent is not what belongs here ({cause}): it was damaged or changed on the way")]
    Violation {
        /// What is wrong.
        cause: String,
    },
    /// The handshake did not end in time.
    #[error("the other end did not end the handshake in time: see whether it is stopped, or wait longer")]
    TimedOut,
    /// The other end ended the connection in the handshake.
    #[error("the other end closed the connection during the handshake: see what it said")]
    Closed,
    /// No keys can be made.
    #[error("cannot make the keys of this process ({0}): check that getrandom is allowed here")]
    Keys(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
}

impl TrustError {
    /// Whether the two ends do not hold the same secret.
    #[must_use]
    pub fn is_stranger(&self) -> bool {
        matches!(self, TrustError::Stranger | TrustError::WrongAuthority { .. } | TrustError::NotTrusted { .. })
    }

    /// Whether the connection ended, or nothing came: trying again can help.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self, TrustError::TimedOut | TrustError::Closed | TrustError::Io(_))
    }

    /// The error behind one of [`Sealed`](crate::Sealed)'s, if the seal is at fault.
    #[must_use]
    pub fn behind(error: &io::Error) -> Option<&TrustError> {
        error.get_ref()?.downcast_ref()
    }

    pub(crate) fn from_tls(error: Error, ours: &[u8]) -> TrustError {
        let cause = error.to_string();
        match error {
            Error::NoCertificatesPresented => TrustError::Stranger,
            Error::InvalidCertificate(_) => TrustError::WrongAuthority { cause },
            Error::NoApplicationProtocol => TrustError::other_protocol(ours),
            // The first is a server's word of a client without TLS 1.3, the second a client's of such a server.
            Error::PeerIncompatible(
                PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::Tls13RequiredForQuic
                | PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            )
            | Error::AlertReceived(AlertDescription::ProtocolVersion) => TrustError::OlderTls,
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => TrustError::other_protocol(ours),
            Error::AlertReceived(
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRequired
                | AlertDescription::AccessDenied
                // A certificate whose signature is another authority's.
                | AlertDescription::DecryptError,
            ) => TrustError::NotTrusted { cause },
            _ => TrustError::Violation { cause },
        }
    }

    pub(crate) fn other_protocol(ours: &[u8]) -> TrustError {
        TrustError::OtherProtocol { ours: ours.escape_ascii().to_string() }
    }
}

/// The error of an operation on a connection whose seal is at fault.
impl From<TrustError> for io::Error {
    fn from(error: TrustError) -> io::Error {
        match error {
            TrustError::Io(error) => error,
            TrustError::TimedOut => io::ErrorKind::TimedOut.into(),
            error => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}
