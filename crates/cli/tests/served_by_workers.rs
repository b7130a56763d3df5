//! What servers and sessions are told when the other side dies or is replaced, with several workers
//! in each volume.

#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test program of its own, too"
)]

#[path = "served_deaths.rs"]
mod served_deaths;
#[path = "served_resume.rs"]
mod served_resume;
#[path = "tails.rs"]
mod tails;
