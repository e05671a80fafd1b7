// Tables of chosen experts, and the order of tokens that pass a choice. Rust twin: mkernel-core/src/routing.rs.
#pragma once

#include "reduce.cuh"

namespace mk {

/// Warps of the team.
constexpr u32 kWarps = team::kThreads / 32;

/// Nothing: no row, no place. The twin of `NOWHERE`.
constexpr u32 kNowhere = ~0u;

/// The experts `first..end`.
struct Experts {
    u32 first, end;

    /// The place of an entry of the table among these, or `kNowhere`; a negative one is a dropped slot.
    __device__ __forceinline__ u32 position(u32 id) const {
        return static_cast<int>(id) >= 0 && id >= first && id < end ? id - first : kNowhere;
    }

    /// Whether a token whose slots start at `slots` has one of them.
    __device__ __forceinline__ bool wants(u64 slots, u32 topk) const {
        bool found = false;
        for (u32 k = 0; k < topk; ++k) found |= position(at<const u32>(slots)[k]) != kNowhere;
        return found;
    }
};

/// Slots of a token in a table.
__device__ __forceinline__ u32 slots_of(const SpanEntry& table) {
    return static_cast<u32>(table.row_bytes / 4);
}

/// Where row `row` of a span starts.
__device__ __forceinline__ u64 row_of(const SpanEntry& span, u64 row) {
    return span.address + row * span.stride;
}

/// Numbers the threads for which `is_chosen` holds, in order, and counts them. The team meets twice; `scratch` has a word
/// for each warp and is the caller's again after the next meeting.
__device__ __forceinline__ u32 number_of(bool is_chosen, u32* scratch, u32& total) {
    const u32 chosen = __ballot_sync(~0u, is_chosen), lane = team::thread() % 32, warp = team::thread() / 32;
    team::meet();
    if (lane == 0) scratch[warp] = __popc(chosen);
    team::meet();
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 w = 0; w < kWarps; ++w) {
        before += w < warp ? scratch[w] : 0;
        total += scratch[w];
    }
    return before + __popc(chosen & ((1u << lane) - 1));
}

/// Runs of eight elements in a row, and the elements of run `run`.
__device__ __forceinline__ u64 runs_in(u64 columns) {
    return (columns + kRun - 1) / kRun;
}
__device__ __forceinline__ u32 run_length(u64 run, u64 columns) {
    return columns - run * kRun < kRun ? static_cast<u32>(columns - run * kRun) : kRun;
}

}  // namespace mk
