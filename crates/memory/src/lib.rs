//! Memory that devices, processes and GPUs can share.
