//! Executor: threads or a seeded scheduler, any seed, any split of CTAs between roles - the same bits.
//!
//! `cargo run --release -p mkernel --example 05_schedules`

use mkernel::{AgGemm, DType, Fill, Options, RoleCtas, RoleName, Schedule, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::new(&[2, 1]).expect("every node has a GPU");
    let problem = AgGemm { m: 150, n: 140, k: 70, dtype: DType::Bf16 };
    let tensors = inputs(&problem, Fill::Real, 3, 0)?;
    let mut narrow = RoleCtas::default();
    narrow.set(RoleName::Compute, 1);

    let mut first = None;
    for (name, schedule, roles) in [
        ("threads", Schedule::Threads, RoleCtas::default()),
        ("seed 1", Schedule::Seeded(1), RoleCtas::default()),
        ("seed 2", Schedule::Seeded(2), RoleCtas::default()),
        ("one compute CTA", Schedule::Threads, narrow),
    ] {
        let mut session = Session::new(world.clone(), Options { schedule, roles, ..Options::default() });
        let (outputs, report) = session.operator(problem)?.run(&tensors)?;
        let is_same = first.get_or_insert_with(|| outputs.clone()) == &outputs;
        let tasks: u64 = report.roles.iter().map(|r| r.tasks).sum();
        println!("{name}: {tasks} instructions, same bits as the first: {is_same}");
        assert!(is_same, "results do not depend on the schedule");
    }
    Ok(())
}
