//! Doors for fuzz targets.

/// The name in a certificate.
#[must_use]
pub fn name(certificate: &[u8]) -> Option<String> {
    crate::name::of(certificate)
}
