//! `fulmen demo`: trains a classifier of handwritten digits on several processes of this machine.

pub mod data;
pub mod model;
