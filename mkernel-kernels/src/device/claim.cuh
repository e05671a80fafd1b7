// Claims: each instruction of a lane goes to one CTA, in the lane's order. Rust twin: mkernel-core/src/program.rs (Lane).
//
// A claim counter is no signal: it orders nothing. Two sets of counters take turns, so that one launch empties those of
// the next.
#pragma once

#include "sync.cuh"

namespace mk {

/// A place in a lane's order; `index == count` when the lanes are drained.
struct Claim {
    u32 lane;
    u32 index;
};

/// The counters of a launch, one per lane.
__device__ __forceinline__ u32* claims_of(const RankEntry& rank, u64 epoch) {
    return at<u32>(rank.claims) + (epoch & 1) * rank.lane_count;
}

/// One thread claims the next instruction of `lane`, or of the lanes that follow it once it is drained.
__device__ __forceinline__ Claim claim_next(const RankEntry& rank, u32* claims, u32 lane) {
    const LaneEntry* lanes = at<const LaneEntry>(rank.lanes);
    while (lane != KernelShape::NO_LANE) {
        const u32 index = take_number(claims + lane);
        if (index < lanes[lane].count) return {lane, index};
        lane = lanes[lane].next;
    }
    return {KernelShape::NO_LANE, 0};
}

}  // namespace mk
