// Attention in f32 by plain fused multiply-adds. Rust twin: mkernel-sim/src/ops/attention.rs.
//
// A lane has a query: blocks of 32 queries and 32 keys, whole rows in shared memory. Warps divide the keys of a block for
// the scores, and the columns for the output. The products of a block are summed by themselves, then added to the output,
// so errors grow with the blocks and not with the keys. Hidden keys are never touched by the row that does not see them.
#pragma once

#include "softmax.cuh"

namespace mk {

/// The blocking, and where things lie in shared memory, in floats.
struct PlainAttention {
    static constexpr u32 kRows = 32, kKeys = 32, kDim = 256, kPitch = kDim + 4, kScorePitch = kKeys + 1;
    static constexpr u32 kWarps = team::kThreads / 32, kGroups = (kDim / 4 + kWarps - 1) / kWarps;
    static constexpr u32 kK = kRows * kPitch, kV = kK + kKeys * kPitch, kScores = kV + kKeys * kPitch;
    static constexpr u32 kState = kScores + kRows * kScorePitch, kFloats = kState + 3 * kRows;
    static_assert(kFloats * 4 <= KernelShape::SHARED_BYTES, "queries, keys, values and scores fit");
    static_assert(kKeys % kWarps == 0, "a warp has whole keys");
};

/// Loads up to 32 rows of `dim` floats, times `scale`; rows that are not there are zeros.
__device__ __forceinline__ void load_rows(float* to, const SpanEntry& from, u64 first, u32 dim, float scale) {
    for (u32 i = team::thread(); i < 32 * dim; i += team::kThreads) {
        const u32 row = i / dim, column = i % dim;
        const bool is_there = first + row < from.rows;
        to[row * PlainAttention::kPitch + column] = is_there ? at<const float>(from.address + (first + row) * from.stride)[column] * scale : 0.0f;
    }
}

/// One row's running softmax over a block of scores, of which it sees the first `seen`.
__device__ __forceinline__ void soften(float* scores, u32 seen, float& maximum, float& sum, float& rescale) {
    float highest = maximum;
    for (u32 n = 0; n < seen; ++n) highest = fmaxf(highest, scores[n]);
    const float origin = origin_of(highest);
    float added = 0.0f;
    for (u32 n = 0; n < seen; ++n) {
        scores[n] = expf(scores[n] - origin);
        added += scores[n];
    }
    rescale = seen == 0 ? 1.0f : expf(maximum - origin);
    if (seen == 0) return;
    sum = sum * rescale + added;
    maximum = highest;
}

/// 32 queries from row `row` of the tile on, over all segments. `ready(segment)` waits for a segment; false ends the tile.
template <class Ready>
__device__ __forceinline__ bool attend_f32(const AttentionTask& task, u32 dim, u64 row, char* raw, Ready ready) {
    using P = PlainAttention;
    float* q = reinterpret_cast<float*>(raw);
    float *k = q + P::kK, *v = q + P::kV, *scores = q + P::kScores;
    float *maximum = q + P::kState, *sum = maximum + P::kRows, *rescale = sum + P::kRows;
    const u32 lane = team::thread() % 32, warp = team::thread() / 32;
    team::meet();
    load_rows(q, task.query(), row, dim, 1.0f / sqrtf(static_cast<float>(dim)));
    if (team::thread() < P::kRows) maximum[lane] = -infinity(), sum[lane] = 0.0f;
    float output[P::kGroups][4] = {};
    for (u32 s = 0; s < task.segment_count; ++s) {
        if (!ready(task.segments[s])) return false;
        const SpanEntry keys = task.keys(s)[0], values = task.keys(s)[1];
        for (u64 start = 0; start < keys.rows; start += P::kKeys) {
            team::meet();
            load_rows(k, keys, start, dim, 1.0f);
            load_rows(v, values, start, dim, 1.0f);
            team::meet();
            const u32 count = keys.rows - start < P::kKeys ? static_cast<u32>(keys.rows - start) : P::kKeys;
            const u32 seen = task.seen(row + lane, task.segments[s].position + start, count);
#pragma unroll 1
            for (u32 n = warp; n < count; n += P::kWarps) {
                float score = 0.0f;
                for (u32 d = 0; d < dim; d += 4) {
                    const float4 a = *reinterpret_cast<const float4*>(q + lane * P::kPitch + d);
                    const float4 b = *reinterpret_cast<const float4*>(k + n * P::kPitch + d);
                    score = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, score))));
                }
                scores[lane * P::kScorePitch + n] = score;
            }
            team::meet();
            if (warp == 0) soften(scores + lane * P::kScorePitch, seen, maximum[lane], sum[lane], rescale[lane]);
            team::meet();
#pragma unroll
            for (u32 g = 0; g < P::kGroups; ++g) {
                const u32 column = (warp + g * P::kWarps) * 4;
                if (column >= dim) continue;
                float part[4] = {};
#pragma unroll 4
                for (u32 n = 0; n < seen; ++n) {
                    const float weight = scores[lane * P::kScorePitch + n];
                    const float4 value = *reinterpret_cast<const float4*>(v + n * P::kPitch + column);
                    part[0] = fmaf(weight, value.x, part[0]);
                    part[1] = fmaf(weight, value.y, part[1]);
                    part[2] = fmaf(weight, value.z, part[2]);
                    part[3] = fmaf(weight, value.w, part[3]);
                }
#pragma unroll
                for (u32 i = 0; i < 4; ++i) output[g][i] = fmaf(output[g][i], rescale[lane], part[i]);
            }
        }
    }
    team::meet();
    if (row + lane >= task.out->rows) return true;
    float* to = at<float>(task.out->address + (row + lane) * task.out->stride);
#pragma unroll
    for (u32 g = 0; g < P::kGroups; ++g) {
        const u32 column = (warp + g * P::kWarps) * 4;
        if (column >= dim) continue;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) to[column + i] = output[g][i] / sum[lane];
    }
    return true;
}

}  // namespace mk
