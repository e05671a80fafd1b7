//! GEMM + AllReduce by both ways: reduce-scatter then all-gather, or every node's partials to every other node.
//!
//! `cargo run --release -p mkernel --example 08_gemm_ar`

use mkernel::check::{Extent, check};
use mkernel::{AllReduce, DType, Fill, GemmAr, Options, Partial, Profile, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::uniform(3, 2).expect("three nodes of two");
    let mut session = Session::new(world.clone(), Options::default());
    for all_reduce in [AllReduce::TwoStep, AllReduce::OneShot] {
        let problem = GemmAr { m: 384, n: 256, k: 384, dtype: DType::Bf16, partial: Partial::Narrow, all_reduce };
        let tensors = inputs(&problem, Fill::Real, 1, 0)?;

        let (outputs, report) = session.operator(problem)?.run(&tensors)?;

        check(&problem, &tensors, &outputs, Extent::All, &[], 0)?;
        println!("{all_reduce:?}: NIC bytes out of rank 0 {}, by the law {}", report.inter_out[0], report.inter_law[0]);
    }
    for m in [256, 1024, 16384] {
        let (dtype, partial, all_reduce) = (DType::Bf16, Partial::Narrow, AllReduce::Auto);
        let form = GemmAr { m, n: m, k: m, dtype, partial, all_reduce }.form(&world, &Profile::H200);
        println!("m = n = {m}: the cost model takes {form:?} on H200s");
    }
    Ok(())
}
