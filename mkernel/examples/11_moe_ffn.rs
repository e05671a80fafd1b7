//! A layer of experts on two virtual nodes: who needs whom is data, and only those rows travel.
//!
//! `cargo run --release -p mkernel --example 11_moe_ffn`

use mkernel::check::{Extent, check};
use mkernel::{DType, Fill, MoeFfn, Options, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::uniform(2, 2).expect("two nodes of two");
    let mut session = Session::new(world, Options::default());
    let layer = MoeFfn { tokens: 96, hidden: 64, inner: 48, experts: 8, topk: 2, dtype: DType::Bf16 };
    for epoch in 0..2 {
        let tensors = inputs(&layer, Fill::Real, 1, epoch)?;
        let (outputs, report) = session.operator(layer)?.run(&tensors)?;
        let errors = check(&layer, &tensors, &outputs, Extent::All, &[], 0)?;
        println!("{} elements hold, max abs error {:.2e}", errors.elements, errors.max_abs);
        println!("NIC bytes out per rank:        {:?}", report.inter_out);
        println!("as the table of experts needs: {:?}", report.inter_law);
    }
    Ok(())
}
