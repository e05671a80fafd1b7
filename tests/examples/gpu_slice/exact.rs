//! Bit for bit: the GPU, the host executor and integer arithmetic agree.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use half::{bf16, f16};
use mkernel_core::{DType, Executor};
use mkernel_kernels::Profile;
use mkernel_kernels::cuda::{Compute, Options};
use mkernel_sim::Seeded;
use mkernel_tests::ag_gemm::SMALL_TILES;

use crate::world::{Planned, executor, options};

const DTYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// The exact product, rounded once.
fn oracle(planned: &Planned, [a, b]: &[Vec<f32>; 2]) -> Vec<f32> {
    let (n, k) = (planned.case.op.n as usize, planned.case.op.k as usize);
    let mut c = Vec::with_capacity(planned.case.op.m as usize * n);
    for row in a.chunks_exact(k) {
        // Integers below 2^24 sum exactly in f32.
        let mut sums = vec![0f32; n];
        for (&x, b_row) in row.iter().zip(b.chunks_exact(n)) {
            sums.iter_mut().zip(b_row).for_each(|(sum, &y)| *sum += x * y);
        }
        c.extend(sums.iter().map(|&sum| round(planned.case.op.dtype, sum)));
    }
    c
}

fn round(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        DType::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Runs `epochs` launches with new inputs; compares with the oracle, and the first `host` epochs with the host executor.
fn check(
    context: &Arc<CudaContext>,
    planned: &Planned,
    options: Options,
    epochs: u64,
    host: u64,
) -> Result<(), String> {
    let Planned { case, verified } = planned;
    let sim = mkernel_sim::Options { first_epoch: options.first_epoch, ..mkernel_sim::Options::default() };
    let mut seeded = Seeded::new(verified.clone(), sim).map_err(|e| e.to_string())?;
    let mut gpu = executor(context, verified, options, |_, engine| engine);
    for epoch in 0..epochs {
        let inputs = case.inputs(epoch ^ case.op.m << 20);
        case.write(&mut gpu, verified, &inputs);
        let run = gpu.launch().map_err(|fault| format!("{case:?} epoch {epoch}: {fault}"))?;
        let got = case.read(&gpu, verified);
        if let Some(at) = first_difference(&got, &oracle(planned, &inputs)) {
            return Err(format!("{case:?} epoch {epoch} against the oracle: {at}"));
        }
        let planned_tasks: usize = verified.programs().iter().map(|p| p.instructions().count()).sum();
        if run.lanes.iter().map(|l| l.tasks).sum::<u64>() != planned_tasks as u64 {
            return Err(format!("{case:?} epoch {epoch}: not every instruction was counted: {:?}", run.lanes));
        }
        if epoch < host {
            case.write(&mut seeded, verified, &inputs);
            seeded.launch().map_err(|fault| fault.to_string())?;
            if let Some(at) = first_difference(&got, &case.read(&seeded, verified)) {
                return Err(format!("{case:?} epoch {epoch} against the host executor: {at}"));
            }
        }
    }
    Ok(())
}

fn first_difference(got: &[f32], wanted: &[f32]) -> Option<String> {
    let at = got.iter().zip(wanted).position(|(g, w)| g.to_bits() != w.to_bits())?;
    let count = got.iter().zip(wanted).filter(|(g, w)| g.to_bits() != w.to_bits()).count();
    Some(format!("{count} of {} differ, first at {at}: {} instead of {}", got.len(), got[at], wanted[at]))
}

/// One small case, for the memory and race checkers.
pub(crate) fn small_world(context: &Arc<CudaContext>) -> Result<String, String> {
    for dtype in DTYPES {
        let planned = Planned::new(&[2, 2], (37, 13, 17), dtype, &Profile { sms: 16, ..SMALL_TILES });
        check(context, &planned, options(), 2, 2)?;
    }
    for (shape, compute) in [((150, 140, 72), Compute::Portable), ((150, 144, 200), Compute::Tried)] {
        let planned = Planned::new(&[2], shape, DType::Bf16, &Profile { sms: 8, ..Profile::H200 });
        check(context, &planned, Options { compute, ..options() }, 1, 1)?;
    }
    Ok("2x2 with small tiles, 1x2 with large ones".to_owned())
}

/// Shapes whose rows the copy engine takes, as tiles for the Hopper engine: whole and clipped tiles, several of K, strips,
/// and ranks side by side that take it and that do not.
pub(crate) fn every_world_with_tiles(context: &Arc<CudaContext>) -> Result<String, String> {
    let worlds: [&[u32]; 7] = [&[1], &[2], &[1, 1], &[2, 2], &[1, 4], &[3, 2], &[4, 4]];
    let mut cases = 0;
    for gpus in worlds {
        let ranks = u64::from(gpus.iter().sum::<u32>());
        let shapes = [
            (128, 256 * ranks, 64),
            (301, 136 * ranks, 200),
            (777, 264 * ranks, 456),
            (64, 8 * ranks, 1000),
            (300, 16 * ranks + 1, 64),
            (4229, 512 * ranks, 128),
        ];
        for dtype in [DType::Bf16, DType::F16] {
            for shape in shapes {
                for compute in [Compute::Tried, Compute::Portable] {
                    if compute == Compute::Portable && shape.0 > 700 {
                        continue;
                    }
                    let planned = Planned::new(gpus, shape, dtype, &Profile::H200);
                    let host = u64::from(shape.0 < 500 && gpus.len() == 1);
                    check(context, &planned, Options { compute, ..options() }, 2, host)?;
                    cases += 1;
                }
            }
        }
    }
    Ok(format!("{cases} cases of 2 epochs: {} worlds, 2 types, both engines", worlds.len()))
}

pub(crate) fn every_world_and_shape(context: &Arc<CudaContext>) -> Result<String, String> {
    let worlds: [&[u32]; 9] = [&[1], &[2], &[1, 1], &[2, 2], &[4], &[1, 4], &[3, 2], &[1, 1, 1], &[4, 4]];
    let small = [(1, 1, 1), (13, 11, 7), (4, 29, 3), (37, 3, 17)];
    let large = [(128, 256, 64), (300, 129, 65), (257, 1000, 40), (640, 777, 513)];
    let mut cases = 0;
    for gpus in worlds {
        for dtype in DTYPES {
            for shape in small {
                let profile = Profile { sms: 4 * gpus.iter().sum::<u32>(), ..SMALL_TILES };
                check(context, &Planned::new(gpus, shape, dtype, &profile), options(), 3, 3)?;
                cases += 1;
            }
            for shape in large {
                // The host executor is slow: the largest only where both paths and all roles take part.
                let host = u64::from(shape.0 < 600 || gpus == [2, 2]);
                check(context, &Planned::new(gpus, shape, dtype, &Profile::H200), options(), 2, host)?;
                cases += 1;
            }
        }
    }
    Ok(format!(
        "{cases} cases of 2 or 3 epochs: {} worlds, 3 types, {} shapes",
        worlds.len(),
        small.len() + large.len()
    ))
}

pub(crate) fn many_epochs_across_the_wrap(context: &Arc<CudaContext>) -> Result<String, String> {
    for (gpus, fifo_slots) in [(&[1, 1][..], 2), (&[2, 2], 2), (&[2, 2], 64)] {
        for poison in [false, true] {
            let planned = Planned::new(gpus, (301, 190, 70), DType::Bf16, &Profile::H200);
            let options = Options { fifo_slots, poison, first_epoch: u64::MAX - 24, ..options() };
            check(context, &planned, options, 50, 0)?;
        }
    }
    Ok("50 epochs each of 2x1 and 2x2, rings of 2 and 64, the epoch wrapping".to_owned())
}
