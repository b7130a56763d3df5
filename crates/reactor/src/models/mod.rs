//! Models of driving, waiting and waking (`cargo xtask models`); the name of each is its claim.

mod callback;
mod callers;
mod handles;
mod lock;
mod queue;
mod visits;
mod workers;
