// The persistent kernel: fetch, switch, next. Rust twin: mkernel-kernels/src/cuda/executor.rs.
//
// Every CTA fetches an instruction, does it, and fetches the next, until its lanes are drained.
//
// Why a launch ends: every lane has a CTA and all CTAs are resident (the launcher proves it), so the planner's argument
// holds; and every wait has a deadline and watches the abort word, so a broken program ends in a fault.
#pragma once

#include "claim.cuh"
#include "copy.cuh"
#include "fault.cuh"
#include "gemm.cuh"
#include "reduce.cuh"
#include "signal.cuh"
#include "ticket.cuh"
#include "wait.cuh"

namespace mk {

/// One CTA's walk through the lanes. Every thread has a copy; clocks and ticket state count in thread 0 only.
struct Worker {
    const LaunchEntry& launch;
    const RankEntry& rank;
    Watch watch;
    Place place;
    u64 epoch;
    u64 fifo_tail = 0;
    u64 tasks = 0, busy_ns = 0, wait_ns = 0;

    /// The whole CTA waits for a segment: a thread a wait, then a barrier that joins all to what was acquired.
    __device__ __forceinline__ bool ready(const SegmentEntry& segment) {
        if (segment.wait_count == 0) return true;
        const u64 start = now_ns();
        bool fine = true;
        for (u32 i = threadIdx.x; i < segment.wait_count && fine; i += blockDim.x) {
            const WaitEntry wait = at<const WaitEntry>(rank.waits)[segment.waits + i];
            const u64 wanted = (epoch + 1) * wait.arrivals;
            u64 seen;
            const WaitEnd end = wait_for(at<const u64>(wait.address), wanted, static_cast<EdgeScope>(wait.scope), watch, seen);
            fine = end == WaitEnd::Reached;
            if (!fine) {
                const FaultCode code = end == WaitEnd::Deadline ? FaultCode::Deadline : FaultCode::Aborted;
                report(launch, code, place, wait.cell, wanted, seen);
            }
        }
        const bool all = __syncthreads_and(fine);
        wait_ns += now_ns() - start;
        return all;
    }

    /// Waits for every segment of an instruction that does nothing in between.
    __device__ __forceinline__ bool ready_all(const InstructionEntry& instruction) {
        for (u32 s = 0; s < instruction.segment_count; ++s) {
            if (!ready(at<const SegmentEntry>(rank.segments)[instruction.segments + s])) return false;
        }
        return true;
    }

    /// Segment by segment: waits, then copies each span read to the span written of the same index.
    __device__ __forceinline__ bool copy(const InstructionEntry& instruction) {
        const SpanEntry* spans = at<const SpanEntry>(rank.spans);
        u32 write = instruction.writes;
        for (u32 s = 0; s < instruction.segment_count; ++s) {
            const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments + s];
            if (!ready(segment)) return false;
            for (u32 r = 0; r < segment.read_count; ++r, ++write) copy_span(spans[write], spans[segment.reads + r]);
        }
        return true;
    }

    /// Hands the put to the proxy.
    __device__ __forceinline__ bool put(const InstructionEntry& instruction) {
        if (!ready_all(instruction)) return false;
        PushEnd end = PushEnd::Pushed;
        if (threadIdx.x == 0) {
            // The proxy holds the number to what was planned.
            const u64 rows = instruction.rows == 0 ? 0 : *at<const u64>(instruction.rows);
            const u32 argument = rows < ~0u ? static_cast<u32>(rows) : ~0u;
            end = push_ticket(rank, instruction.put, argument, watch, fifo_tail);
            if (end != PushEnd::Pushed) {
                report(launch, end == PushEnd::Aborted ? FaultCode::Aborted : FaultCode::FifoFull, place, instruction.put, 0, 0);
            }
        }
        return __syncthreads_and(end == PushEnd::Pushed);
    }

    /// Gives memory back.
    __device__ __forceinline__ bool release(const InstructionEntry& instruction) {
        if (!ready_all(instruction)) return false;
        if (launch.poison != 0) {
            for (u32 w = 0; w < instruction.write_count; ++w) poison_span(at<const SpanEntry>(rank.spans)[instruction.writes + w]);
        }
        return true;
    }

    /// Does one instruction up to its signals; false if the launch unwinds.
    __device__ __forceinline__ bool act(const InstructionEntry& instruction, char* shared) {
        switch (static_cast<OpCode>(instruction.op)) {
            case OpCode::Copy: return copy(instruction);
            case OpCode::Put: return put(instruction);
            case OpCode::Release: return release(instruction);
            case OpCode::Reduce: return reduce(rank, instruction, [&](const SegmentEntry& s) { return ready(s); });
            case OpCode::Gemm: return gemm(rank, instruction, shared, [&](const SegmentEntry& s) { return ready(s); });
        }
        return false;
    }

    /// Meets, so that a release by one thread covers what all threads wrote, then raises the signals.
    __device__ __forceinline__ void signal(const InstructionEntry& instruction) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < instruction.signal_count; i += blockDim.x) {
            raise(at<const SignalEntry>(rank.signals)[instruction.signals + i]);
        }
    }

    /// Adds this CTA's share of a lane to the lane's totals.
    __device__ __forceinline__ void leave(u32 lane) {
        if (tasks == 0 && wait_ns == 0) return;
        LaneTotals* totals = at<LaneTotals>(rank.totals) + lane;
        add_relaxed(&totals->tasks, tasks);
        add_relaxed(&totals->busy_ns, busy_ns - wait_ns);
        add_relaxed(&totals->wait_ns, wait_ns);
        tasks = busy_ns = wait_ns = 0;
    }
};

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
            at<LaneTotals>(rank.totals)[lane] = LaneTotals{0, 0, 0};
        }
    }
}

/// One launch of all ranks on this GPU.
extern "C" __global__ void __launch_bounds__(mk::KernelShape::THREADS, 1)
    mkernel_run(const __grid_constant__ mk::LaunchEntry launch) {
    extern __shared__ __align__(16) char shared[];
    mk::work(launch, shared);
}
