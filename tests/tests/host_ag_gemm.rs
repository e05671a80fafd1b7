//! AG+GEMM on the host executors: exact, whatever the schedule and the network.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use mkernel_core::{DType, Executor, Fault, FaultKind, LaneId, PutId, Rank, RoleName};
use mkernel_kernels::AgGemm;
use mkernel_sim::{Injection, Network, Options, Seeded, Threaded, find_races};
use mkernel_tests::ag_gemm::Case;

/// Small worlds of every kind with shapes that divide by nothing.
fn cases() -> Vec<Case> {
    let worlds: [&[u32]; 5] = [&[1], &[3], &[1, 1, 1], &[2, 2], &[3, 2]];
    let shapes = [(1, 1, 1), (13, 11, 7), (4, 29, 3), (37, 3, 17)];
    let mut cases = Vec::new();
    for gpus in worlds {
        for (m, n, k) in shapes {
            for dtype in [DType::Bf16, DType::F16, DType::F32] {
                cases.push(Case::new(gpus, AgGemm { m, n, k, dtype }));
            }
        }
    }
    cases
}

/// Runs three epochs with new inputs each and compares bit for bit with the exact product.
fn check(case: &Case, executor: &mut dyn Executor, seed: u64) {
    let verified = case.verified();
    for epoch in 0..3 {
        let inputs = case.inputs(seed.wrapping_mul(3).wrapping_add(epoch));
        case.write(executor, &verified, &inputs);
        let run = executor.launch().unwrap_or_else(|fault| panic!("{case:?} seed {seed} epoch {epoch}: {fault}"));
        assert_eq!(case.read(executor, &verified), case.oracle(&inputs), "{case:?} seed {seed} epoch {epoch}");
        let planned: Vec<_> = verified.programs().iter().map(|p| p.bytes_out().0).collect();
        assert_eq!(run.intra_out, planned, "{case:?}");
    }
}

#[test]
fn every_seed_of_the_seeded_executor_gives_the_exact_product() {
    for case in cases() {
        for seed in 0..6 {
            let mut executor = Seeded::new(case.verified(), Options { seed, ..Options::default() }).unwrap();
            check(&case, &mut executor, seed);
        }
    }
}

#[test]
fn threads_give_the_exact_product_with_a_ring_of_two() {
    for (seed, case) in cases().into_iter().enumerate() {
        let seed = seed as u64;
        let options = Options { seed, ring: 2, ..Options::default() };
        check(&case, &mut Threaded::new(case.verified(), options).unwrap(), seed);
    }
}

/// Five ranks on two nodes with every role on every rank.
fn uneven() -> Case {
    Case::new(&[3, 2], AgGemm { m: 37, n: 29, k: 17, dtype: DType::Bf16 })
}

#[test]
fn any_network_and_both_orderings_deliver_the_same_product() {
    use mkernel_core::transport::Ordering::{InOrder, Unordered};
    for ordering in [InOrder, Unordered] {
        for (depth, pieces, deliveries, idle) in [(1, 1, 1, 0), (1, 9, 1, 200), (64, 5, 2, 128), (2, 2, 9, 30)] {
            let network = Network { ordering, depth, pieces, deliveries, idle, injections: Vec::new() };
            for seed in 0..8 {
                let options = Options { seed, ring: 2, network: network.clone(), ..Options::default() };
                check(&uneven(), &mut Seeded::new(uneven().verified(), options).unwrap(), seed);
            }
        }
    }
    let options = Options { network: Network::prompt(), ..Options::default() };
    check(&uneven(), &mut Threaded::new(uneven().verified(), options).unwrap(), 0);
}

#[test]
fn epochs_and_cells_go_on_across_the_wrap_of_64_bits() {
    let options = || Options { first_epoch: u64::MAX - 1, ring: 2, ..Options::default() };
    check(&uneven(), &mut Seeded::new(uneven().verified(), options()).unwrap(), 1);
    check(&uneven(), &mut Threaded::new(uneven().verified(), options()).unwrap(), 2);
}

