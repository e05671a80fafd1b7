// The persistent kernel: fetch, switch, next. Rust twin: mkernel-kernels/src/cuda/executor.rs.
//
// Every CTA fetches an instruction, does it, and fetches the next, until its lanes are drained.
//
// Why a launch ends: every lane has a CTA and all CTAs are resident (the launcher proves it), so the planner's argument
// holds; and every wait has a deadline and watches the abort word, so a broken program ends in a fault.
#pragma once

#include "claim.cuh"
#include "worker.cuh"

namespace mk {

/// Takes the CTA from its home lane to the end of the launch.
__device__ __forceinline__ void work(const LaunchEntry& launch, char* shared) {
    __shared__ Claim claimed;
    const HomeEntry home = at<const HomeEntry>(launch.homes)[blockIdx.x];
    Worker worker{launch, at<const RankEntry>(launch.ranks)[home.rank], {at<const u32>(launch.abort), at<const u64>(launch.progress), launch.deadline_ns},
                  {home.rank, home.lane, 0}, *at<const u64>(launch.epoch)};
    for (;;) {
        // The barrier after the claim also keeps the last instruction's readers of `claimed` ahead of the next claim:
        // each of them has passed the barrier in `signal`.
        if (threadIdx.x == 0) claimed = claim_next(worker.rank, worker.place.lane);
        __syncthreads();
        const Claim claim = claimed;
        if (threadIdx.x == 0 && claim.lane != worker.place.lane) worker.leave(worker.place.lane);
        if (claim.lane == KernelShape::NO_LANE) return;
        worker.place.lane = claim.lane;
        worker.place.instruction = claim.index;
        const u32 first = at<const LaneEntry>(worker.rank.lanes)[claim.lane].first;
        const InstructionEntry instruction = at<const InstructionEntry>(worker.rank.instructions)[first + claim.index];
        const u64 start = now_ns();
        if (!worker.act(instruction, shared)) return;
        worker.signal(instruction);
        worker.busy_ns += now_ns() - start;
        ++worker.tasks;
        if (threadIdx.x == 0) add_relaxed(at<u64>(launch.progress), 1);
    }
}

}  // namespace mk

/// Moves the epoch on and empties what one launch counts; runs before the kernel on the same stream.
extern "C" __global__ void mkernel_prepare(const __grid_constant__ mk::LaunchEntry launch) {
    using namespace mk;
    if (threadIdx.x == 0) {
        *at<u64>(launch.epoch) += 1;
        *at<u32>(launch.fault_claim) = 0;
    }
    for (u32 r = 0; r < launch.rank_count; ++r) {
        const RankEntry& rank = at<const RankEntry>(launch.ranks)[r];
        for (u32 lane = threadIdx.x; lane < rank.lane_count; lane += blockDim.x) {
            at<u32>(rank.claims)[lane] = 0;
            at<LaneTotals>(rank.totals)[lane] = LaneTotals{0, 0, 0, 0};
        }
    }
}

/// One launch of all ranks on this GPU.
extern "C" __global__ void __launch_bounds__(mk::KernelShape::THREADS, 1)
    mkernel_run(const __grid_constant__ mk::LaunchEntry launch) {
    extern __shared__ __align__(16) char shared[];
    mk::work(launch, shared);
}
