//! Sessions and instances, as a library user meets them.
#![cfg(feature = "sim")]
#![expect(clippy::unwrap_used, reason = "all of this is test code")]

use mkernel::check::{Extent, Failure, check};
use mkernel::tensor::TensorError;
use mkernel::{
    AgGemm, AllReduce, DType, Error, Fill, GemmAr, GemmRs, MoeDispatchGemm, MoeFfn, Options, Partial, Rank, RoleCtas,
    RoleName, Schedule, Session, Tensor, Tensors, World, inputs,
};
use mkernel_core::Placement;

fn problem(m: u64, n: u64, k: u64) -> AgGemm {
    AgGemm { m, n, k, dtype: DType::Bf16 }
}

fn session(gpus: &[u32]) -> Session {
    Session::new(World::new(gpus).unwrap(), Options::default())
}

#[test]
fn shapes_interleave_and_each_keeps_its_instance() {
    let mut session = session(&[2, 1]);
    for epoch in 0..4 {
        for (index, problem) in [problem(50, 40, 30), problem(3, 5, 7), problem(50, 40, 31)].into_iter().enumerate() {
            let tensors = inputs(&problem, Fill::Exact, 9, epoch).unwrap();
            let instance = session.operator(problem).unwrap();
            let (outputs, report) = instance.run(&tensors).unwrap();
            assert_eq!((instance.sequence(), instance.launches()), (index as u64, epoch + 1));
            let errors = check(&problem, &tensors, &outputs, Extent::All, &[], 0).unwrap();
            assert_eq!(errors.exact, problem.m * problem.n);
            assert_eq!(report.inter_out, report.inter_law);
        }
    }
}

#[test]
fn a_retired_instance_is_gone_and_the_next_one_is_new() {
    let mut session = session(&[2]);
    session.operator(problem(8, 8, 8)).unwrap();
    session.operator(problem(9, 9, 9)).unwrap();
    assert!(session.retire(&problem(8, 8, 8)));
    assert!(!session.retire(&problem(8, 8, 8)));
    assert_eq!(session.operator(problem(8, 8, 8)).unwrap().sequence(), 2);
    let (given, problem) = (inputs(&problem(9, 9, 9), Fill::Real, 1, 0).unwrap(), problem(9, 9, 9));
    assert!(session.operator(problem).unwrap().run(&given).is_ok());
}

#[test]
fn tensors_that_do_not_fit_are_refused_before_anything_runs() {
    let mut session = session(&[2]);
    let problem = problem(4, 6, 8);
    let good = inputs(&problem, Fill::Real, 1, 0).unwrap();
    let instance = session.operator(problem).unwrap();
    let [a, b] = ["a", "b"].map(|name| good.get(name).unwrap().clone());
    let wide = Tensor::from_f32(vec![4, 8], DType::F32, &[0.0; 32]).unwrap();
    let short = Tensor::from_f32(vec![3, 8], DType::Bf16, &[0.0; 24]).unwrap();
    let of = |tensors: Tensors, instance: &mut mkernel::Instance<AgGemm>| match instance.run(&tensors).unwrap_err() {
        Error::Tensor(error) => error,
        other => panic!("{other}"),
    };
    let missing = of(Tensors::from([("a", a)]), instance);
    assert!(matches!(missing, TensorError::Missing { name: "b", .. }), "{missing}");
    let dtype = of(Tensors::from([("a", wide), ("b", b.clone())]), instance);
    assert!(matches!(dtype, TensorError::DType { name: "a", found: DType::F32, .. }), "{dtype}");
    let shape = of(Tensors::from([("a", short), ("b", b)]), instance);
    assert!(matches!(shape, TensorError::Shape { name: "a", .. }), "{shape}");
    assert_eq!(instance.launches(), 0);
    assert!(instance.run(&good).is_ok());
}

