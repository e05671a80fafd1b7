//! Counters that wrap: 2000 launches in a row of every operator, half of them before the wrap.
#![allow(clippy::unwrap_used)]

use mkernel::ring_attention::Layout;
use mkernel::{AgGemm, AllReduce, DType, GemmAr, GemmRs, Mask, MoeDispatchGemm, MoeFfn, Partial, RingAttention};
use mkernel_kernels::Operator;
use mkernel_sim::{Options, Seeded};
use mkernel_tests::original::Original;

/// Launches on one executor; each result is that of a fresh one, bit for bit.
fn run(operator: impl Operator + 'static) {
    let name = operator.name();
    let original = Original::new(operator, &[2, 1]);
    let options = Options { first_epoch: u64::MAX - 999, seed: 6, ring: 2, ..Options::default() };
    let mut executor = Seeded::new(original.verified().clone(), options).unwrap();
    for epoch in 0..2000 {
        // Neighbouring epochs have other inputs, so a stale read shows.
        let is_same = original.is_same(original.verified(), &mut executor, epoch % 7);
        assert!(is_same.unwrap_or_else(|fault| panic!("{name}, epoch {epoch}: {fault}")), "{name}, epoch {epoch}");
    }
}

#[test]
fn two_thousand_epochs_of_products_cross_the_wrap() {
    let (m, n, k, dtype, partial) = (5, 2, 3, DType::Bf16, Partial::default());
    run(AgGemm { m, n: 3, k, dtype });
    run(GemmRs { m, n, k, dtype, partial });
    run(GemmAr { m, n, k, dtype, partial, all_reduce: AllReduce::OneShot });
    run(GemmAr { m, n, k, dtype, partial, all_reduce: AllReduce::TwoStep });
}

#[test]
fn two_thousand_epochs_of_experts_cross_the_wrap() {
    let (tokens, hidden, inner, experts, topk, dtype) = (3, 2, 2, 3, 2, DType::F32);
    run(MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype });
    run(MoeFfn { tokens, hidden, inner, experts, topk, dtype });
}

#[test]
fn two_thousand_epochs_of_attention_cross_the_wrap() {
    let (batch, heads, kv_heads, seq, dim, dtype) = (1, 1, 1, 5, 16, DType::F32);
    for (mask, layout) in [(Mask::None, Layout::Plain), (Mask::Causal, Layout::ZigZag)] {
        run(RingAttention { batch, heads, kv_heads, seq, dim, mask, layout, dtype });
    }
}
