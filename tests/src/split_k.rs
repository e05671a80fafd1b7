//! Products of global matrices whose result may be on several ranks, for any operator with tensors a, b and c.

use std::fmt;
use std::sync::Arc;

use half::{bf16, f16};
use mkernel_core::{DType, Executor, Placement, Program, Verified, World, validate};
use mkernel_kernels::{Operator, Profile, RoleCtas};

use crate::ag_gemm::SMALL_TILES;

/// One operator in one world.
#[derive(Clone)]
pub struct Case {
    /// GPUs of each node.
    pub gpus: Vec<u32>,
    /// The operator.
    pub op: Arc<dyn Operator>,
    /// CTAs of each role, where they are given.
    pub roles: RoleCtas,
    /// What the planner believes of the hardware.
    pub profile: Profile,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (m, n, k) = self.shape();
        write!(f, "{} {m}x{n}x{k} {} on {:?} with {:?}", self.op.name(), self.dtype(), self.gpus, self.roles)
    }
}

impl Case {
    /// An operator in a world, with the split of SMs that follows from the shape.
    pub fn new(gpus: &[u32], op: impl Operator + 'static) -> Case {
        Case { gpus: gpus.to_vec(), op: Arc::new(op), roles: RoleCtas::default(), profile: SMALL_TILES }
    }

    /// Rows and columns of C, and columns of A.
    pub fn shape(&self) -> (usize, usize, usize) {
        let specs = self.op.tensors();
        let ((m, k), (_, n)) = (specs[0].matrix(), specs[1].matrix());
        (m as usize, n as usize, k as usize)
    }

    /// The element type of A, B and C.
    pub fn dtype(&self) -> DType {
        self.op.tensors()[0].dtype
    }

    /// The world.
    ///
    /// # Panics
    /// If it is impossible.
    pub fn world(&self) -> World {
        World::new(&self.gpus).expect("a test world is sound")
    }

    /// Plans every rank.
    ///
    /// # Panics
    /// If the problem cannot be planned.
    pub fn plan(&self) -> Vec<Program> {
        let world = self.world();
        let plan = |rank| self.op.plan(&world, rank, &self.profile, &self.roles);
        world.ranks().map(|rank| plan(rank).expect("a test problem can be planned")).collect()
    }

    /// Plans and proves every rank.
    ///
    /// # Panics
    /// If the plan is unsound.
    pub fn verified(&self) -> Arc<Verified> {
        Arc::new(validate(self.plan()).unwrap_or_else(|violation| panic!("{self:?}: {violation}")))
    }

    /// A and B of small integers: every partial sum is exact in every type as long as K is at most 256.
    pub fn integers(&self, seed: u64) -> [Vec<f32>; 2] {
        let mut random = fastrand::Rng::with_seed(seed);
        self.fill(|| f32::from(random.i8(-1..=1)))
    }

    /// A and B of reals in [-1, 1) that the element type holds.
    pub fn reals(&self, seed: u64) -> [Vec<f32>; 2] {
        let mut random = fastrand::Rng::with_seed(seed);
        self.fill(|| round(self.dtype(), random.f32() * 2.0 - 1.0))
    }

    fn fill(&self, mut element: impl FnMut() -> f32) -> [Vec<f32>; 2] {
        let (m, n, k) = self.shape();
        [m * k, k * n].map(|len| (0..len).map(|_| element()).collect())
    }

    /// The product in f64, and the product of magnitudes.
    pub fn oracle(&self, [a, b]: &[Vec<f32>; 2]) -> Vec<(f64, f64)> {
        let (m, n, k) = self.shape();
        let term = |row: usize, column: usize, i: usize| f64::from(a[row * k + i]) * f64::from(b[i * n + column]);
        let dot = |row, column| {
            (0..k).map(|i| term(row, column, i)).fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
        };
        (0..m * n).map(|i| dot(i / n, i % n)).collect()
    }

    /// Writes the inputs of every rank, and NaN over the outputs: what a launch does not write shows.
    pub fn write(&self, executor: &mut dyn Executor, verified: &Verified, [a, b]: &[Vec<f32>; 2]) {
        let (_, n, k) = self.shape();
        for program in verified.programs() {
            for placement in &program.inputs {
                let (tensor, columns) = if placement.tensor == "a" { (a, k) } else { (b, n) };
                let values = self.indices(placement, columns).into_iter().map(|i| tensor[i]);
                let bytes: Vec<u8> = values.flat_map(|v| encode(self.dtype(), v)).collect();
                executor.write(&placement.span, &bytes);
            }
            for placement in &program.outputs {
                executor.write(&placement.span, &vec![0xFF; placement.span.bytes() as usize]);
            }
        }
    }

    /// Reads the output of every rank; what no rank holds stays NaN.
    ///
    /// # Panics
    /// If two ranks hold an element and differ in a bit.
    pub fn read(&self, executor: &dyn Executor, verified: &Verified) -> Vec<f32> {
        let (m, n, _) = self.shape();
        let mut c: Vec<Option<f32>> = vec![None; m * n];
        for placement in verified.programs().iter().flat_map(|p| &p.outputs) {
            let mut bytes = vec![0; placement.span.bytes() as usize];
            executor.read(&placement.span, &mut bytes);
            let elements = bytes.chunks_exact(self.dtype().bytes() as usize).map(|raw| decode(self.dtype(), raw));
            for (index, value) in self.indices(placement, n).into_iter().zip(elements) {
                let before = c[index].replace(value).unwrap_or(value);
                assert_eq!(before.to_bits(), value.to_bits(), "{self:?}: ranks differ at element {index}");
            }
        }
        c.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect()
    }

    /// Indices in the global tensor of a placement's elements, in the order of its bytes.
    fn indices(&self, placement: &Placement, columns: usize) -> Vec<usize> {
        let width = placement.span.row_bytes / self.dtype().bytes();
        let row = |r: u64| (placement.row + r) * columns as u64 + placement.column;
        (0..u64::from(placement.span.rows)).flat_map(|r| (0..width).map(move |c| (row(r) + c) as usize)).collect()
    }
}

/// Rounds once to an element type.
///
/// # Panics
/// If the type is not a float.
pub fn round(dtype: DType, value: f32) -> f32 {
    decode(dtype, &encode(dtype, value))
}

fn encode(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::F32 => value.to_le_bytes().to_vec(),
        DType::I32 => panic!("no tensor of a product holds integers"),
    }
}

fn decode(dtype: DType, raw: &[u8]) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_le_bytes([raw[0], raw[1]]).to_f32(),
        DType::F16 => f16::from_le_bytes([raw[0], raw[1]]).to_f32(),
        DType::F32 => f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]),
        DType::I32 => panic!("no tensor of a product holds integers"),
    }
}
