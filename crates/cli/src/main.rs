//! The `adit` command.

fn main() {}
