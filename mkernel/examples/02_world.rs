//! World, rank, node: nodes may differ, shares may differ, ranks may have nothing to do.
//!
//! `cargo run --release -p mkernel --example 02_world`

use mkernel::{AgGemm, DType, Fill, Options, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    for gpus in [&[1][..], &[3, 2], &[1, 4, 2]] {
        let world = World::new(gpus).expect("every node has a GPU");
        let mut session = Session::new(world.clone(), Options::default());
        // Five rows: in a world of seven, two ranks own none of A.
        let problem = AgGemm { m: 5, n: 64, k: 32, dtype: DType::F32 };
        let instance = session.operator(problem)?;
        instance.run(&inputs(&problem, Fill::Exact, 1, 0)?)?;
        println!("world {world}: {} ranks on {} nodes", world.size(), world.node_count());
        for rank in world.ranks() {
            let parts: Vec<String> = instance
                .placements(rank)
                .map(|p| format!("{}[{}.., {}..] of {} B", p.tensor, p.row, p.column, p.span.bytes()))
                .collect();
            println!("  {rank} on node {}: {}", world.node_of(rank).0, parts.join(", "));
        }
    }
    Ok(())
}
