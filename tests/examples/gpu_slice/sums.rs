//! Sums in segment order: bit for bit those of the host, on real inputs.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use half::{bf16, f16};
use mkernel_core::builder::Step;
use mkernel_core::{
    DType, Executor, LaneBuilder, Op, ProgramBuilder, Rank, RegionId, Role, RoleName, Span, Verified, World, validate,
};
use mkernel_sim::Seeded;

use crate::world::{executor, options};

/// Sums of three sources, two narrow and one f32, each of its own region with its own row pitch.
struct Sum {
    rows: u32,
    columns: u64,
    narrow: DType,
    output: DType,
}

impl Sum {
    /// Source `index`, and the result at 3. Rows have a gap of `index` elements.
    fn span(&self, index: u32) -> Span {
        let dtype = [self.narrow, DType::F32, self.narrow, self.output][index as usize];
        let row_bytes = self.columns * dtype.bytes();
        let stride = row_bytes + u64::from(index) * dtype.bytes();
        Span { rank: Rank(0), region: RegionId(index), offset: dtype.bytes(), rows: self.rows, row_bytes, stride }
    }

    fn verified(&self) -> Arc<Verified> {
        let world = World::new(&[1]).expect("one rank");
        let mut builder = ProgramBuilder::new(&world, Rank(0));
        for index in 0..4 {
            builder.region("source or sum", self.span(index).end().expect("small"));
            let placement = |span| mkernel_core::Placement { tensor: "x", span, row: 0, column: 0 };
            if index < 3 {
                builder.input(placement(self.span(index)));
            } else {
                builder.output(placement(self.span(index)));
            }
        }
        builder.lane(self, 1);
        Arc::new(validate(vec![builder.finish()]).unwrap_or_else(|violation| panic!("{violation}")))
    }
}

impl Role for Sum {
    fn name(&self) -> RoleName {
        RoleName::Reduce
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let reads = [0, 1, 2].map(|index| [self.span(index)]);
        let steps = reads.each_ref().map(|read| Step::new(&[], read));
        lane.push_segments(Op::Reduce { narrow: self.narrow, output: self.output }, &steps, &[self.span(3)], &[]);
    }
}

fn random_bytes(dtype: DType, count: u64, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut value = || (random.f32() - 0.5) * 8.0;
    let one = |value: f32| match dtype {
        DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    (0..count).flat_map(|_| one(value())).collect()
}

pub(crate) fn the_gpu_and_the_host_sum_alike(context: &Arc<CudaContext>) -> Result<String, String> {
    let floats = [DType::Bf16, DType::F16, DType::F32];
    let mut cases = 0;
    for (rows, columns) in [(1, 1), (7, 13), (64, 256), (33, 1001)] {
        for narrow in floats {
            for output in floats {
                let sum = Sum { rows, columns, narrow, output };
                let verified = sum.verified();
                let mut gpu = executor(context, &verified, options(), |_, engine| engine);
                let mut host =
                    Seeded::new(verified.clone(), mkernel_sim::Options::default()).map_err(|e| e.to_string())?;
                let mut random = fastrand::Rng::with_seed(columns);
                for index in 0..3 {
                    let span = sum.span(index);
                    let dtype = if index == 1 { DType::F32 } else { narrow };
                    let bytes = random_bytes(dtype, span.bytes() / dtype.bytes(), &mut random);
                    gpu.write(&span, &bytes);
                    host.write(&span, &bytes);
                }
                gpu.launch().map_err(|fault| fault.to_string())?;
                host.launch().map_err(|fault| fault.to_string())?;
                let result = sum.span(3);
                let (mut got, mut wanted) = (vec![0; result.bytes() as usize], vec![1; result.bytes() as usize]);
                gpu.read(&result, &mut got);
                host.read(&result, &mut wanted);
                if got != wanted {
                    return Err(format!("{rows} x {columns}, {narrow} to {output}"));
                }
                cases += 1;
            }
        }
    }
    Ok(format!("{cases} sums of three real sources"))
}
