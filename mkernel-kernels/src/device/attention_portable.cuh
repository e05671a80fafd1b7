// Attention in bf16 or f16 on any GPU since sm_80. Rust twin: mkernel-sim/src/ops/attention.rs.
//
// A warp has 16 queries: scores, softmax and output of them stay in its registers from the first segment to the last, in
// f32. Weights are rounded to the element type for their product with V, as the tensor cores take it; their sum is not.
// Scores are compared unscaled and the difference is scaled, so that equal scores have weight 1 exactly.
//
// Keys that a row does not see have weight 0, and 0 times a NaN is NaN. So where a warp's rows see a block in part, the
// warp looks for values that are not finite, and if there are some it multiplies key by key and leaves hidden ones out.
#pragma once

#include "gemm_portable.cuh"
#include "softmax.cuh"

namespace mk {

/// Queries of a block of a tile, and columns of the output that a pass keeps in registers.
constexpr u32 kQueries = 128, kOutputs = 128;
static_assert(team::kThreads / 32 * 16 == kQueries, "a warp has 16 queries");

/// Where things lie in shared memory: queries, then a ring of stages of keys and values.
template <u32 kKeys, u32 kStages>
struct AttentionLayout {
    u32 pitch;  // of queries and keys
    static constexpr u32 kPitchV = kOutputs * 2 + 16;

    /// Row lengths are padded to the depth of a product, then to spread the banks.
    __device__ __forceinline__ explicit AttentionLayout(u32 dim) : pitch((dim + 15) / 16 * 32 + 16) {}
    __device__ __forceinline__ u32 keys(u32 stage) const { return kQueries * pitch + stage % kStages * kKeys * (pitch + kPitchV); }
    __device__ __forceinline__ u32 values(u32 stage) const { return keys(stage) + kKeys * pitch; }

