//! Epoch: nothing is reset between launches, new inputs every time, and another shape is another instance.
//!
//! `cargo run --release -p mkernel --example 04_epochs`

use mkernel::check::{Extent, check};
use mkernel::{AgGemm, DType, Fill, Options, Session, World, inputs};

fn main() -> Result<(), mkernel::Error> {
    let world = World::uniform(2, 2).expect("two nodes of two");
    let mut session = Session::new(world, Options::default());
    let shapes = [(200, 96, 64), (31, 17, 5)];
    for epoch in 0..3 {
        for (m, n, k) in shapes {
            let problem = AgGemm { m, n, k, dtype: DType::F16 };
            let tensors = inputs(&problem, Fill::Exact, 7, epoch)?;
            let instance = session.operator(problem)?;
            let (outputs, _) = instance.run(&tensors)?;
            let errors = check(&problem, &tensors, &outputs, Extent::All, &[], 0)?;
            println!(
                "epoch {epoch}, instance {}, launch {}: {} of {} elements exact",
                instance.sequence(),
                instance.launches(),
                errors.exact,
                errors.elements
            );
        }
    }
    Ok(())
}
