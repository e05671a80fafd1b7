//! Any operator's programs as the measure of their own mutants: what they compute is checked elsewhere, bit by bit.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use mkernel::{Fill, Tensor, Tensors, inputs};
use mkernel_core::routing::NOWHERE;
use mkernel_core::{Executor, Fault, Program, Routed, Run, Span, Verified, World, validate};
use mkernel_kernels::{Operator, Profile, RoleCtas, TensorKind, TensorSpec};
use mkernel_sim::{Options, Seeded};

/// A tile so small that small shapes have many tiles and chunks.
pub const SMALL_TILES: Profile = Profile { tile_m: 4, tile_n: 5, ..Profile::HOST };

/// An operator in a world, as planned.
pub struct Original {
    operator: Box<dyn Operator>,
    programs: Vec<Program>,
    verified: Arc<Verified>,
    /// Inputs by seed, and what they give.
    known: RefCell<HashMap<u64, (Tensors, Results)>>,
}

/// What the host reads, rank after rank; `None` for a place that is beyond the rows.
type Outputs = Vec<Option<Vec<u8>>>;

/// What comes out of a launch.
#[derive(PartialEq)]
struct Results {
    outputs: Outputs,
    /// Bytes that left each rank, within its node and over the NIC.
    moved: (Vec<u64>, Vec<u64>),
}

impl Results {
    fn of(verified: &Verified, executor: &dyn Executor, run: Run) -> Results {
        Results { outputs: outputs(verified, executor), moved: (run.intra_out, run.inter_out) }
    }
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
        let verified = Arc::new(verified);
        Original { operator: Box::new(operator), programs, verified, known: RefCell::default() }
    }

    /// The programs.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The programs, proved.
    pub fn verified(&self) -> &Arc<Verified> {
        &self.verified
    }

    /// Runs one epoch of a mutant on inputs from a seed and says whether its outputs are those of the original, bit by bit, and
    /// whether it moved as many bytes.
    ///
    /// # Errors
    /// The mutant's fault.
    ///
    /// # Panics
    /// If the original itself fails.
    pub fn is_same(&self, mutant: &Verified, executor: &mut dyn Executor, seed: u64) -> Result<bool, Fault> {
        let mut known = self.known.borrow_mut();
        let (given, wanted) = known.entry(seed).or_insert_with(|| self.run(seed));
        self.write(mutant, executor, given);
        let run = executor.launch()?;
        Ok(Results::of(mutant, executor, run) == *wanted)
    }

    /// The inputs of a seed, and what they give.
    fn run(&self, seed: u64) -> (Tensors, Results) {
        let mut given = inputs(self.operator.as_ref(), Fill::Real, seed, 0).expect("small tensors fit in memory");
        for spec in self.operator.tensors() {
            if let TensorKind::Ids { limit } = spec.kind {
                given.insert(spec.name, table(&spec, limit as i32, seed));
            }
        }
        let mut own = Seeded::new(self.verified.clone(), Options::default()).expect("small programs fit in memory");
        self.write(&self.verified, &mut own, &given);
        let run = own.launch().expect("proved programs run");
        let results = Results::of(&self.verified, &own, run);
        (given, results)
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

/// A table of experts: any of them, or in each token as many of a few neighbours as it has slots, so that in some seed every
/// rank has all that it may get; or half of it dropped.
fn table(spec: &TensorSpec, limit: i32, seed: u64) -> Tensor {
    let (tokens, topk) = spec.matrix();
    let mut random = fastrand::Rng::with_seed(seed);
    let (style, first) = (seed % 4, (seed / 4 + seed % 4) as i32);
    let mut id = |slot: i32| match style {
        0 => random.i32(-1..limit),
        1 | 2 => (first + slot) % limit,
        _ if random.bool() => -1,
        _ => random.i32(0..limit),
    };
    let ids = (0..tokens).flat_map(|_| 0..topk as i32).flat_map(|slot| id(slot).to_le_bytes()).collect();
    Tensor::new(spec.shape.clone(), spec.dtype, ids).expect("as many values as the shape has elements")
}

/// Everything that the host reads.
fn outputs(verified: &Verified, executor: &dyn Executor) -> Outputs {
    let placed = verified.programs().iter().flat_map(|p| &p.outputs).map(|p| Some(read(executor, &p.span)));
    let routed = verified.programs().iter().flat_map(|p| &p.routed).flat_map(|r| rows(executor, r));
    placed.chain(routed).collect()
}

/// The rows that data placed on one rank, in the order of the global tensor.
fn rows(executor: &dyn Executor, routed: &Routed) -> Outputs {
    let places = read(executor, &routed.rows);
    let places = places.as_chunks::<4>().0.iter().map(|raw| u32::from_le_bytes(*raw));
    let row = |place| match place {
        NOWHERE => Some(Vec::new()),
        place if place >= routed.span.rows => None,
        place => Some(read(executor, &Span { offset: routed.span.row(place), rows: 1, ..routed.span })),
    };
    places.map(row).collect()
}

fn read(executor: &dyn Executor, span: &Span) -> Vec<u8> {
    let mut bytes = vec![0; span.bytes() as usize];
    executor.read(span, &mut bytes);
    bytes
}