    __device__ static constexpr u32 bytes(u32 dim) { return kQueries * (dim * 2 + 16) + kStages * kKeys * (dim * 2 + 16 + kPitchV); }
};
static_assert(AttentionLayout<64, 2>::bytes(128) <= KernelShape::SHARED_BYTES, "two stages of 64 keys fit");
static_assert(AttentionLayout<32, 1>::bytes(256) <= KernelShape::SHARED_BYTES, "a stage of 32 long keys fits");

/// Starts fetching rows `first..` of a span, `width` bytes from `byte` on; what is not there becomes zeros.
template <u32 kCount>
__device__ __forceinline__ void fetch_rows(u32 to, u32 pitch, const SpanEntry& span, u64 first, u32 byte, u32 width) {
    const bool aligned = ((span.address | span.stride) & 15) == 0;
    for (u32 b = team::thread() % 16 * 16; b < width; b += 256) {
        const long long left = static_cast<long long>(span.row_bytes) - byte - b;
        const u32 valid = left >= 16 ? 16 : left > 0 ? static_cast<u32>(left) : 0;
#pragma unroll 2
        for (u32 i = 0; i < kCount; i += team::kThreads / 16) {
            const u32 row = i + team::thread() / 16;
            fetch16(to + row * pitch + b, span.address + (first + row) * span.stride + byte + b, first + row < span.rows ? valid : 0, aligned);
        }
    }
}

/// Two to the power of `x`, with an error of two units in the last place; below the smallest normal number it is 0.
__device__ __forceinline__ float power_of_two(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

/// Two weights as a pair of elements.
template <class Type>
__device__ __forceinline__ u32 pair_of(float low, float high) {
    return round_to(low, Type{}) | static_cast<u32>(round_to(high, Type{})) << 16;
}

/// Whether an element is infinite or NaN.
__device__ __forceinline__ bool is_not_finite(u32 bits, Bf16) { return (bits & 0x7f80) == 0x7f80; }
__device__ __forceinline__ bool is_not_finite(u32 bits, F16) { return (bits & 0x7c00) == 0x7c00; }
__device__ __forceinline__ float widened(unsigned short bits, Bf16) { return __uint_as_float(static_cast<u32>(bits) << 16); }
__device__ __forceinline__ float widened(unsigned short bits, F16) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

/// The state of a thread: of rows `lane / 4` and `lane / 4 + 8` of its warp, a quarter of the columns.
template <class Type, u32 kKeys>
struct Attention {
    float output[kOutputs / 8][4];
    float maximum[2], sum[2];
    float scores[kKeys / 8][4];

    __device__ __forceinline__ Attention() : output{}, maximum{-infinity(), -infinity()}, sum{} {}

    /// Scores of the warp's rows, unscaled.
    __device__ __forceinline__ void score(u32 queries, u32 keys, u32 pitch, u32 dim) {
        const u32 lane = team::thread() % 32;
        const u32 a_at = queries + (team::thread() / 32 * 16 + lane % 16) * pitch + lane / 16 * 16;
        const u32 b_at = keys + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
#pragma unroll
        for (u32 n = 0; n < kKeys / 8; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
#pragma unroll 1
        for (u32 d = 0; d < dim; d += 16) {
            u32 a[4];
            load_matrices(a, a_at + d * 2);
#pragma unroll
            for (u32 n = 0; n < kKeys / 16; ++n) {
                u32 b[4];
                load_matrices(b, b_at + n * 16 * pitch + d * 2);
                multiply_add(scores[2 * n], a, b[0], b[1], Type{});
                multiply_add(scores[2 * n + 1], a, b[2], b[3], Type{});
            }
        }
    }

    /// Hides what rows do not see: each sees the first `seen` keys of the block.
    __device__ __forceinline__ void hide(const u32 (&seen)[2]) {
        const u32 first = team::thread() % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                if (n * 8 + first + e % 2 >= seen[e / 2]) scores[n][e] = -infinity();
            }
        }
    }

    /// Turns scores into weights; `scale` takes the difference of two scores to a power of two.
    __device__ __forceinline__ void soften(float scale) {
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            float highest = maximum[r];
#pragma unroll
            for (u32 n = 0; n < kKeys / 8; ++n) highest = fmaxf(highest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            const float origin = origin_of(highest), rescale = power_of_two((maximum[r] - origin) * scale);
            float added = 0.0f;
#pragma unroll
            for (u32 n = 0; n < kKeys / 8; ++n) {
#pragma unroll
                for (u32 e = 2 * r; e < 2 * r + 2; ++e) {
                    scores[n][e] = power_of_two((scores[n][e] - origin) * scale);
                    added += scores[n][e];
                }
            }
            sum[r] = sum[r] * rescale + added;
            maximum[r] = highest;
#pragma unroll
            for (u32 j = 0; j < kOutputs / 8; ++j) output[j][2 * r] *= rescale, output[j][2 * r + 1] *= rescale;
        }
    }

    /// Adds weights times values, for `columns` columns.
    __device__ __forceinline__ void add(u32 values, u32 pitch, u32 columns) {
        const u32 lane = team::thread() % 32, b_at = values + lane % 16 * pitch + lane / 16 * 16;
#pragma unroll
        for (u32 n = 0; n < kKeys / 16; ++n) {
            const float(&low)[4] = scores[2 * n];
            const float(&high)[4] = scores[2 * n + 1];
            const u32 a[4] = {pair_of<Type>(low[0], low[1]), pair_of<Type>(low[2], low[3]), pair_of<Type>(high[0], high[1]),
                              pair_of<Type>(high[2], high[3])};
#pragma unroll
            for (u32 j = 0; j < kOutputs / 16; ++j) {
                if (j * 16 >= columns) continue;
                u32 b[4];
                load_matrices_transposed(b, b_at + n * 16 * pitch + j * 32);
                multiply_add(output[2 * j], a, b[0], b[1], Type{});
                multiply_add(output[2 * j + 1], a, b[2], b[3], Type{});
            }
        }
    }

    /// Whether the block has a value that is infinite or NaN; a warp looks together.
    __device__ __forceinline__ static bool has_odd_value(const char* values, u32 pitch, u32 columns) {
        bool found = false;
        for (u32 n = 0; n < kKeys; ++n) {
            for (u32 c = team::thread() % 32; c < columns; c += 32) {
                found |= is_not_finite(*reinterpret_cast<const unsigned short*>(values + n * pitch + c * 2), Type{});
            }
        }
        return __any_sync(~0u, found);
    }

    /// As `add`, key by key, leaving out those that a row does not see. Takes the weights: eight keys at a time move up, so
    /// that registers are named by constants.
    __device__ __forceinline__ void add_seen(const char* values, u32 pitch, u32 columns, const u32 (&seen)[2]) {
        const u32 lane = team::thread() % 32;
#pragma unroll 1
        for (u32 key = 0; key < kKeys; key += 2) {
            const u32 owner = lane / 4 * 4 + key % 8 / 2;
#pragma unroll
            for (u32 odd = 0; odd < 2; ++odd) {
                const float weights[2] = {__shfl_sync(~0u, scores[0][odd], owner), __shfl_sync(~0u, scores[0][2 + odd], owner)};
#pragma unroll
                for (u32 j = 0; j < kOutputs / 8; ++j) {
                    if (j * 8 >= columns) continue;
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) {
                        const u32 column = j * 8 + lane % 4 * 2 + e % 2;
                        const float value = widened(*reinterpret_cast<const unsigned short*>(values + (key + odd) * pitch + column * 2), Type{});
                        if (key + odd < seen[e / 2]) output[j][e] = fmaf(weights[e / 2], value, output[j][e]);
                    }
                }
            }
            if (key % 8 != 6) continue;
#pragma unroll
            for (u32 n = 0; n + 1 < kKeys / 8; ++n) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) scores[n][e] = scores[n + 1][e];
            }
        }
    }

    /// Divides by the sums and writes what lies inside the tile.
    __device__ __forceinline__ void store(const SpanEntry& out, u64 row, u32 first, u32 columns) {
        const u32 lane = team::thread() % 32;
        const Element element = sizeof(Type) == 2 && is_bf16(Type{}) ? Element::Bf16 : Element::F16;
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            float total = sum[r];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const u64 to = row + team::thread() / 32 * 16 + r * 8 + lane / 4;
            if (to >= out.rows) continue;
#pragma unroll
            for (u32 j = 0; j < kOutputs / 8; ++j) {
                const u32 column = j * 8 + lane % 4 * 2;
                if (column >= columns) continue;
                store_pair(out.address + to * out.stride + (first + column) * 2, output[j][2 * r] / total, output[j][2 * r + 1] / total, true, element);
            }
        }
    }

    __device__ __forceinline__ static constexpr bool is_bf16(Bf16) { return true; }
    __device__ __forceinline__ static constexpr bool is_bf16(F16) { return false; }
};

