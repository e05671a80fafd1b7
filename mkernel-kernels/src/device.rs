//! The text of the device code, and what it is specialised to. Needs no CUDA.

use crate::encode::Image;
use crate::encode::layout::{self, Element, KernelShape, OpCode};
use crate::encode::tiles::Engine;

/// The files of `src/device/`, each after those it includes.
const FILES: [(&str, &str); 41] = [
    ("sync.cuh", include_str!("device/sync.cuh")),
    ("team.cuh", include_str!("device/team.cuh")),
    ("wait.cuh", include_str!("device/wait.cuh")),
    ("claim.cuh", include_str!("device/claim.cuh")),
    ("signal.cuh", include_str!("device/signal.cuh")),
    ("ticket.cuh", include_str!("device/ticket.cuh")),
    ("fault.cuh", include_str!("device/fault.cuh")),
    ("copy.cuh", include_str!("device/copy.cuh")),
    ("mma.cuh", include_str!("device/mma.cuh")),
    ("gemm_portable.cuh", include_str!("device/gemm_portable.cuh")),
    ("gemm_f32.cuh", include_str!("device/gemm_f32.cuh")),
    ("gemm.cuh", include_str!("device/gemm.cuh")),
    ("reduce.cuh", include_str!("device/reduce.cuh")),
    ("mbarrier.cuh", include_str!("device/mbarrier.cuh")),
    ("tma.cuh", include_str!("device/tma.cuh")),
    ("bulk.cuh", include_str!("device/bulk.cuh")),
    ("reduce_bulk.cuh", include_str!("device/reduce_bulk.cuh")),
    ("softmax.cuh", include_str!("device/softmax.cuh")),
    ("attention_f32.cuh", include_str!("device/attention_f32.cuh")),
    ("attention_portable.cuh", include_str!("device/attention_portable.cuh")),
    ("attention.cuh", include_str!("device/attention.cuh")),
    ("rows.cuh", include_str!("device/rows.cuh")),
    ("pack.cuh", include_str!("device/pack.cuh")),
    ("route.cuh", include_str!("device/route.cuh")),
    ("expert_portable.cuh", include_str!("device/expert_portable.cuh")),
    ("expert_f32.cuh", include_str!("device/expert_f32.cuh")),
    ("expert.cuh", include_str!("device/expert.cuh")),
    ("combine.cuh", include_str!("device/combine.cuh")),
    ("merge.cuh", include_str!("device/merge.cuh")),
    ("worker.cuh", include_str!("device/worker.cuh")),
    ("wgmma.cuh", include_str!("device/wgmma.cuh")),
    ("gemm_hopper.cuh", include_str!("device/gemm_hopper.cuh")),
    ("gemm_hopper_epilogue.cuh", include_str!("device/gemm_hopper_epilogue.cuh")),
    ("slot.cuh", include_str!("device/slot.cuh")),
    ("engine_gemm.cuh", include_str!("device/engine_gemm.cuh")),
    ("attention_hopper.cuh", include_str!("device/attention_hopper.cuh")),
    ("attention_hopper_softmax.cuh", include_str!("device/attention_hopper_softmax.cuh")),
    ("attention_hopper_values.cuh", include_str!("device/attention_hopper_values.cuh")),
    ("attention_hopper_consume.cuh", include_str!("device/attention_hopper_consume.cuh")),
    ("engine_attention.cuh", include_str!("device/engine_attention.cuh")),
    ("pipeline.cuh", include_str!("device/pipeline.cuh")),
];

/// The kernel, after everything else.
const KERNEL: (&str, &str) = ("kernel.cuh", include_str!("device/kernel.cuh"));

/// The name of the persistent kernel.
pub const RUN: &str = "mkernel_run";

/// What the device code is compiled for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Specialisation {
    /// Compute capability, as in 90 for sm_90a.
    pub capability: u32,
    /// Element types of products; engines for others are left out.
    pub products: Vec<Element>,
    /// Those of attention.
    pub attentions: Vec<Element>,
    /// Those of experts' products.
    pub experts: Vec<Element>,
    /// Whether rows of tokens are routed; that code is left out where they are not.
    pub is_routed: bool,
    /// The Hopper engine, if products go through it: the kernel is then the pipelined one.
    pub engine: Option<Engine>,
}

