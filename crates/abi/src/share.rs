//! Handing memory to the agent of this host, so that records in it are served.

use crate::check;
use crate::error::{AbiError, Field};
use crate::spawn::SpawnRequest;

constants! {
    "For `fulmen_share_request` and `fulmen_share_answer`."
    /// The magic number of a request: FSHR.
    pub const SHARE_MAGIC: u32 = u32::from_le_bytes(*b"FSHR"), "FULMEN_SHARE_MAGIC";
    /// Records of a share at most.
    pub const SHARE_RECORDS_MAX: u32 = 1024, "FULMEN_SHARE_RECORDS_MAX";
}

layout! {
    /// What a program says first over the socket `desk.sock` in the state of its host's agent, with the descriptor of a region beside it
    /// (SCM_RIGHTS): on Linux, a memfd with the seals SHRINK, GROW and SEAL. In it, at `requests_offset`, lie records
    /// `fulmen_spawn_request`, one after the other, of zeros at first; the rest is for rings and longer text.
    ///
    /// The answer is a `fulmen_share_answer`. From then on, each byte that the program sends has the agent look at the records, and each
    /// byte that the agent sends says that it has written some of its words; bytes that come together are one. When the connection ends,
    /// so does what was asked for over it, unless it is detached.
    pub struct ShareRequest, "fulmen_share_request", 32 {
        /// `FULMEN_SHARE_MAGIC`.
        0 magic: u32,
        /// `FULMEN_ABI_VERSION`.
        4 version: u32,
        /// Bytes of the region.
        8 region_len: u64,
        /// Where the records begin: a multiple of 64.
        16 requests_offset: u64,
        /// How many there are: 1 to `FULMEN_SHARE_RECORDS_MAX`.
        24 request_count: u32,
        /// Zero.
        28 reserved: u32,
    }
}

layout! {
    /// What an agent answers: how buffers in the region are named in records, `region_len` being the region's. An agent that takes
    /// nothing says why, and ends the connection.
    pub struct ShareAnswer, "fulmen_share_answer", 64 {
        /// `FULMEN_SHARE_MAGIC`.
        0 magic: u32,
        /// `FULMEN_ABI_VERSION`.
        4 version: u32,
        /// For records and their buffers.
        8 generation: u64,
        /// This node's number, for records (`source_node`, and `target_node` where it is to be this one) and their buffers.
        16 node: u32,
        /// For buffers.
        20 slot: u32,
        /// For buffers.
        24 tag: u64,
        /// A `FULMEN_ERROR_`, or 0: the region is shared.
        32 error: u32,
        /// The system's number for the error, or 0.
        36 os_error: i32,
        /// Zero.
        40 reserved: [u64; 3],
    }
}

const NAME: &str = "ShareRequest";

impl ShareRequest {
    /// A request for a region of so many bytes.
    ///
    /// # Errors
    /// Whatever [`ShareRequest::check`] would refuse.
    pub fn new(region_len: u64, requests_offset: u64, request_count: u32) -> Result<ShareRequest, AbiError> {
        let version = crate::VERSION;
        let request =
            ShareRequest { magic: SHARE_MAGIC, version, region_len, requests_offset, request_count, reserved: 0 };
        request.check()?;
        Ok(request)
    }

    /// Whether the records lie in the region, and where they may.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), AbiError> {
        check::head(NAME, SHARE_MAGIC, self.magic, self.version)?;
        check::zero(NAME, "reserved", &[self.reserved])?;
        let field = |name| Field { of: NAME, name };
        check::at_most(NAME, "request_count", self.request_count.into(), SHARE_RECORDS_MAX.into())?;
        if self.request_count == 0 {
            return Err(AbiError::Missing { field: field("request_count") });
        }
        if !self.requests_offset.is_multiple_of(64) {
            return Err(AbiError::Malformed { field: field("requests_offset"), why: "it must be a multiple of 64" });
        }
        let bytes = u64::from(self.request_count) * size_of::<SpawnRequest>() as u64;
        let end = self.requests_offset.checked_add(bytes).filter(|end| *end <= self.region_len);
        let outside = AbiError::OutOfBounds { field: field("requests_offset"), region_len: self.region_len };
        end.map(drop).ok_or(outside)
    }
}
