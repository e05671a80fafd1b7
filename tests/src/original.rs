//! Any operator's programs as the measure of their own mutants: what they compute is checked elsewhere, bit by bit.

use std::sync::Arc;

use mkernel::{Fill, Tensors, inputs};
use mkernel_core::{Executor, Fault, Placement, Program, Verified, World, validate};
use mkernel_kernels::{Operator, Profile, RoleCtas};
use mkernel_sim::{Options, Seeded};

/// A tile so small that small shapes have many tiles and chunks.
pub const SMALL_TILES: Profile = Profile { tile_m: 4, tile_n: 5, ..Profile::HOST };

/// An operator in a world, as planned.
pub struct Original {
    operator: Box<dyn Operator>,
    programs: Vec<Program>,
    verified: Arc<Verified>,
}

impl Original {
    /// Plans and proves every rank.
    ///
    /// # Panics
    /// If the problem cannot be planned or the plan is unsound.
    pub fn new(operator: impl Operator + 'static, gpus: &[u32]) -> Original {
        let world = World::new(gpus).expect("a test world is sound");
        let plan = |rank| operator.plan(&world, rank, &SMALL_TILES, &RoleCtas::default());
        let programs: Vec<Program> = world.ranks().map(|r| plan(r).expect("a test problem can be planned")).collect();
        let verified = validate(programs.clone()).unwrap_or_else(|v| panic!("{} on {world}: {v}", operator.name()));
        Original { operator: Box::new(operator), programs, verified: Arc::new(verified) }
    }

    /// The programs.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Runs one epoch of a mutant on inputs from a seed and says whether its outputs are those of the original, bit by bit.
    ///
    /// # Errors
    /// The mutant's fault.
    ///
    /// # Panics
    /// If the original itself fails.
    pub fn is_same(&self, mutant: &Verified, executor: &mut dyn Executor, seed: u64) -> Result<bool, Fault> {
        let given = inputs(self.operator.as_ref(), Fill::Real, seed, 0).expect("small tensors fit in memory");
        self.write(mutant, executor, &given);
        executor.launch()?;
        let mut own = Seeded::new(self.verified.clone(), Options::default()).expect("small programs fit in memory");
        self.write(&self.verified, &mut own, &given);
        own.launch().expect("proved programs run");
        let outputs = |verified: &Verified, executor: &dyn Executor| {
            let placements = verified.programs().iter().flat_map(|p| &p.outputs);
            placements.map(|p| read(executor, p)).collect::<Vec<_>>()
        };
        Ok(outputs(mutant, executor) == outputs(&self.verified, &own))
    }

    fn write(&self, verified: &Verified, executor: &mut dyn Executor, given: &Tensors) {
        let specs = self.operator.tensors();
        for placement in verified.programs().iter().flat_map(|p| &p.inputs) {
            let spec = specs.iter().find(|s| s.name == placement.tensor).expect("placements name tensors");
            let (tensor, columns) = (given.get(spec.name).expect("inputs of the operator"), spec.matrix().1);
            let element = spec.dtype.bytes();
            let mut bytes = Vec::new();
            for row in 0..u64::from(placement.span.rows) {
                let start = (((placement.row + row) * columns + placement.column) * element) as usize;
                bytes.extend_from_slice(&tensor.bytes()[start..start + placement.span.row_bytes as usize]);
            }
            executor.write(&placement.span, &bytes);
        }
    }
}

fn read(executor: &dyn Executor, placement: &Placement) -> Vec<u8> {
    let mut bytes = vec![0; placement.span.bytes() as usize];
    executor.read(&placement.span, &mut bytes);
    bytes
}
