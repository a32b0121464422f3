//! The data path: queues, requests, completions.

mod ah;
pub(crate) mod channel;
pub(crate) mod cq;
mod cq_ex;
mod inline;
mod latch;
mod masks;
pub(crate) mod modify;
mod post;
pub(crate) mod qp;
mod qp_ex;
pub(crate) mod srq;

use crate::ffi::verbs_context;

/// Sets the calls that programs make through an open device. Memory windows have none: the header refuses them
/// (EOPNOTSUPP).
pub(crate) fn install(context: &mut verbs_context) {
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(post::post_srq_recv);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.query_rt_values = Some(cq_ex::query_rt_values);
    context.create_qp_ex = Some(qp::create_qp_ex);
    context.create_srq_ex = Some(srq::create_srq_ex);
}
