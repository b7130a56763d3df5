//! A volume in a server, with several workers: the tests of embedded volumes once more, as in
//! `served`.

#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test program of its own, too"
)]

#[path = "../completion_queue.rs"]
mod completion_queue;
#[path = "../files.rs"]
mod files;
#[path = "../full.rs"]
mod full;
#[path = "../names.rs"]
mod names;
#[path = "../threads/mod.rs"]
mod threads;
#[path = "../volumes.rs"]
mod volumes;

#[path = "../support/served.rs"]
mod support;
