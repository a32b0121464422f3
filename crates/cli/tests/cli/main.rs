//! The command as a user meets it: the real program, with small shell scripts as ranks.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod agent_limits;
mod agent_strange;
#[cfg(target_os = "linux")]
mod agent_tty;
mod bad_input;
mod bench;
mod cluster;
#[cfg(target_os = "linux")]
mod cluster_chaos;
#[cfg(target_os = "linux")]
mod cluster_devices;
mod cluster_etcd;
mod cluster_run;
mod demo;
#[cfg(target_os = "linux")]
mod desk;
mod devices;
mod ending;
mod environment;
mod hosts;
mod kill;
mod links;
mod meet;
mod output;
mod plan;
mod random;
mod restart;
mod signals;
mod simulate;
#[cfg(target_os = "linux")]
mod sshd;
mod support;
mod trace;
mod verbs;
