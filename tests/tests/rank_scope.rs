//! One rank of a large world is proved with what its peers have to do with it, and that is enough to find what is wrong.
#![allow(clippy::unwrap_used)]

use mkernel::ring_attention::Layout;
use mkernel::{AgGemm, AllReduce, DType, GemmAr, GemmRs, Mask, MoeFfn, Partial, RingAttention};
use mkernel_core::validate::validate_rank;
use mkernel_core::{Program, Scope, Violation, validate};
use mkernel_kernels::Operator;
use mkernel_tests::mutate::{apply_all, mutations};
use mkernel_tests::original::Original;

/// The seed of the samples.
const SEED: u64 = 5;

/// Proves each rank with parts of the other programs.
fn ranks(programs: &[Program]) -> Vec<Result<Scope, Violation>> {
    let prove = |own: &Program| {
        let others = programs.iter().filter(|p| p.rank != own.rank).map(|p| p.toward(own));
        validate_rank(std::iter::once(own.clone()).chain(others).collect(), own.rank).map(|v| v.scope())
    };
    programs.iter().map(prove).collect()
}

fn check(operator: impl Operator + 'static) {
    let name = operator.name();
    let original = Original::new(operator, &[2, 2]);
    assert_eq!(ranks(original.programs()), vec![Ok(Scope::Rank); 4], "{name}");
    let sites = mutations(original.programs());
    let mut random = fastrand::Rng::with_seed(SEED);
    let (mut found, mut missed) = (0, 0);
    for _ in 0..400 {
        let Some(mutant) = apply_all(&[sites[random.usize(0..sites.len())]], original.programs()) else { continue };
        let rank_by_rank = ranks(&mutant).iter().any(Result::is_err);
        match validate(mutant) {
            Ok(_) => {}
            // What no rank can see alone: a cycle of waits through several of them.
            Err(Violation::Deadlock { .. }) if !rank_by_rank => missed += 1,
            Err(violation) => {
                assert!(rank_by_rank, "{name}: {violation}");
                found += 1;
            }
        }
    }
    println!("{name}, seed {SEED}: {found} unsound mutants found rank by rank, {missed} deadlocks of several ranks");
    assert!(found > 100);
}

#[test]
fn every_rank_is_proved_alone_and_no_unsound_mutant_slips_through() {
    let (dtype, partial) = (DType::Bf16, Partial::default());
    check(AgGemm { m: 9, n: 7, k: 3, dtype });
    check(GemmRs { m: 9, n: 7, k: 10, dtype, partial });
    for all_reduce in [AllReduce::OneShot, AllReduce::TwoStep] {
        check(GemmAr { m: 9, n: 7, k: 10, dtype, partial, all_reduce });
    }
    let (mask, layout) = (Mask::Causal, Layout::ZigZag);
    check(RingAttention { batch: 1, heads: 2, kv_heads: 1, seq: 13, dim: 16, mask, layout, dtype });
    check(MoeFfn { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype });
}
