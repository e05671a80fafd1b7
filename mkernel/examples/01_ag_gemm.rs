//! The main job in ten lines: AllGather + GEMM on two virtual nodes of four ranks each.
//!
//! `cargo run --release -p mkernel --example 01_ag_gemm`

use mkernel::check::{Extent, check};
use mkernel::{AgGemm, DType, Fill, Options, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::uniform(2, 4).expect("two nodes of four");
    let mut session = Session::new(world, Options::default());
    let problem = AgGemm { m: 512, n: 512, k: 256, dtype: DType::Bf16 };
    let tensors = inputs(&problem, Fill::Real, 1, 0)?;

    let (outputs, report) = session.operator(problem)?.run(&tensors)?;

    let errors = check(&problem, &tensors, &outputs, Extent::All, &[], 0)?;
    println!("{} elements hold, max abs error {:.2e}", errors.elements, errors.max_abs);
    println!("NIC bytes out per rank: {:?}", report.inter_out);
    println!("by the law:             {:?}", report.inter_law);
    Ok(())
}
