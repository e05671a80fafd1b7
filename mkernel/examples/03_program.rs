//! Region, put, signal, wait, program, role: what the planner makes for one rank, printed instruction by instruction.
//!
//! `cargo run --release -p mkernel --example 03_program`

use mkernel::{AgGemm, DType, Operator, Profile, Rank, RoleCtas, World};
use mkernel_core::{Op, validate};

fn main() {
    let world = World::uniform(2, 2).expect("two nodes of two");
    let problem = AgGemm { m: 256, n: 64, k: 64, dtype: DType::Bf16 };
    let plan = |rank| problem.plan(&world, rank, &Profile::HOST, &RoleCtas::default()).expect("a small problem");
    let programs: Vec<_> = world.ranks().map(plan).collect();

    let program = &programs[Rank(0).0 as usize];
    for region in &program.regions {
        println!("region {}: {} bytes", region.name, region.bytes);
    }
    for (lane, index, instruction) in program.instructions() {
        let waits: Vec<u32> = program
            .segments(instruction)
            .iter()
            .flat_map(|segment| program.waits(segment).iter().map(|cell| cell.0))
            .collect();
        let signals: Vec<String> =
            program.signals(instruction).iter().map(|s| format!("{} cell {}", s.rank, s.cell.0)).collect();
        let role = program.lanes[usize::from(lane.0)].role;
        print!("{role} {index}: {} waits for cells {waits:?}, signals {signals:?}", instruction.op.name());
        if let Op::Put(id) = instruction.op {
            let put = program.put(id);
            print!(", puts {} bytes to {} and fills its cell {}", put.source.bytes(), put.target.rank, put.cell.0);
        }
        println!();
    }

    let proved = validate(programs).expect("planned programs hold");
    println!("proved: {}", proved.scope().name());
}