impl Specialisation {
    /// What a launch of `images` on a GPU of this compute capability needs.
    pub fn of(images: &[Image], capability: u32, engine: Option<Engine>) -> Specialisation {
        let of = |op| {
            let is_used = |e: &Element| images.iter().any(|image| image.reads(op, *e));
            ELEMENTS.into_iter().filter(is_used).collect()
        };
        let (products, attentions, experts) = (of(OpCode::Gemm), of(OpCode::Attention), of(OpCode::Expert));
        let routed = [OpCode::Pack, OpCode::Route, OpCode::Expert, OpCode::Combine, OpCode::Merge];
        let is_routed = images.iter().any(|image| routed.into_iter().any(|op| image.has(op)));
        Specialisation { capability, products, attentions, experts, is_routed, engine }
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        KernelShape::THREADS + if self.engine.is_some() { KernelShape::SERVICE_THREADS } else { 0 }
    }

    /// Dynamic shared memory of a CTA in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.engine.map_or(KernelShape::SHARED_BYTES, |engine| engine.shared_bytes())
    }

    /// The compiler's options. Architectures from 90 on are compiled with their own features (`sm_90a`).
    pub fn options(&self) -> Vec<String> {
        let own = if self.capability >= 90 { "a" } else { "" };
        let mut options = vec![format!("--gpu-architecture=sm_{}{own}", self.capability), "--std=c++17".to_owned()];
        let engines = [("GEMM", &self.products), ("ATTENTION", &self.attentions), ("EXPERT", &self.experts)];
        for (engine, elements) in engines {
            options.extend(elements.iter().map(|e| format!("-DMK_{engine}_{}", macro_name(*e))));
        }
        let parts = [("ATTENTION", !self.attentions.is_empty()), ("ROUTED", self.is_routed)];
        options.extend(parts.iter().filter(|(_, is_used)| *is_used).map(|(part, _)| format!("-DMK_{part}")));
        if let Some(engine) = self.engine {
            options.extend(engine.definitions().into_iter().map(|d| format!("-DMK_{d}")));
        }
        options
    }
}

const ELEMENTS: [Element; 3] = [Element::Bf16, Element::F16, Element::F32];

fn macro_name(element: Element) -> &'static str {
    match element {
        Element::Bf16 => "BF16",
        Element::F16 => "F16",
        Element::F32 => "F32",
    }
}

/// The whole device code as one text: layouts, then every file under its own name in messages.
pub fn source() -> String {
    let mut text = format!("#line 1 \"layout\"\n{}", layout::text());
    for (name, file) in FILES.iter().chain([&KERNEL]) {
        text.push_str(&format!("#line 1 \"{name}\"\n"));
        for line in file.lines() {
            // Kept as an empty line, so that line numbers stay those of the file.
            if !line.starts_with("#include") && line != "#pragma once" {
                text.push_str(line);
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_comes_after_the_files_that_it_includes() {
        let mut seen = Vec::new();
        for (name, file) in FILES.iter().chain([&KERNEL]) {
            for line in file.lines().filter(|l| l.starts_with("#include")) {
                let included = line.split('"').nth(1).expect("includes are quoted");
                assert!(seen.contains(&included), "{name} includes {included}, which comes later or never");
            }
            seen.push(name);
        }
    }

    #[test]
    fn every_file_names_its_rust_twin_in_its_first_line_and_the_twin_exists() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace");
        for (name, file) in FILES.iter().chain([&KERNEL]) {
            let first = file.lines().next().unwrap_or_default();
            if first.starts_with("// No Rust twin") {
                continue;
            }
            let (_, twin) = first.split_once("Rust twin: ").unwrap_or_else(|| panic!("{name} names no twin: {first}"));
            let path = twin.split([' ', ',']).next().unwrap_or_default().trim_end_matches('.');
            assert!(root.join(path).is_file(), "{name}: {path}");
        }
    }

    #[test]
    fn ordering_is_written_between_ctas_in_one_file_and_within_one_in_those_of_its_barriers_and_copies() {
        // The fence of wgmma.cuh orders registers.
        const ORDERING: [&str; 4] = ["sync.cuh", "mbarrier.cuh", "tma.cuh", "wgmma.cuh"];
        let is_ordering = |line: &str| {
            ["acquire", "release", "fence", "relaxed", "volatile.global"].map(|w| line.contains(w)).contains(&true)
        };
        for (name, file) in FILES.iter().chain([&KERNEL]).filter(|(name, _)| !ORDERING.contains(name)) {
            for line in file.lines().filter(|l| l.contains("asm")) {
                assert!(!is_ordering(line), "{name}: {line}");
            }
        }
    }
}
