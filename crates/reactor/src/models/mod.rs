//! Models of who drives, who waits and who is woken (`cargo xtask models`); each is named by what
//! it claims.

mod callback;
mod callers;
mod handles;
mod lock;
