//! GEMM + ReduceScatter on nodes of three and two ranks: one rounded partial per row and remote node crosses the NIC.
//!
//! `cargo run --release -p mkernel --example 07_gemm_rs`

use mkernel::check::{Extent, check};
use mkernel::{DType, Fill, GemmRs, Options, Partial, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::new(&[3, 2]).expect("nodes of three and two");
    let mut session = Session::new(world, Options::default());
    for partial in [Partial::Narrow, Partial::F32] {
        let problem = GemmRs { m: 500, n: 256, k: 640, dtype: DType::Bf16, partial };
        let tensors = inputs(&problem, Fill::Real, 1, 0)?;

        let (outputs, report) = session.operator(problem)?.run(&tensors)?;

        let errors = check(&problem, &tensors, &outputs, Extent::All, &[], 0)?;
        println!("{partial:?}: {} elements hold, max abs error {:.2e}", errors.elements, errors.max_abs);
        // Ranks 3 and 4 collect for the three owners of the other node, rank 3 for two of them.
        println!("  NIC bytes out per rank: {:?}", report.inter_out);
        println!("  by the law:             {:?}", report.inter_law);
    }
    Ok(())
}
