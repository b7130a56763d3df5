//! Decoders of what another process sends, for `crates/fuzz`.

pub use crate::inspect::decode_and_encode;
