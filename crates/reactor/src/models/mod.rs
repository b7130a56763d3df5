//! Models of who drives, who waits and who is woken (`cargo xtask models`); each is named by what it claims.

mod callers;
mod handles;
mod lock;
