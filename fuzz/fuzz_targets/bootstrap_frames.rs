//! Any bytes through the decoder of bootstrap frames.
//! `cargo +nightly fuzz run bootstrap_frames`; its corpus also runs as a plain test of `mkernel`.
#![no_main]

#[path = "../../mkernel/tests/common/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    frames::decode(bytes);
});
