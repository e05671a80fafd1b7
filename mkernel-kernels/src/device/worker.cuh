// A team at work: waits, does, signals. Rust twin: mkernel-sim/src/seeded/cta.rs.
#pragma once

#include "attention.cuh"
#include "bulk.cuh"
#include "combine.cuh"
#include "copy.cuh"
#include "expert.cuh"
#include "fault.cuh"
#include "gemm.cuh"
#include "merge.cuh"
#include "pack.cuh"
#include "reduce.cuh"
#include "reduce_bulk.cuh"
#include "route.cuh"
#include "signal.cuh"
#include "ticket.cuh"
#include "wait.cuh"

namespace mk {

/// One thread waits for the wait `index` of the rank's pool; a failure is reported.
__device__ __forceinline__ bool await(const LaunchEntry& launch, const RankEntry& rank, u32 index, u64 epoch, const Watch& watch,
                                      const Place& place) {
    const WaitEntry wait = at<const WaitEntry>(rank.waits)[index];
    const u64 wanted = (epoch + 1) * wait.arrivals;
    u64 seen;
    const WaitEnd end = wait_for(at<const u64>(wait.address), wanted, static_cast<EdgeScope>(wait.scope), watch, seen);
    if (end == WaitEnd::Reached) return true;
    report(launch, end == WaitEnd::Deadline ? FaultCode::Deadline : FaultCode::Aborted, place, wait.cell, wanted, seen);
    return false;
}

/// A team at work. Every thread has a copy; clocks and ticket state count in thread 0 only.
struct Worker {
    const LaunchEntry& launch;
    const RankEntry& rank;
    Watch watch;
    Place place;
    u64 epoch;
    u64 fifo_tail = 0;
    u64 tasks = 0, busy_ns = 0, wait_ns = 0, peer_bytes = 0;
#ifdef MK_PIPELINED
    Bulk bulk;
#endif

    /// The team waits for `count` waits, `index(i)` of the rank's pool each, or `kNowhere` for none: a thread a wait, then a
    /// barrier that joins all to what was acquired.
    template <class Index>
    __device__ __forceinline__ bool wait_all(u64 count, Index index) {
        if (count == 0) return true;
        const u64 start = now_ns();
        bool fine = true;
        for (u64 i = team::thread(); i < count && fine; i += team::kThreads) {
            const u32 wait = index(i);
            fine = wait == kNowhere || await(launch, rank, wait, epoch, watch, place);
        }
        const bool all = team::all(fine);
        wait_ns += now_ns() - start;
        return all;
    }

    /// Waits for what a segment waits for whatever data says.
    __device__ __forceinline__ bool certain(const SegmentEntry& segment) {
        return wait_all(segment.wait_count, [&](u64 i) { return segment.waits + static_cast<u32>(i); });
    }

    /// Waits for `count` of the waits that data picks: the numbers `pick(i)`, of which those beyond the segment's are none.
    template <class Pick>
    __device__ __forceinline__ bool picked(const SegmentEntry& segment, u64 count, Pick pick) {
        return wait_all(segment.picked_count == 0 ? 0 : count, [&](u64 i) {
            const u32 number = pick(i);
            return number < segment.picked_count ? segment.picked + number : kNowhere;
        });
    }

    /// Waits for all of a segment.
    __device__ __forceinline__ bool ready(const SegmentEntry& segment) {
        return certain(segment) && picked(segment, segment.picked_count, [](u64 i) { return static_cast<u32>(i); });
    }

    /// Waits for every segment of an instruction that does nothing in between: a thread a segment, if there are several.
    __device__ __forceinline__ bool ready_all(const InstructionEntry& instruction) {
        const SegmentEntry* segments = at<const SegmentEntry>(rank.segments) + instruction.segments;
        if (instruction.segment_count == 1) return ready(segments[0]);
        const u64 start = now_ns();
        bool fine = true;
        for (u32 s = team::thread(); s < instruction.segment_count; s += team::kThreads) {
            const SegmentEntry segment = segments[s];
            for (u32 i = 0; i < segment.wait_count && fine; ++i) fine = await(launch, rank, segment.waits + i, epoch, watch, place);
            for (u32 i = 0; i < segment.picked_count && fine; ++i) fine = await(launch, rank, segment.picked + i, epoch, watch, place);
        }
        const bool all = team::all(fine);
        wait_ns += now_ns() - start;
        return all;
    }

