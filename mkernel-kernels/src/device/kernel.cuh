// The persistent kernel: fetch, switch, next. Rust twin: mkernel-kernels/src/cuda/executor.rs.
//
// Every CTA fetches an instruction, does it, and fetches the next, until its lanes are drained. Where products go
// through the Hopper engine, pipeline.cuh does the same with claims, loads, products and stores side by side.
//
// Why a launch ends: every lane has a CTA and all CTAs are resident (the launcher proves it), so the planner's argument
// holds; and every wait has a deadline and watches the abort word, so a broken program ends in a fault.
#pragma once

#include "claim.cuh"
#include "pipeline.cuh"
#include "worker.cuh"

namespace mk {

/// Empties the claim counters of the next launch; these are two sets that take turns, so nobody uses them now.
__device__ __forceinline__ void clear_next_claims(const LaunchEntry& launch, u64 epoch) {
    if (blockIdx.x != 0) return;
    for (u32 r = 0; r < launch.rank_count; ++r) {
        const RankEntry& rank = at<const RankEntry>(launch.ranks)[r];
        u32* next = claims_of(rank, epoch + 1);
        for (u32 lane = threadIdx.x; lane < rank.lane_count; lane += blockDim.x) next[lane] = 0;
    }
}

/// One thread of each CTA, once all threads of the CTA know the epoch: the last moves it on for the next launch.
__device__ __forceinline__ void leave_launch(const LaunchEntry& launch, u64 epoch) {
    if (take_number(at<u32>(launch.exits)) + 1 != gridDim.x) return;
    *at<u32>(launch.exits) = 0;
    *at<u64>(launch.epoch) = epoch + 1;
}

/// Takes the CTA from its home lane to the end of the launch.
__device__ __forceinline__ void work(const LaunchEntry& launch, u64 epoch, char* shared) {
    __shared__ Claim claimed;
    const HomeEntry home = at<const HomeEntry>(launch.homes)[blockIdx.x];
    Worker worker{launch, at<const RankEntry>(launch.ranks)[home.rank], {at<const u32>(launch.abort), at<const u64>(launch.progress), launch.deadline_ns},
                  {home.rank, home.lane, 0}, epoch};
    u32* claims = claims_of(worker.rank, worker.epoch);
    for (;;) {
        // The barrier after the claim also keeps the last instruction's readers of `claimed` ahead of the next claim:
        // each of them has passed the barrier in `signal`.
        if (threadIdx.x == 0) claimed = claim_next(worker.rank, claims, worker.place.lane);
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

/// One launch of all ranks on this GPU.
extern "C" __global__ void __launch_bounds__(mk::team::kFirst + mk::team::kThreads, 1)
    mkernel_run(const __grid_constant__ mk::LaunchEntry launch) {
    extern __shared__ __align__(1024) char shared[];
    const mk::u64 epoch = *mk::at<const mk::u64>(launch.epoch);
    mk::clear_next_claims(launch, epoch);
    __syncthreads();
#ifdef MK_PIPELINED
    mk::pipeline::run(launch, epoch, shared);
#else
    mk::work(launch, epoch, shared);
#endif
    if (threadIdx.x == 0) mk::leave_launch(launch, epoch);
}
