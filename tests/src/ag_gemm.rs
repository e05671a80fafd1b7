//! AG+GEMM over global tensors of small integers, for any executor.

use std::sync::Arc;

use half::{bf16, f16};
use mkernel_core::{DType, Executor, Placement, Program, Verified, World, validate};
use mkernel_kernels::{AgGemm, Operator, Profile, RoleCtas};

/// A tile so small that small shapes have many tiles and chunks.
pub const SMALL_TILES: Profile = Profile { tile_m: 4, tile_n: 5, ..Profile::HOST };

/// One AG+GEMM in one world.
#[derive(Clone, Debug)]
pub struct Case {
    /// GPUs of each node.
    pub gpus: Vec<u32>,
    /// The operator.
    pub op: AgGemm,
    /// CTAs that are given to roles.
    pub roles: RoleCtas,
}

impl Case {
    /// A problem in a world, its CTAs split by the planner.
    pub fn new(gpus: &[u32], op: AgGemm) -> Case {
        Case { gpus: gpus.to_vec(), op, roles: RoleCtas::default() }
    }

    /// Plans every rank.
    ///
    /// # Panics
    /// If the problem cannot be planned.
    pub fn plan(&self) -> Vec<Program> {
        let world = World::new(&self.gpus).expect("a test world is sound");
        let plan = |rank| self.op.plan(&world, rank, &SMALL_TILES, &self.roles);
        world.ranks().map(|rank| plan(rank).expect("a test problem can be planned")).collect()
    }

    /// Plans and proves every rank.
    ///
    /// # Panics
    /// If the plan is unsound.
    pub fn verified(&self) -> Arc<Verified> {
        Arc::new(validate(self.plan()).unwrap_or_else(|violation| panic!("{self:?}: {violation}")))
    }

    /// Inputs A and B of one epoch: integers whose products sum exactly in any order.
    pub fn inputs(&self, seed: u64) -> [Vec<f32>; 2] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut tensor = |len: u64| (0..len).map(|_| f32::from(random.i8(-1..=1))).collect();
        [tensor(self.op.m * self.op.k), tensor(self.op.k * self.op.n)]
    }

    /// The exact product.
    pub fn oracle(&self, [a, b]: &[Vec<f32>; 2]) -> Vec<f32> {
        let (m, n, k) = (self.op.m as usize, self.op.n as usize, self.op.k as usize);
        let dot = |row: usize, column: usize| (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum::<f32>();
        (0..m * n).map(|i| dot(i / n, i % n)).collect()
    }

    /// Writes the inputs of every rank.
    pub fn write(&self, executor: &mut dyn Executor, verified: &Verified, [a, b]: &[Vec<f32>; 2]) {
        for placement in verified.programs().iter().flat_map(|p| &p.inputs) {
            let (tensor, columns) = if placement.tensor == "a" { (a, self.op.k) } else { (b, self.op.n) };
            let bytes: Vec<u8> = self
                .indices(placement, columns)
                .into_iter()
                .flat_map(|index| encode(self.op.dtype, tensor[index]))
                .collect();
            executor.write(&placement.span, &bytes);
        }
    }

    /// Reads the output of every rank; what no rank holds stays NaN.
    pub fn read(&self, executor: &dyn Executor, verified: &Verified) -> Vec<f32> {
        let mut c = vec![f32::NAN; (self.op.m * self.op.n) as usize];
        for placement in verified.programs().iter().flat_map(|p| &p.outputs) {
            let mut bytes = vec![0; placement.span.bytes() as usize];
            executor.read(&placement.span, &mut bytes);
            let elements = bytes.chunks_exact(self.op.dtype.bytes() as usize);
            for (index, raw) in self.indices(placement, self.op.n).into_iter().zip(elements) {
                c[index] = decode(self.op.dtype, raw);
            }
        }
        c
    }

    /// Indices in the global tensor of a placement's elements, in the order of its bytes.
    fn indices(&self, placement: &Placement, columns: u64) -> Vec<usize> {
        let width = placement.span.row_bytes / self.op.dtype.bytes();
        let row = |r: u64| (placement.row + r) * columns + placement.column;
        (0..u64::from(placement.span.rows)).flat_map(|r| (0..width).map(move |c| (row(r) + c) as usize)).collect()
    }
}

fn encode(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::F32 => value.to_le_bytes().to_vec(),
        DType::I32 => panic!("no tensor of AG+GEMM holds integers"),
    }
}

fn decode(dtype: DType, raw: &[u8]) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_le_bytes([raw[0], raw[1]]).to_f32(),
        DType::F16 => f16::from_le_bytes([raw[0], raw[1]]).to_f32(),
        DType::F32 => f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]),
        DType::I32 => panic!("no tensor of AG+GEMM holds integers"),
    }
}