#[test]
fn parts_of_ranks_written_by_hand_give_the_same_as_global_tensors() {
    let world = World::new(&[2, 1]).unwrap();
    let problem = problem(7, 10, 6);
    let tensors = inputs(&problem, Fill::Real, 4, 0).unwrap();
    let mut session = Session::new(world.clone(), Options::default());
    let (wanted, _) = session.operator(problem).unwrap().run(&tensors).unwrap();

    let mut by_hand = Session::new(world.clone(), Options::default());
    let instance = by_hand.operator(problem).unwrap();
    for rank in world.ranks() {
        let parts: Vec<_> = instance.placements(rank).copied().filter(|p| p.tensor != "c").collect();
        for part in parts {
            let tensor = tensors.get(part.tensor).unwrap();
            let row = tensor.shape()[1] as usize * 2;
            let (first, column) = (part.row as usize, part.column as usize * 2);
            let rows = (first..first + part.span.rows as usize).map(|r| r * row + column);
            let bytes: Vec<u8> =
                rows.flat_map(|at| tensor.bytes()[at..at + part.span.row_bytes as usize].to_vec()).collect();
            instance.write(&part, &bytes);
        }
    }
    instance.launch().unwrap();
    assert_eq!(instance.gather().unwrap(), wanted);
    let c = instance.placements(Rank(0)).find(|p| p.tensor == "c").unwrap();
    assert_eq!(instance.read(c)[..2], wanted.get("c").unwrap().bytes()[..2]);
}

#[test]
fn a_sample_takes_an_element_of_every_tile_and_finds_a_wrong_one() {
    let mut session = session(&[2, 2]);
    let problem = problem(300, 600, 16);
    let tensors = inputs(&problem, Fill::Real, 2, 0).unwrap();
    let instance = session.operator(problem).unwrap();
    let (outputs, _) = instance.run(&tensors).unwrap();
    let tiles = instance.tiles();
    let covered: u64 = tiles.iter().map(|t| t.rows * t.columns).sum();
    assert_eq!(covered, 300 * 600, "tiles cover the output once");
    let errors = check(&problem, &tensors, &outputs, Extent::Sampled, &tiles, 1).unwrap();
    assert_eq!(errors.elements, tiles.len() as u64);

    for tile in &tiles {
        let mut wrong = outputs.get("c").unwrap().clone();
        for row in tile.row..tile.row + tile.rows {
            let start = (row * 600 + tile.column) as usize * 2;
            wrong.bytes_mut()[start..start + tile.columns as usize * 2].fill(0x41);
        }
        let wrong = Tensors::from([("c", wrong)]);
        for seed in 0..3 {
            let failure = check(&problem, &tensors, &wrong, Extent::Sampled, &tiles, seed).unwrap_err();
            assert!(matches!(failure, Failure::Element { .. }), "seed {seed}: {failure}");
        }
    }
}

#[test]
fn a_replica_that_differs_in_one_bit_is_found_on_whichever_rank_it_is() {
    let problem =
        GemmAr { m: 5, n: 7, k: 6, dtype: DType::F32, partial: Partial::default(), all_reduce: AllReduce::Auto };
    for rank in 0..3 {
        let mut session = session(&[2, 1]);
        let given = inputs(&problem, Fill::Real, 3, 0).unwrap();
        let instance = session.operator(problem).unwrap();
        let (wanted, _) = instance.run(&given).unwrap();
        let c = *instance.placements(Rank(rank)).find(|p| p.tensor == "c").unwrap();
        let mut bytes = instance.read(&c);
        assert_eq!(bytes, wanted.get("c").unwrap().bytes(), "every rank has all of C");
        bytes[(2 * 7 + 3) * 4] ^= 1;
        instance.write(&c, &bytes);
        let failure = instance.gather().unwrap_err();
        // Which of two ranks is wrong, nobody can say: named is the second.
        let second = rank.max(1);
        let is_named = matches!(failure, Failure::Replica { tensor: "c", row: 2, column: 3, rank } if rank == second);
        assert!(is_named, "rank {rank}: {failure}");
        bytes[(2 * 7 + 3) * 4] ^= 1;
        instance.write(&c, &bytes);
        assert_eq!(instance.gather().unwrap(), wanted);
    }
}

