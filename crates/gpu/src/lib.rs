//! GPUs beside registered memory: what the machine has, and which of its memory RDMA devices reach.
#![warn(missing_docs)]
