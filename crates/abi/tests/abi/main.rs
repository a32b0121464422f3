//! Records and their header, as those see them who share them.

mod buffer;
mod damage;
mod header;
mod network;
mod samples;
mod share;
mod spawn;
mod work;
