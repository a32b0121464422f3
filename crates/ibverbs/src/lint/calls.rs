//! What calls are asked to do, against the rules. Nothing here asks the device.

use std::ops::Range;

use fulmen_verbs::{Access, VerbsError};

use super::Lint;
use super::rule::Rule;
use crate::thunderbolt::{FRAME, MAX_DEPTH, MAX_MESSAGE};

/// What a queue pair is to be.
pub(crate) struct PairAsked {
    /// `IBV_QPT_UC`.
    pub(crate) is_uc: bool,
    /// The type's name, for people.
    pub(crate) kind: &'static str,
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) send_sges: u32,
    pub(crate) recv_sges: u32,
    pub(crate) inline: u32,
    pub(crate) has_srq: bool,
}

/// What a send request is to do.
pub(crate) struct SendAsked {
    /// `IBV_WR_SEND` or `IBV_WR_SEND_WITH_IMM`.
    pub(crate) is_send: bool,
    /// The operation's name, for people.
    pub(crate) op: &'static str,
    pub(crate) has_imm: bool,
    pub(crate) is_inline: bool,
    pub(crate) sges: usize,
    pub(crate) bytes: u64,
}

impl Lint {
    /// `ibv_create_qp`, of the protection domain `domain`.
    pub(crate) fn create_qp(&self, call: &str, domain: u64, asked: &PairAsked) -> Option<i32> {
        let mut refused = None;
        let mut check = |is_broken: bool, rule, what: &dyn Fn() -> String| {
            if is_broken {
                refused = refused.or(self.broken(rule, call, domain, what()));
            }
        };
        check(!asked.is_uc, Rule::UcOnly, &|| format!("a queue pair of type {}", asked.kind));
        check(asked.has_srq, Rule::OwnReceiveQueue, &|| "a queue pair with a shared receive queue".to_owned());
        let (send, recv) = (asked.send_sges, asked.recv_sges);
        check(send.max(recv) > 1, Rule::OneSge, &|| format!("max_send_sge {send}, max_recv_sge {recv}"));
        check(asked.inline > 0, Rule::NoInline, &|| format!("max_inline_data {}", asked.inline));
        let (send, recv) = (asked.send_depth, asked.recv_depth);
        check(send.max(recv) > MAX_DEPTH, Rule::QueueDepthCap, &|| format!("max_send_wr {send}, max_recv_wr {recv}"));
        refused
    }

    /// `ibv_create_srq`, of the protection domain `domain`. The device refuses it.
    pub(crate) fn create_srq(&self, domain: u64) {
        let _ = self.broken(Rule::OwnReceiveQueue, "ibv_create_srq", domain, "a shared receive queue");
    }

    /// `ibv_create_ah`, of the protection domain `domain`. The device refuses it.
    pub(crate) fn create_ah(&self, domain: u64) {
        let what = "an address handle, which datagrams alone need";
        let _ = self.broken(Rule::UcOnly, "ibv_create_ah", domain, what);
    }

    /// A request of `ibv_post_send` or the `ibv_wr_*` calls, on queue pair `qp_num`.
    pub(crate) fn post_send(&self, call: &str, qp_num: u32, asked: &SendAsked) -> Option<i32> {
        let object = u64::from(qp_num);
        let mut refused = None;
        if !asked.is_send {
            let what = format!("{} on queue pair {qp_num}", asked.op);
            refused = refused.or(self.broken(Rule::SendRecvOnly, call, object, what));
        }
        if asked.has_imm {
            let what = format!("{} on queue pair {qp_num}", asked.op);
            refused = refused.or(self.broken(Rule::NoImmediate, call, object, what));
        }
        if asked.is_inline {
            let what = format!("IBV_SEND_INLINE on queue pair {qp_num}");
            refused = refused.or(self.broken(Rule::NoInline, call, object, what));
        }
        refused.or(self.message(call, qp_num, asked.sges, asked.bytes))
    }

    /// A request of `ibv_post_recv` on queue pair `qp_num`.
    pub(crate) fn post_recv(&self, qp_num: u32, sges: usize, bytes: u64) -> Option<i32> {
        self.message("ibv_post_recv", qp_num, sges, bytes)
    }

    fn message(&self, call: &str, qp_num: u32, sges: usize, bytes: u64) -> Option<i32> {
        let object = u64::from(qp_num);
        let mut refused = None;
        if sges > 1 {
            let what = format!("a request of {sges} elements on queue pair {qp_num}");
            refused = refused.or(self.broken(Rule::OneSge, call, object, what));
        }
        if bytes > MAX_MESSAGE {
            let what = format!("a message of {bytes} bytes on queue pair {qp_num}");
            refused = refused.or(self.broken(Rule::MaxMessage, call, object, what));
        }
        refused
    }

    /// `ibv_reg_mr` of these addresses.
    pub(crate) fn reg_mr(&self, call: &str, range: &Range<u64>, access: u32) -> Option<i32> {
        let (start, len) = (range.start, range.end - range.start);
        let mut refused = None;
        let page = fulmen_memory::page_size() as u64;
        if !start.is_multiple_of(page) {
            let what = format!("{len} bytes at {start:#x}, which is no multiple of the page size {page}");
            refused = refused.or(self.broken(Rule::PageAligned, call, start, what));
        }
        if crosses(range) {
            let what = format!("{start:#x}..{:#x} crosses a 4 GiB boundary", range.end);
            refused = refused.or(self.broken(Rule::FourGib, call, start, what));
        }
        let known = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        if access & !known.bits() != 0 || access & Access::LOCAL_WRITE.bits() == 0 {
            let what = format!("access flags {access:#x}");
            refused = refused.or(self.broken(Rule::AccessFlags, call, start, what));
        }
        refused
    }

    /// A call that the device refused because it has no more of something, or for a peer that it cannot be connected to.
    /// The call's name is not looked at for posts.
    pub(crate) fn refused(&self, call: &str, cause: &VerbsError) {
        let (object, rule) = match *cause {
            VerbsError::Limit { what: "queue pairs", .. } => (0, Rule::QpLimit),
            VerbsError::Limit { what: "registrations", .. } => (0, Rule::MrLimit),
            VerbsError::Limit { what: "completion queues", .. } => (0, Rule::CqLimit),
            VerbsError::Limit { what: "protection domains", .. } => (0, Rule::PdLimit),
            VerbsError::Stale { qp_num, .. } => (qp_num, Rule::StalePeer),
            VerbsError::Unreachable { qp_num, .. } => (qp_num, Rule::GidIndex),
            VerbsError::Invalid { what: "GID", .. } => (0, Rule::GidIndex),
            VerbsError::QueueFull { qp_num, .. } => (qp_num, Rule::FrameDepth),
            _ => return,
        };
        let call = match cause {
            VerbsError::QueueFull { queue: "send", .. } => "ibv_post_send",
            VerbsError::QueueFull { .. } => "ibv_post_recv",
            _ => call,
        };
        // It is refused anyhow.
        let _ = self.broken(rule, call, object.into(), cause);
    }
}

/// Whether a 4 GiB boundary lies within these addresses.
pub(crate) fn crosses(range: &Range<u64>) -> bool {
    range.start >> 32 != (range.end - 1) >> 32
}

const _: () = assert!(MAX_MESSAGE == MAX_DEPTH as u64 * FRAME);
