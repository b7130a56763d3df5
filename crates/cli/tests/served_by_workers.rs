//! Servers, sessions and appending programs die, and servers are replaced, with several workers in
//! each volume: the tests of one worker once more.

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
