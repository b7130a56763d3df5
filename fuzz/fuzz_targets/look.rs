//! libFuzzer, for messages over a socket: `adit_fuzz::look`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::look(data));