#[test]
fn an_infinity_that_meets_a_partial_beyond_its_range_may_be_no_number_and_any_other_may_not() {
    let f16 = |shape: [u64; 2], values: &[f32]| Tensor::from_f32(shape.to_vec(), DType::F16, values).unwrap();
    // Rank 0 adds an infinity, rank 1 minus 2^30: as a partial in f16 that is minus infinity.
    let given = Tensors::from([("a", f16([1, 2], &[f32::INFINITY, 32768.0])), ("b", f16([2, 1], &[1.0, -32768.0]))]);
    let none = Tensors::from([("c", f16([1, 1], &[f32::NAN]))]);
    for (partial, is_infinite) in [(Partial::Narrow, false), (Partial::F32, true)] {
        let problem = GemmRs { m: 1, n: 1, k: 2, dtype: DType::F16, partial };
        let (found, _) = session(&[1, 1]).operator(problem).unwrap().run(&given).unwrap();
        assert_eq!(found.get("c").unwrap().to_f32()[0] == f32::INFINITY, is_infinite);
        let verdict = |outputs| check(&problem, &given, outputs, Extent::All, &[], 0);
        assert!(verdict(&found).is_ok());
        assert_eq!(verdict(&none).is_ok(), !is_infinite);
    }
}

#[test]
fn a_row_said_to_be_where_no_row_is_is_an_error() {
    let problem = MoeDispatchGemm { tokens: 4, hidden: 3, inner: 2, experts: 3, topk: 2, dtype: DType::F32 };
    let mut session = session(&[2]);
    let given = inputs(&problem, Fill::Real, 3, 0).unwrap();
    let instance = session.operator(problem).unwrap();
    instance.run(&given).unwrap();
    let routed = instance.programs().programs()[1].routed[0];
    let places = Placement { tensor: "y", span: routed.rows, row: 0, column: 0 };
    let mut bytes = instance.read(&places);
    bytes[5 * 4..6 * 4].copy_from_slice(&routed.span.rows.to_le_bytes());
    instance.write(&places, &bytes);
    let failure = instance.gather().unwrap_err();
    assert!(matches!(failure, Failure::Place { tensor: "y", row: 5, rank: 1, .. }), "{failure}");
}

#[test]
fn roles_that_cannot_work_are_a_plan_error() {
    let mut roles = RoleCtas::default();
    roles.set(RoleName::Intra, 0);
    let options = Options { roles, schedule: Schedule::Seeded(1), ..Options::default() };
    let mut session = Session::new(World::new(&[2]).unwrap(), options);
    assert!(matches!(session.operator(problem(8, 8, 8)), Err(Error::Plan(_))));
    assert!(matches!(session.operator(problem(0, 8, 8)), Err(Error::Plan(_))));
}

#[test]
fn another_split_of_roles_between_launches_changes_nothing_but_time() {
    for schedule in [Schedule::Threads, Schedule::Seeded(4)] {
        let options = Options { schedule, ..Options::default() };
        let mut session = Session::new(World::new(&[2, 1]).unwrap(), options);
        let problem = problem(300, 40, 30);
        let instance = session.operator(problem).unwrap();
        for (epoch, (compute, send)) in [(1, 1), (3, 2), (1, 4), (7, 1), (2, 3)].into_iter().enumerate() {
            let mut roles = RoleCtas::default();
            roles.set(RoleName::Compute, compute);
            roles.set(RoleName::Send, send);
            instance.set_roles(&roles).unwrap();
            let tensors = inputs(&problem, Fill::Exact, 2, epoch as u64).unwrap();
            let (outputs, report) = instance.run(&tensors).unwrap();
            let of = |role| report.roles.iter().filter(move |r| r.role == role).map(|r| r.ctas).collect::<Vec<_>>();
            assert_eq!((of(RoleName::Compute), of(RoleName::Send)), (vec![compute], vec![send]));
            assert_eq!(check(&problem, &tensors, &outputs, Extent::All, &[], 0).unwrap().exact, 300 * 40);
        }
        let mut none = RoleCtas::default();
        none.set(RoleName::Compute, 0);
        assert!(matches!(instance.set_roles(&none), Err(Error::Plan(_))));
    }
}

