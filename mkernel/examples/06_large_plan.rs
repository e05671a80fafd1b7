//! Plans for worlds far beyond this machine: counts, memory and bytes of one rank, proved with the ranks that write to it.
//!
//! `cargo run --release -p mkernel --example 06_large_plan`

use mkernel::{AgGemm, DType, Profile, RoleCtas, World, outline};

fn main() -> Result<(), mkernel::Error> {
    let world = World::uniform(16, 8).expect("sixteen nodes of eight");
    let problem = AgGemm { m: 65536, n: 65536, k: 65536, dtype: DType::Bf16 };
    let plan = outline(&problem, &world, &Profile::H200, &RoleCtas::default())?;
    let rank = &plan.ranks[0];
    println!("validated: {}", plan.scope.name());
    println!("{}: {} instructions, {} cells, {} puts", rank.rank, rank.instructions, rank.cells, rank.puts);
    println!("NIC bytes out {}, by the law {}", rank.inter_out, rank.inter_law);
    for role in &plan.roles {
        println!("{}: {} CTAs, {} tasks, modelled {:.0} us", role.role, role.ctas, role.tasks, role.modelled_us);
    }
    Ok(())
}