#[test]
fn real_inputs_give_the_same_bits_for_every_seed_and_executor() {
    let case = Case { op: AgGemm { dtype: DType::F32, ..uneven().op }, ..uneven() };
    let verified = case.verified();
    let mut random = fastrand::Rng::with_seed(11);
    let mut tensor = |len: u64| (0..len).map(|_| random.f32() - 0.5).collect::<Vec<_>>();
    let inputs = [tensor(case.op.m * case.op.k), tensor(case.op.k * case.op.n)];
    let run = |executor: &mut dyn Executor| {
        case.write(executor, &verified, &inputs);
        executor.launch().unwrap();
        case.read(executor, &verified).into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let expected = run(&mut Threaded::new(verified.clone(), Options::default()).unwrap());
    for seed in 0..20 {
        let options = Options { seed, ..Options::default() };
        assert_eq!(run(&mut Seeded::new(verified.clone(), options).unwrap()), expected, "seed {seed}");
    }
}

#[test]
fn a_seed_replays_every_step() {
    let run = |seed| {
        let options = Options { seed, trace: true, ..Options::default() };
        let mut executor = Seeded::new(uneven().verified(), options).unwrap();
        (0..2).map(|_| executor.launch().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// The fault of the first launch that has one, from both executors, within two deadlines of real time.
fn faults(injection: Injection) -> [Fault; 2] {
    let deadline = Duration::from_millis(300);
    let options = || {
        let network = Network { injections: vec![injection], ..Network::default() };
        Options { seed: 3, deadline, network, ..Options::default() }
    };
    let first = |executor: &mut dyn Executor| {
        let fault = (0..3).find_map(|_| executor.launch().err()).unwrap_or_else(|| panic!("{injection:?} goes unseen"));
        assert_eq!(executor.launch(), Err(fault), "a faulted executor stays poisoned");
        fault
    };
    let seeded = first(&mut Seeded::new(uneven().verified(), options()).unwrap());
    let start = std::time::Instant::now();
    let threaded = first(&mut Threaded::new(uneven().verified(), options()).unwrap());
    assert!(start.elapsed() < Duration::from_secs(10), "{injection:?}: a fault comes at the deadline, not later");
    [seeded, threaded]
}

#[test]
fn a_withheld_signal_names_the_instruction_and_cell_that_miss_it() {
    // Put 0 carries a chunk, whose tiles wait for it; put 1 is a credit, missed one epoch later.
    for (put, wanted) in [(0, 1), (1, 2)] {
        for fault in faults(Injection::WithholdSignal { rank: Rank(0), put: PutId(put) }) {
            let put = *uneven().verified().programs()[0].put(PutId(put));
            assert_eq!((fault.kind, fault.rank, fault.cell), (FaultKind::Deadline, put.target.rank, Some(put.cell)));
            assert_eq!((fault.wanted, fault.seen, fault.peer), (wanted, wanted - 1, Some(Rank(0))));
            assert!(fault.role.is_some() && fault.lane.is_some() && fault.instruction.is_some(), "{fault}");
        }
    }
}

/// The one CTA of a rank's send lane, which nobody helps, so that it surely gets its instructions.
const SENDER: u32 = 3;

#[test]
fn a_stuck_cta_is_a_deadline_at_a_wait_for_its_rank() {
    for fault in faults(Injection::StuckCta { rank: Rank(1), cta: SENDER, after: 0 }) {
        assert_eq!((fault.kind, fault.peer), (FaultKind::Deadline, Some(Rank(1))), "{fault}");
        assert!(fault.cell.is_some() && fault.wanted > fault.seen, "{fault}");
    }
}

#[test]
fn a_cta_that_dies_is_named_with_its_instruction() {
    for fault in faults(Injection::DyingCta { rank: Rank(2), cta: SENDER, after: 1 }) {
        assert_eq!((fault.kind, fault.rank), (FaultKind::Died, Rank(2)), "{fault}");
        assert_eq!((fault.role, fault.lane, fault.instruction), (Some(RoleName::Send), Some(LaneId(2)), Some(1)));
    }
}

#[test]
fn a_refused_post_and_a_failed_completion_name_the_put() {
    for injection in
        [Injection::RefusePost { rank: Rank(0), post: 2 }, Injection::FailCompletion { rank: Rank(0), post: 2 }]
    {
        for fault in faults(injection) {
            assert_eq!((fault.kind, fault.rank, fault.role), (FaultKind::Transport, Rank(0), Some(RoleName::Send)));
            assert!(fault.peer.is_some() && fault.instruction.is_some(), "{fault}");
        }
    }
}

#[test]
fn a_dead_peer_is_a_deadline_that_names_it() {
    for fault in faults(Injection::DeadPeer { rank: Rank(3) }) {
        assert_eq!((fault.kind, fault.peer), (FaultKind::Deadline, Some(Rank(3))), "{fault}");
    }
}

#[test]
fn a_stuck_proxy_is_a_full_ring_or_a_signal_that_never_comes() {
    for fault in faults(Injection::StuckProxy { rank: Rank(1), after: 1 }) {
        assert!(matches!(fault.kind, FaultKind::Deadline | FaultKind::FifoFull), "{fault}");
    }
}

#[test]
fn no_plan_has_a_race() {
    for case in cases() {
        find_races(&case.plan(), 4).unwrap_or_else(|race| panic!("{case:?}: {race}"));
    }
}
