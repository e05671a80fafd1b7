//! A sample of the mutants of every operator's programs dies, or is proved to be no change.
#![allow(clippy::unwrap_used)]

use mkernel::ring_attention::Layout;
use mkernel::{AllReduce, DType, GemmAr, GemmRs, Mask, MoeDispatchGemm, MoeFfn, Partial, RingAttention};
use mkernel_kernels::Operator;
use mkernel_tests::judge::Tally;
use mkernel_tests::mutate::mutations;
use mkernel_tests::original::Original;

/// The seed of the samples.
const SEED: u64 = 11;

/// Judges `size` mutants, drawn from a seed, of the operator in a world.
fn sample(operator: impl Operator + 'static, gpus: &[u32], size: usize) {
    sample_of(operator, gpus, size, 1);
}

/// The same with several changes at once.
fn sample_of(operator: impl Operator + 'static, gpus: &[u32], size: usize, changes: usize) {
    let name = operator.name();
    let original = Original::new(operator, gpus);
    let sites = mutations(original.programs());
    let mut random = fastrand::Rng::with_seed(SEED);
    let mutants = (0..size).map(|_| (0..changes).map(|_| sites[random.usize(0..sites.len())]).collect());
    let tally = Tally::run(original.programs(), mutants, &|v, e, s| original.is_same(v, e, s));
    println!("{name} on {gpus:?}, seed {SEED}, {size} of {} sites, {changes} at once: {tally}", sites.len());
    assert!(tally.survivors.is_empty(), "{name} on {gpus:?}: {tally}");
}

#[test]
fn no_sampled_mutant_of_reduce_scatter_survives() {
    let problem = GemmRs { m: 9, n: 7, k: 10, dtype: DType::Bf16, partial: Partial::default() };
    for gpus in [&[3][..], &[1, 1], &[2, 2], &[2, 1]] {
        sample(problem, gpus, 1500);
    }
}

#[test]
fn no_sampled_mutant_of_all_reduce_survives() {
    let problem =
        |all_reduce| GemmAr { m: 9, n: 7, k: 10, dtype: DType::Bf16, partial: Partial::default(), all_reduce };
    for gpus in [&[3][..], &[1, 1], &[2, 2], &[2, 1]] {
        for all_reduce in [AllReduce::OneShot, AllReduce::TwoStep] {
            sample(problem(all_reduce), gpus, 1000);
        }
    }
}

#[test]
fn no_sampled_mutant_of_ring_attention_survives() {
    for (mask, layout) in [(Mask::None, Layout::Plain), (Mask::Causal, Layout::ZigZag)] {
        let problem =
            RingAttention { batch: 1, heads: 2, kv_heads: 1, seq: 13, dim: 16, mask, layout, dtype: DType::F32 };
        for gpus in [&[3][..], &[1, 1], &[2, 2], &[2, 1]] {
            sample(problem, gpus, 1000);
        }
    }
}

#[test]
fn no_sampled_mutant_of_experts_survives() {
    let dtype = DType::F32;
    for gpus in [&[3][..], &[1, 1], &[2, 2], &[2, 1]] {
        sample(MoeDispatchGemm { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype }, gpus, 2000);
        sample(MoeFfn { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype }, gpus, 2000);
    }
}

#[test]
fn no_pair_of_changes_of_experts_survives() {
    let dtype = DType::F32;
    for gpus in [&[2, 2][..], &[1, 1]] {
        sample_of(MoeDispatchGemm { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype }, gpus, 1500, 2);
        sample_of(MoeFfn { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype }, gpus, 1500, 2);
    }
}
