//! Operators beside each other: in one session, in two at once, with other sizes and splits from launch to launch. Every
//! result is compared bit for bit with that of the operator alone.
#![cfg(feature = "sim")]
#![expect(clippy::unwrap_used, reason = "all of this is test code")]

use mkernel::check::{Extent, Reference, check};
use mkernel::ring_attention::Layout;
use mkernel::{
    AgGemm, AllReduce, DType, Fill, GemmAr, GemmRs, Mask, MoeDispatchGemm, MoeFfn, Options, Partial, RingAttention,
    RoleCtas, RoleName, Schedule, Session, Tensors, World, inputs,
};

/// Launches of each operator.
const EPOCHS: u64 = 3;

/// Runs an operator in a session, with the inputs of an epoch, and with other CTAs for the roles that it has
/// if they are given.
type Runner = Box<dyn Fn(&mut Session, u64, Option<&RoleCtas>) -> Tensors>;

fn runner<O: Reference + PartialEq + Clone + 'static>(operator: O) -> Runner {
    Box::new(move |session, epoch, roles| {
        let given = inputs(&operator, Fill::Real, 7, epoch).unwrap();
        let instance = session.operator(operator.clone()).unwrap();
        if let Some(asked) = roles {
            let mut roles = RoleCtas::default();
            for lane in instance.programs().programs().iter().flat_map(|p| &p.lanes) {
                asked.get(lane.role).into_iter().for_each(|ctas| roles.set(lane.role, ctas));
            }
            instance.set_roles(&roles).unwrap();
        }
        let (found, report) = instance.run(&given).unwrap();
        assert_eq!(report.inter_out, report.inter_law);
        check(&operator, &given, &found, Extent::All, &[], 0).unwrap();
        found
    })
}

/// All six operators; `size` makes them larger.
fn operators(size: u64) -> Vec<(&'static str, Runner)> {
    let (m, n, k, dtype) = (20 + 13 * size, 9 + size, 11 + 3 * size, DType::Bf16);
    let (tokens, hidden, inner, experts, topk) = (5 + 9 * size, 12, 8, 5, 2);
    let partial = Partial::default();
    let (batch, heads, kv_heads, dim, seq) = (1, 2, 1, 16, 9 + 14 * size);
    let attention = |mask, layout| RingAttention { batch, heads, kv_heads, seq, dim, mask, layout, dtype };
    vec![
        ("ag-gemm", runner(AgGemm { m, n, k, dtype })),
        ("gemm-rs", runner(GemmRs { m, n, k, dtype, partial })),
        ("gemm-ar", runner(GemmAr { m, n, k, dtype, partial, all_reduce: AllReduce::TwoStep })),
        ("moe-dispatch-gemm", runner(MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype })),
        ("moe-ffn", runner(MoeFfn { tokens, hidden, inner, experts, topk, dtype })),
        ("ring-attention", runner(attention(Mask::Causal, Layout::ZigZag))),
    ]
}

fn session(schedule: Schedule) -> Session {
    Session::new(World::new(&[2, 1]).unwrap(), Options { schedule, ..Options::default() })
}

/// What each epoch of an operator alone gives.
fn alone(run: &Runner) -> Vec<Tensors> {
    let mut session = session(Schedule::Seeded(1));
    (0..EPOCHS).map(|epoch| run(&mut session, epoch, None)).collect()
}

#[test]
fn every_pair_of_operators_interleaves_in_one_session() {
    let operators = operators(1);
    let alone: Vec<_> = operators.iter().map(|(_, run)| alone(run)).collect();
    for (i, (first, run)) in operators.iter().enumerate() {
        for (j, (second, other)) in operators.iter().enumerate().skip(i + 1) {
            let mut session = session(Schedule::Threads);
            for epoch in 0..EPOCHS {
                let order = if epoch % 2 == 0 { [(i, run), (j, other)] } else { [(j, other), (i, run)] };
                for (index, run) in order {
                    let found = run(&mut session, epoch, None);
                    assert_eq!(found, alone[index][epoch as usize], "{first} with {second}, epoch {epoch}");
                }
            }
        }
    }
}

#[test]
fn two_sessions_in_one_process_run_at_the_same_time() {
    let wanted: Vec<_> = operators(0).iter().map(|(_, run)| alone(run)).collect();
    std::thread::scope(|scope| {
        for is_backwards in [false, true] {
            let wanted = &wanted;
            scope.spawn(move || {
                let (mut session, operators) = (session(Schedule::Threads), operators(0));
                for epoch in 0..EPOCHS {
                    for position in 0..operators.len() {
                        let index = if is_backwards { operators.len() - 1 - position } else { position };
                        let (name, run) = &operators[index];
                        assert_eq!(run(&mut session, epoch, None), wanted[index][epoch as usize], "{name}");
                    }
                }
            });
        }
    });
}

#[test]
fn sizes_change_from_launch_to_launch_on_one_session() {
    let sizes: Vec<_> = [2, 0, 1].map(operators).into();
    let wanted: Vec<Vec<_>> = sizes.iter().map(|ops| ops.iter().map(|(_, run)| alone(run)).collect()).collect();
    let mut session = session(Schedule::Threads);
    for epoch in 0..EPOCHS {
        for (operators, wanted) in sizes.iter().zip(&wanted) {
            for ((name, run), wanted) in operators.iter().zip(wanted) {
                assert_eq!(run(&mut session, epoch, None), wanted[epoch as usize], "{name}, epoch {epoch}");
            }
        }
    }
    // Every shape was planned once: the next instance is the first after all of them.
    let next = AgGemm { m: 1, n: 1, k: 1, dtype: DType::F32 };
    assert_eq!(session.operator(next).unwrap().sequence(), 18);
}

#[test]
fn another_split_of_roles_between_launches_changes_no_bit_of_any_operator() {
    let mut random = fastrand::Rng::with_seed(3);
    for (name, run) in operators(1) {
        let wanted = alone(&run);
        for schedule in [Schedule::Threads, Schedule::Seeded(5)] {
            let mut session = session(schedule);
            for (epoch, wanted) in (0..).zip(&wanted) {
                let mut roles = RoleCtas::default();
                for role in RoleName::ALL {
                    roles.set(role, random.u32(1..6));
                }
                assert_eq!(run(&mut session, epoch, Some(&roles)), *wanted, "{name}, seed 3, epoch {epoch}");
            }
        }
    }
}
