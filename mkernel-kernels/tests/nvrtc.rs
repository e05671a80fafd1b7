//! All device code compiles, with no GPU at hand.
//!
//! NVRTC comes from the toolkit or from PyPI (`nvidia-cuda-nvrtc==13.0.*`), its folder in `LD_LIBRARY_PATH`. Not every
//! machine has it, so these tests are ignored unless asked for, as CI does with `--include-ignored`.
#![cfg(feature = "cuda")]

use mkernel_kernels::cuda::nvrtc::{Compiled, Nvrtc};
use mkernel_kernels::device::{self, RUN, Specialisation};
use mkernel_kernels::encode::layout::Element;
use mkernel_kernels::encode::tiles::{AttentionEngine, Engine, GemmEngine};

fn nvrtc() -> Nvrtc {
    Nvrtc::find().unwrap_or_else(|error| panic!("{error}"))
}

fn compile(nvrtc: &Nvrtc, specialisation: &Specialisation) -> Compiled {
    let mut options = specialisation.options();
    options.push("--ptxas-options=-v".to_owned());
    nvrtc.compile(&device::source(), &options).unwrap_or_else(|error| panic!("{specialisation:?}: {error}"))
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Nothing but copies and puts; and each engine for each element type by itself, as programs of one operator use them.
fn specialisations(capability: u32) -> Vec<Specialisation> {
    let none = Specialisation { capability, ..Specialisation::default() };
    let mut all = vec![none.clone()];
    for element in [Element::Bf16, Element::F16, Element::F32] {
        all.push(Specialisation { products: vec![element], ..none.clone() });
        all.push(Specialisation { attentions: vec![element], ..none.clone() });
        all.push(Specialisation { experts: vec![element], is_routed: true, ..none.clone() });
    }
    all
}

/// Without spills or warnings. A test for each generation, since the compiler uses one core.
fn every_specialisation_compiles(capability: u32) {
    let nvrtc = nvrtc();
    for specialisation in specialisations(capability) {
        let Compiled { cubin, log } = compile(&nvrtc, &specialisation);
        assert!(cubin.starts_with(b"\x7fELF"), "{specialisation:?}");
        assert!(contains(&cubin, RUN), "{specialisation:?}");
        assert!(log.contains("0 bytes spill stores") && !log.contains("warning"), "{specialisation:?}: {log}");
        let spills = log.lines().filter(|l| l.contains("spill stores") && !l.contains(" 0 bytes spill stores"));
        assert_eq!(spills.count(), 0, "{specialisation:?}: {log}");
        println!("{specialisation:?}: {log}");
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn every_specialisation_compiles_for_ampere() {
    every_specialisation_compiles(80);
}

#[test]
#[ignore = "needs NVRTC"]
fn every_specialisation_compiles_for_hopper() {
    every_specialisation_compiles(90);
}

#[test]
#[ignore = "needs NVRTC"]
fn every_specialisation_compiles_for_blackwell() {
    every_specialisation_compiles(100);
}

#[test]
#[ignore = "needs NVRTC"]
fn the_pipelined_kernel_compiles_for_engines_of_products_without_warnings_or_products_in_turn() {
    let nvrtc = nvrtc();
    for (input, columns, writes_input, writes_f32, products) in [
        (Element::Bf16, 256, true, false, vec![]),
        (Element::Bf16, 128, false, true, vec![]),
        (Element::F16, 256, true, true, vec![Element::F16]),
    ] {
        let engine = Some(Engine::Gemm(GemmEngine { input, columns, writes_input, writes_f32 }));
        let specialisation = Specialisation { capability: 90, products, engine, ..Specialisation::default() };
        let Compiled { cubin, log } = compile(&nvrtc, &specialisation);
        assert!(cubin.starts_with(b"\x7fELF"), "{specialisation:?}");
        // The performance note C7510: products that wait for each other.
        assert!(!log.contains("C7510") && !log.contains("warning"), "{specialisation:?}: {log}");
        println!("{specialisation:?}: {log}");
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn the_pipelined_kernel_compiles_for_engines_of_attention() {
    let nvrtc = nvrtc();
    for (input, dim) in [(Element::Bf16, 128), (Element::F16, 256)] {
        let engine = Some(Engine::Attention(AttentionEngine { input, dim }));
        let specialisation = Specialisation { capability: 90, engine, ..Specialisation::default() };
        let Compiled { log, .. } = compile(&nvrtc, &specialisation);
        assert!(!log.contains("C7510") && !log.contains("warning"), "{specialisation:?}: {log}");
        println!("{specialisation:?}: {log}");
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn a_mistake_in_the_device_code_is_reported_with_its_file_and_line() {
    let nvrtc = nvrtc();
    let specialisation = specialisations(90).remove(0);
    let source = device::source().replace("while (lane != KernelShape::NO_LANE)", "while (lane != NO_SUCH_NAME)");
    let error = nvrtc.compile(&source, &specialisation.options()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("claim.cuh(") && text.contains("NO_SUCH_NAME"), "{text}");
}
