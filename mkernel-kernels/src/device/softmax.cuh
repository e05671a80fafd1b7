// What both engines of attention share: the task, and which keys a row sees. Rust twin: mkernel-sim/src/ops/attention.rs.
#pragma once

#include "mma.cuh"

namespace mk {

/// A tile of queries, and where its keys are.
struct AttentionTask {
    const SpanEntry* spans;
    const SegmentEntry* segments;
    u32 segment_count;
    const SpanEntry* out;
    u64 position;  // of the first query
    bool is_causal;

    __device__ __forceinline__ const SpanEntry& query() const { return spans[segments[0].reads]; }

    /// K of a segment; V follows it. The first segment has Q before them.
    __device__ __forceinline__ const SpanEntry* keys(u32 segment) const {
        return spans + segments[segment].reads + (segment == 0 ? 1 : 0);
    }

    /// How many of `count` keys, the first of which stands at `first`, query `row` of the tile sees.
    __device__ __forceinline__ u32 seen(u64 row, u64 first, u32 count) const {
        if (!is_causal) return count;
        const u64 end = position + row + 1;
        return end <= first ? 0 : end - first < count ? static_cast<u32>(end - first) : count;
    }
};

/// Positive infinity.
__device__ __forceinline__ float infinity() {
    return __uint_as_float(0x7f800000);
}

/// What is subtracted from scores: rows that have seen nothing but -inf have no finite maximum.
__device__ __forceinline__ float origin_of(float maximum) {
    return maximum == -infinity() ? 0.0f : maximum;
}

}  // namespace mk
