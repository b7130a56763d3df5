//! Development tasks: `cargo xtask setup`, `cargo xtask test`.

fn main() {}
