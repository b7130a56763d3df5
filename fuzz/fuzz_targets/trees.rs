//! libFuzzer, for extent trees and directories: `adit_fuzz::trees`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_fuzz::trees(data));
