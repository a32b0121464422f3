//! Doors for fuzz targets.

/// The name in a certificate.
#[must_use]
pub fn name(certificate: &[u8]) -> Option<String> {
    crate::name::of(certificate)
}

/// A certificate as members have it, for a first input.
#[must_use]
pub fn certificate(name: &str) -> Vec<u8> {
    crate::authority::sample(name)
}
