//! The vocabulary of RDMA.
