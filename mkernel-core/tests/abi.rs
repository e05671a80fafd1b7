//! The emitted C++ text before a real C++ compiler.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Stdio};

use mkernel_core::fifo::FifoHeader;
use mkernel_core::ticket::TicketBits;
use mkernel_core::{abi, abi_enum, abi_struct};

abi_struct! {
    /// Two floats and a sign.
    pub struct Inner: size 12 {
        /// A row of weights.
        pub weights: [f32; 2],
        /// May be negative.
        pub delta: i32,
    }
}

abi_struct! {
    /// Every type of field; a comment may end in \
    pub struct Every: size 80 {
        /// Nested structs.
        pub inner: [Inner; 2],
        /// Two rows of three.
        pub grid: [[u16; 3]; 2],
        /// Flags.
        pub flags: [u8; 4],
        /// A count.
        pub count: u32,
        /// Padding.
        pub reserved: u32,
        /// Byte offset.
        pub offset: u64,
        /// One nested struct.
        pub last: Inner,
        /// Padding.
        pub reserved_last: u32,
        /// Ends it.
        pub end: u64,
    }
}

abi_enum! {
    /// What to do.
    pub enum Verb {
        /// Nothing.
        Idle = 0,
        /// The largest value.
        Stop = 0xffff_ffff,
    }
}

/// What g++ says about `text`: nothing if it compiles.
fn compile(text: &str) -> Result<(), String> {
    let mut compiler = Command::new("g++")
        .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the layout tests need g++: install it (Debian: apt-get install g++)");
    compiler.stdin.take().expect("stdin is piped").write_all(text.as_bytes()).expect("g++ reads its input");
    let output = compiler.wait_with_output().expect("g++ runs");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn text() -> String {
    abi::text(&[TicketBits::cpp, FifoHeader::cpp, Inner::cpp, Every::cpp, Verb::cpp])
}

#[test]
fn every_layout_compiles_without_a_header() {
    let text = text();
    assert!(!text.contains("#include"));
    compile(&text).unwrap();
}

#[test]
fn both_sides_agree_on_values() {
    let checks = format!(
        "static_assert(TicketBits::LAP_SHIFT == {}u, \"\");\n\
         static_assert(static_cast<unsigned int>(Verb::Stop) == {}u, \"\");\n\
         static_assert(sizeof(Every::grid) == {} && sizeof(Every::grid[0]) == {}, \"\");\n",
        TicketBits::LAP_SHIFT,
        Verb::Stop as u32,
        size_of::<[[u16; 3]; 2]>(),
        size_of::<[u16; 3]>(),
    );
    compile(&(text() + &checks)).unwrap();
}

#[test]
fn any_wrong_offset_size_or_alignment_is_refused() {
    let text = text();
    let asserts: Vec<_> =
        text.lines().filter(|line| line.starts_with("static_assert(") && line.contains(" of ")).collect();
    assert_eq!(asserts.len(), 3 * 2 + 5 + 2 + 9);
    for line in asserts {
        let wrong = line.replacen(" == ", " == 1 + ", 1);
        let errors = compile(&text.replace(line, &wrong)).unwrap_err();
        let (_, name) = line.split_once('"').unwrap();
        let expected = format!("static assertion failed: {}", name.split_once('"').unwrap().0);
        assert!(errors.contains(&expected), "{errors}");
    }
}

#[test]
fn a_field_of_another_width_is_refused() {
    let wrong = text().replace("unsigned int count;", "unsigned long long count;");
    assert!(compile(&wrong).unwrap_err().contains("static assertion failed"));
}

#[test]
fn an_unknown_enum_value_is_none() {
    assert_eq!(Verb::from_abi(u32::MAX), Some(Verb::Stop));
    assert_eq!(Verb::from_abi(1), None);
}
