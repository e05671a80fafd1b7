// No Rust twin, as gemm_portable.cuh. Products in f32 by plain fused multiply-adds: no tensor core, no TF32 rounding.
//
// Each element is one chain of FMAs over K in order, so its error is at most K * 2^-24 * sum |a||b|, as for any f32 dot
// product. Blocks of 128 x 128, K in steps of 16, eight by eight elements a thread. Any shape, any 4-byte alignment.
#pragma once

#include "mma.cuh"

namespace mk {

/// The blocking; rows are padded to keep 16-byte alignment and spread the banks.
struct Plain {
    static constexpr u32 kM = 128, kN = 128, kK = 16, kPitch = 132;
    static_assert(2 * kK * kPitch * 4 <= KernelShape::SHARED_BYTES, "both operands fit");
    static_assert(team::kThreads == 256, "16 x 16 threads of 8 x 8 elements");
};

/// What a thread fetches of both operands for one step of K.
struct PlainFetch {
    float a[8], b[8];

    __device__ __forceinline__ void read(const SpanEntry& from_a, const SpanEntry& from_b, u64 row, u64 column, u64 k) {
        const u64 columns = from_b.row_bytes / 4;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 e = team::thread() + i * team::kThreads;
            const u64 r = row + e / Plain::kK, ka = k + e % Plain::kK, kb = k + e / Plain::kN, n = column + e % Plain::kN;
            a[i] = r < from_a.rows && ka < from_b.rows ? at<const float>(from_a.address + r * from_a.stride)[ka] : 0.0f;
            b[i] = kb < from_b.rows && n < columns ? at<const float>(from_b.address + kb * from_b.stride)[n] : 0.0f;
        }
    }
};

/// Puts what a thread fetched into shared memory, A transposed, so that a thread's eight rows are two vectors.
__device__ __forceinline__ void put_operands(float* to_a, float* to_b, const float (&a)[8], const float (&b)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 e = team::thread() + i * team::kThreads;
        to_a[e % Plain::kK * Plain::kPitch + e / Plain::kK] = a[i];
        to_b[e / Plain::kN * Plain::kPitch + e % Plain::kN] = b[i];
    }
}

/// Adds one step of K that lies in shared memory.
__device__ __forceinline__ void multiply_operands(float (&sums)[8][8], const float* tile_a, const float* tile_b) {
    const u32 m = team::thread() / 16 * 4, n = team::thread() % 16 * 4;
#pragma unroll
    for (u32 step = 0; step < Plain::kK; ++step) {
        float4 part[4];
        part[0] = *reinterpret_cast<const float4*>(tile_a + step * Plain::kPitch + m);
        part[1] = *reinterpret_cast<const float4*>(tile_a + step * Plain::kPitch + m + 64);
        part[2] = *reinterpret_cast<const float4*>(tile_b + step * Plain::kPitch + n);
        part[3] = *reinterpret_cast<const float4*>(tile_b + step * Plain::kPitch + n + 64);
        const float left[8] = {part[0].x, part[0].y, part[0].z, part[0].w, part[1].x, part[1].y, part[1].z, part[1].w};
        const float right[8] = {part[2].x, part[2].y, part[2].z, part[2].w, part[3].x, part[3].y, part[3].z, part[3].w};
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
    }
}

/// Adds `a[row.., :] * b[:, column..]` over the whole K of a segment.
__device__ __forceinline__ void multiply_segment(float (&sums)[8][8], const SpanEntry& a, const SpanEntry& b, u64 row, u64 column,
                                                 float* shared) {
    float* tile_a = shared;
    float* tile_b = shared + Plain::kK * Plain::kPitch;
    PlainFetch next;
    if (b.rows > 0) next.read(a, b, row, column, 0);
    for (u64 k = 0; k < b.rows; k += Plain::kK) {
        put_operands(tile_a, tile_b, next.a, next.b);
        team::meet();
        if (k + Plain::kK < b.rows) next.read(a, b, row, column, k + Plain::kK);
        multiply_operands(sums, tile_a, tile_b);
        team::meet();
    }
}

/// One block of a tile, over all segments. `ready(segment)` waits for a segment; false ends the tile.
template <class Ready>
__device__ __forceinline__ bool multiply_block_f32(const RankEntry& rank, const InstructionEntry& instruction,
                                                   const SpanEntry& c, u64 row, u64 column, char* shared, Ready ready) {
    float sums[8][8] = {};
    for (u32 s = 0; s < instruction.segment_count; ++s) {
        const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments + s];
        if (!ready(segment)) return false;
        const SpanEntry* reads = at<const SpanEntry>(rank.spans) + segment.reads;
        multiply_segment(sums, reads[0], reads[1], row, column, reinterpret_cast<float*>(shared));
    }
    const Element output = static_cast<Element>(instruction.output);
    const u32 size = element_bytes(output), m = team::thread() / 16 * 4, n = team::thread() % 16 * 4;
    const u64 columns = c.row_bytes / size;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u64 r = row + m + i % 4 + i / 4 * 64;
        if (r >= c.rows) continue;
#pragma unroll
        for (u32 j = 0; j < 8; j += 2) {
            const u64 at_column = column + n + j % 4 + j / 4 * 64;
            if (at_column >= columns) continue;
            store_pair(c.address + r * c.stride + at_column * size, sums[i][j], sums[i][j + 1], at_column + 1 < columns, output);
        }
    }
    return true;
}

}  // namespace mk
