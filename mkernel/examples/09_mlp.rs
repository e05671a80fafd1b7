//! Two operators in one session: a tensor-parallel MLP block, `y = relu(x W1) W2`.
//!
//! AllGather + GEMM leaves each rank its columns of the hidden layer, which are the columns of A that
//! GEMM + ReduceScatter wants there: the hidden layer never leaves its rank.
//!
//! `cargo run --release -p mkernel --example 09_mlp`

use mkernel::check::{Extent, check};
use mkernel::{AgGemm, DType, Fill, GemmRs, Instance, Options, Partial, Rank, Session, World, inputs};
use mkernel_core::Placement;

fn main() -> Result<(), mkernel::Error> {
    let world = World::uniform(2, 2).expect("two nodes of two");
    let mut session = Session::new(world.clone(), Options::default());
    let (tokens, hidden, inner, dtype) = (300, 128, 512, DType::Bf16);
    let up = AgGemm { m: tokens, n: inner, k: hidden, dtype };
    let down = GemmRs { m: tokens, n: hidden, k: inner, dtype, partial: Partial::Narrow };

    for epoch in 0..3 {
        let first = inputs(&up, Fill::Real, 1, epoch)?;
        let up_instance = session.operator(up)?;
        let (layer, report) = up_instance.run(&first)?;
        check(&up, &first, &layer, Extent::All, &[], 0)?;
        println!("epoch {epoch}: {} NIC bytes to gather x", report.inter_out.iter().sum::<u64>());
        let parts: Vec<Vec<u8>> =
            world.ranks().map(|r| relu(up_instance.read(&placement(up_instance, r, "c")))).collect();

        let mut second = inputs(&down, Fill::Real, 2, epoch)?;
        let down_instance = session.operator(down)?;
        down_instance.scatter(&second)?;
        for (rank, part) in world.ranks().zip(&parts) {
            let a = placement(down_instance, rank, "a");
            down_instance.write(&a, part);
        }
        let report = down_instance.launch()?;
        let y = down_instance.gather()?;

        // The check wants A as one global tensor.
        let mut a = layer.get("c").expect("ag-gemm gives c").clone();
        let positive = relu(a.bytes().to_vec());
        a.bytes_mut().copy_from_slice(&positive);
        second.insert("a", a);
        let errors = check(&down, &second, &y, Extent::All, &[], 0)?;
        println!("         {} NIC bytes to scatter y", report.inter_out.iter().sum::<u64>());
        println!("         {} elements of y hold, max abs error {:.2e}", errors.elements, errors.max_abs);
    }
    Ok(())
}

/// Where a rank's part of a tensor lives.
fn placement<O: mkernel::Operator>(instance: &Instance<O>, rank: Rank, tensor: &str) -> Placement {
    *instance.placements(rank).find(|p| p.tensor == tensor).expect("every rank has a part of this tensor")
}

/// Negative bf16 become zero.
fn relu(mut bytes: Vec<u8>) -> Vec<u8> {
    for element in bytes.chunks_exact_mut(2).filter(|e| e[1] & 0x80 != 0) {
        element.fill(0);
    }
    bytes
}
