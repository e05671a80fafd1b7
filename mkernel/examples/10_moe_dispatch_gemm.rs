//! Tokens that go to the experts they chose, given by hand: a token of which every slot is dropped goes nowhere.
//!
//! `cargo run --release -p mkernel --example 10_moe_dispatch_gemm`

use mkernel::{DType, Fill, MoeDispatchGemm, Options, Session, Tensor, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::new(&[2, 1]).expect("nodes of two and one");
    let mut session = Session::new(world, Options::default());
    let problem = MoeDispatchGemm { tokens: 6, hidden: 16, inner: 8, experts: 3, topk: 2, dtype: DType::F32 };
    let mut tensors = inputs(&problem, Fill::Exact, 1, 0)?;
    let chosen: [i32; 12] = [0, 1, 2, -1, -1, -1, 1, 1, 2, 0, 0, 0];
    let bytes = chosen.iter().flat_map(|id| id.to_le_bytes()).collect();
    tensors.insert("topk_ids", Tensor::new(vec![6, 2], DType::I32, bytes)?);

    let (outputs, report) = session.operator(problem)?.run(&tensors)?;

    let y = outputs.get("y").expect("the output").to_f32();
    for (slot, (expert, row)) in chosen.iter().zip(y.chunks(8)).enumerate() {
        println!("token {} slot {} expert {expert:2}: {row:?}", slot / 2, slot % 2);
    }
    println!("NIC bytes out per rank: {:?}, one row is 64", report.inter_out);
    Ok(())
}
