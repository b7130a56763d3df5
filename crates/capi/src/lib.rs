//! The C ABI, `adit.h`.
