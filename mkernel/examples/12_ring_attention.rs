//! Ring attention: one sequence over two nodes, keys and values go round, causal and balanced.

use mkernel::ring_attention::Layout;
use mkernel::{DType, Fill, Mask, Options, RingAttention, Session, World, check, inputs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut session = Session::new(World::uniform(2, 2)?, Options::default());
    let problem = RingAttention {
        batch: 1,
        heads: 8,
        kv_heads: 2,
        seq: 777,
        dim: 64,
        mask: Mask::Causal,
        layout: Layout::ZigZag,
        dtype: DType::Bf16,
    };
    let tensors = inputs(&problem, Fill::Real, 1, 0)?;
    let (outputs, report) = session.operator(problem)?.run(&tensors)?;
    let errors = check::check(&problem, &tensors, &outputs, check::Extent::All, &[], 0)?;
    println!("{} elements hold, largest error {:.1e}", errors.elements, errors.max_abs);
    println!("NIC bytes out by rank {:?}, the law says {:?}", report.inter_out, report.inter_law);
    Ok(())
}