#[test]
fn two_thousand_epochs_run_across_the_wrap_of_the_counters() {
    use mkernel_core::{Executor, validate};
    use mkernel_kernels::{Operator, Profile};
    let (problem, world) = (problem(3, 2, 2), World::new(&[2, 1]).unwrap());
    let plan = |rank| problem.plan(&world, rank, &Profile::HOST, &RoleCtas::default()).unwrap();
    let verified = std::sync::Arc::new(validate(world.ranks().map(plan).collect()).unwrap());
    let options = mkernel_sim::Options { first_epoch: u64::MAX - 999, ring: 2, ..mkernel_sim::Options::default() };
    let mut executor = mkernel_sim::Threaded::new(verified.clone(), options).unwrap();
    for epoch in 0..2000u16 {
        // A of ones and twos by epoch, B of ones: each element of C is the sum of a row of A.
        let value = 1.0 + f32::from(epoch % 2);
        for placement in verified.programs().iter().flat_map(|p| &p.inputs) {
            let value = if placement.tensor == "a" { value } else { 1.0 };
            let bytes = half::bf16::from_f32(value).to_le_bytes();
            executor.write(&placement.span, &bytes.repeat(placement.span.bytes() as usize / 2));
        }
        executor.launch().unwrap();
        for placement in verified.programs().iter().flat_map(|p| &p.outputs) {
            let mut bytes = vec![0; placement.span.bytes() as usize];
            executor.read(&placement.span, &mut bytes);
            let wanted = half::bf16::from_f32(2.0 * value).to_le_bytes();
            assert!(bytes.chunks(2).all(|element| element == wanted), "epoch {epoch}");
        }
    }
}

#[test]
fn experts_of_changing_sizes_interleave_with_a_product_in_one_session() {
    let mut session = session(&[2, 1]);
    for epoch in 0..3 {
        for tokens in [1, 40, 7] {
            let layer = MoeFfn { tokens, hidden: 24, inner: 16, experts: 5, topk: 2, dtype: DType::Bf16 };
            let dispatch = MoeDispatchGemm { tokens, hidden: 24, inner: 16, experts: 5, topk: 2, dtype: DType::F16 };
            let given = inputs(&layer, Fill::Real, 3, epoch).unwrap();
            let (found, report) = session.operator(layer).unwrap().run(&given).unwrap();
            check(&layer, &given, &found, Extent::All, &[], 0).unwrap();
            assert_eq!(report.inter_out, report.inter_law);
            let given = inputs(&dispatch, Fill::Exact, 4, epoch).unwrap();
            let instance = session.operator(dispatch).unwrap();
            let (found, _) = instance.run(&given).unwrap();
            let errors = check(&dispatch, &given, &found, Extent::All, &[], 0).unwrap();
            assert_eq!((errors.elements, errors.exact), (tokens * 32, tokens * 32));
            let tiles = instance.tiles();
            assert!(check(&dispatch, &given, &found, Extent::Sampled, &tiles, 1).unwrap().elements > 0);
            let product = problem(30, 20, 10);
            let given = inputs(&product, Fill::Exact, 5, epoch).unwrap();
            let (found, _) = session.operator(product).unwrap().run(&given).unwrap();
            check(&product, &given, &found, Extent::All, &[], 0).unwrap();
        }
    }
}

#[test]
fn the_check_of_experts_names_a_wrong_element_and_takes_no_zeros_for_an_answer() {
    let mut session = session(&[1]);
    let layer = MoeFfn { tokens: 9, hidden: 16, inner: 8, experts: 3, topk: 2, dtype: DType::Bf16 };
    let given = inputs(&layer, Fill::Real, 3, 0).unwrap();
    let (found, _) = session.operator(layer).unwrap().run(&given).unwrap();
    let mut values = found.get("y").unwrap().to_f32();
    values[5 * 16 + 3] += 2.0;
    let wrong = Tensors::from([("y", Tensor::from_f32(vec![9, 16], DType::Bf16, &values).unwrap())]);
    let failure = check(&layer, &given, &wrong, Extent::All, &[], 0).unwrap_err();
    assert!(matches!(failure, Failure::Element { row: 5, column: 3, .. }), "{failure}");
    let zeros = Tensors::from([("y", Tensor::from_f32(vec![9, 16], DType::Bf16, &[0.0; 144]).unwrap())]);
    assert!(check(&layer, &given, &zeros, Extent::All, &[], 0).is_err());
    assert!(check(&layer, &given, &zeros, Extent::Sampled, &session.operator(layer).unwrap().tiles(), 0).is_err());
}