    /// Segment by segment: waits, then copies each span read to the span written of the same index.
    __device__ __forceinline__ bool copy(const InstructionEntry& instruction, [[maybe_unused]] char* shared) {
        const SpanEntry* spans = at<const SpanEntry>(rank.spans);
        u32 write = instruction.writes;
        for (u32 s = 0; s < instruction.segment_count; ++s) {
            const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments + s];
            if (!ready(segment)) return false;
            for (u32 r = 0; r < segment.read_count; ++r, ++write) {
                const SpanEntry to = spans[write], from = spans[segment.reads + r];
#ifdef MK_PIPELINED
                if (Bulk::takes(to, from)) {
                    bulk.copy(to, from, shared_address(shared));
                    continue;
                }
#endif
                copy_span(to, from);
            }
        }
        return true;
    }

    /// Hands the put to the proxy.
    __device__ __forceinline__ bool put(const InstructionEntry& instruction) {
        if (!ready_all(instruction)) return false;
        PushEnd end = PushEnd::Pushed;
        if (team::thread() == 0) {
            // The proxy holds the number to what was planned.
            const u64 rows = instruction.rows == 0 ? 0 : *at<const u64>(instruction.rows);
            const u32 argument = rows < ~0u ? static_cast<u32>(rows) : ~0u;
            end = push_ticket(rank, instruction.put, argument, watch, fifo_tail);
            if (end != PushEnd::Pushed) {
                report(launch, end == PushEnd::Aborted ? FaultCode::Aborted : FaultCode::FifoFull, place, instruction.put, 0, 0);
            }
        }
        return team::all(end == PushEnd::Pushed);
    }

    /// Gives memory back.
    __device__ __forceinline__ bool release(const InstructionEntry& instruction) {
        if (!ready_all(instruction)) return false;
        if (launch.poison != 0) {
            for (u32 w = 0; w < instruction.write_count; ++w) poison_span(at<const SpanEntry>(rank.spans)[instruction.writes + w]);
        }
        return true;
    }

    /// How an operation waits for a segment: for all of it, or first for what is certain and then for what data picks.
    struct Ready {
        Worker& worker;

        __device__ __forceinline__ bool operator()(const SegmentEntry& segment) const { return worker.ready(segment); }
        __device__ __forceinline__ bool certain(const SegmentEntry& segment) const { return worker.certain(segment); }
        template <class Pick>
        __device__ __forceinline__ bool picked(const SegmentEntry& segment, u64 count, Pick pick) const {
            return worker.picked(segment, count, pick);
        }
        /// Counts the bytes that an instruction wrote, where they went to another rank and data decided how many.
        __device__ __forceinline__ void moved(const InstructionEntry& instruction, u64 bytes) const {
            if (instruction.away != 0) worker.peer_bytes += bytes;
        }
    };

    /// Sums sources in segment order.
    __device__ __forceinline__ bool sum(const InstructionEntry& instruction, [[maybe_unused]] char* shared) {
#ifdef MK_PIPELINED
        const Stream stream{rank, instruction, shared};
        if (stream.is_whole()) return ready_all(instruction) && stream.sum(bulk);
#endif
        return reduce(rank, instruction, Ready{*this});
    }

    /// Does one instruction up to its signals; false if the launch unwinds.
    __device__ __forceinline__ bool act(const InstructionEntry& instruction, char* shared) {
        switch (static_cast<OpCode>(instruction.op)) {
            case OpCode::Copy: return copy(instruction, shared);
            case OpCode::Put: return put(instruction);
            case OpCode::Release: return release(instruction);
            case OpCode::Reduce: return sum(instruction, shared);
            case OpCode::Gemm: return gemm(rank, instruction, shared, Ready{*this});
#ifdef MK_ATTENTION
            case OpCode::Attention: return attention(rank, instruction, shared, Ready{*this});
#endif
#ifdef MK_ROUTED
            case OpCode::Pack: return pack(rank, instruction, shared, Ready{*this});
            case OpCode::Route: return route(rank, instruction, shared, Ready{*this});
            case OpCode::Expert: return expert(rank, instruction, shared, Ready{*this});
            case OpCode::Combine: return combine(rank, instruction, shared, Ready{*this});
            case OpCode::Merge: return merge(rank, instruction, shared, Ready{*this});
#endif
            default: break;  // pipeline.cuh does tiles
        }
        return false;
    }

    /// Meets, so that a release by one thread covers what all threads wrote, then raises the signals.
    __device__ __forceinline__ void signal(const InstructionEntry& instruction) {
        team::meet();
        for (u32 i = team::thread(); i < instruction.signal_count; i += team::kThreads) {
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
        if (peer_bytes != 0) add_relaxed(&totals->peer_bytes, peer_bytes);
        tasks = busy_ns = wait_ns = peer_bytes = 0;
    }
};

}  // namespace mk