/// Columns `column..` of the output of 128 queries from row `row` of the tile on, over all segments. `ready(segment)` waits
/// for a segment; false ends the tile.
template <class Type, u32 kKeys, u32 kStages, class Ready>
__device__ __forceinline__ bool attend(const AttentionTask& task, u32 dim, u64 row, u32 column, char* raw, Ready ready) {
    const AttentionLayout<kKeys, kStages> layout(dim);
    const u32 shared = shared_offset(raw), pitch = layout.pitch, columns = dim - column < kOutputs ? dim - column : kOutputs;
    const u32 padded = (dim + 15) / 16 * 16, padded_columns = (columns + 15) / 16 * 16;
    const u64 first_row = row + team::thread() / 32 * 16, my_row = first_row + team::thread() % 32 / 4;
    const float scale = 1.0f / sqrtf(static_cast<float>(dim)) * 1.44269504088896340736f;
    Attention<Type, kKeys> state;
    fetch_rows<kQueries>(shared, pitch, task.query(), row, 0, padded * 2);
    for (u32 s = 0; s < task.segment_count; ++s) {
        if (!ready(task.segments[s])) return false;
        const SpanEntry keys = task.keys(s)[0], values = task.keys(s)[1];
        auto fetch = [&](u32 block) {
            fetch_rows<kKeys>(shared + layout.keys(block), pitch, keys, static_cast<u64>(block) * kKeys, 0, padded * 2);
            fetch_rows<kKeys>(shared + layout.values(block), layout.kPitchV, values, static_cast<u64>(block) * kKeys, column * 2, padded_columns * 2);
        };
        const u32 blocks = keys.rows / kKeys + (keys.rows % kKeys != 0);
        if (kStages > 1 && blocks > 0) fetch(0);
        async_commit();
        for (u32 block = 0; block < blocks; ++block) {
            const u32 next = block + kStages - 1;
            if (next < blocks) fetch(next);
            async_commit();
            async_wait<kStages - 1>();
            team::meet();
            const u64 first = task.segments[s].position + static_cast<u64>(block) * kKeys;
            const u32 count = keys.rows - block * kKeys < kKeys ? keys.rows - block * kKeys : kKeys;
            const u32 seen[2] = {task.seen(my_row, first, count), task.seen(my_row + 8, first, count)};
            // The same for the whole warp: whether any of its rows sees any key, and whether all see all.
            if (task.seen(first_row + 15, first, count) > 0) {
                const bool is_full = task.seen(first_row, first, count) == kKeys;
                const char* v = raw + layout.values(block);
                state.score(shared, shared + layout.keys(block), pitch, padded);
                if (!is_full) state.hide(seen);
                state.soften(scale);
                if (!is_full && state.has_odd_value(v, layout.kPitchV, columns)) {
                    state.add_seen(v, layout.kPitchV, columns, seen);
                } else {
                    state.add(shared + layout.values(block), layout.kPitchV, padded_columns);
                }
            }
            team::meet();
        }
    }
    async_wait<0>();
    team::meet();
    state.store(*task.out, row, column, columns);
    return true;
}

/// 128 queries from row `row` of the tile on; long heads in passes over their columns. `ready(segment)` waits for a segment;
/// false ends the tile.
template <class Type, class Ready>
__device__ __forceinline__ bool attend_portable(const AttentionTask& task, u32 dim, u64 row, char* shared, Ready ready) {
    if (dim <= kOutputs) return attend<Type, 64, 2>(task, dim, row, 0, shared, ready);
    for (u32 column = 0; column < dim; column += kOutputs) {
        if (!attend<Type, 32, 1>(task, dim, row, column, shared, ready)) return false;
    }
    return true;
}

}  // namespace mk
