// Products of gathered rows in f32 by plain fused multiply-adds, as gemm_f32.cuh. Rust twin: mkernel-sim/src/ops/expert.rs.
#pragma once

#include "expert_portable.cuh"
#include "gemm_f32.cuh"

namespace mk {

/// What a thread fetches of both operands for one step of K.
template <bool kGated>
struct ExpertFetch {
    float a[8], b[8];

    /// `rows` says which rows of A those of the block are.
    __device__ __forceinline__ void read(const ExpertTile& tile, const u32* rows, u64 column, u64 k) {
        const u64 depth = tile.first.rows, columns = tile.first.row_bytes / 4;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 e = team::thread() + i * team::kThreads;
            const u64 ka = k + e % Plain::kK, kb = k + e / Plain::kN;
            u64 n = e % Plain::kN;
            const bool is_second = kGated && n >= Plain::kN / 2;
            const u64 weights = is_second ? tile.second.address : tile.first.address;
            const u64 stride = is_second ? tile.second.stride : tile.first.stride;
            n = column + (kGated ? n % (Plain::kN / 2) : n);
            const u32 row = rows[e / Plain::kK];
            a[i] = row != kNowhere && ka < depth ? at<const float>(row_of(tile.source, row))[ka] : 0.0f;
            b[i] = kb < depth && n < columns ? at<const float>(weights + kb * stride)[n] : 0.0f;
        }
    }
};

/// One block of a tile over the whole K.
template <bool kGated>
__device__ __forceinline__ void expert_block_f32(const ExpertTile& tile, const SpanEntry& c, u64 row, u64 column, char* raw, Element output) {
    float* tile_a = reinterpret_cast<float*>(raw);
    float* tile_b = tile_a + Plain::kK * Plain::kPitch;
    u32* rows = reinterpret_cast<u32*>(tile_b + Plain::kK * Plain::kPitch);
    float sums[8][8] = {};
    if (team::thread() < Plain::kM) rows[team::thread()] = tile.row(row + team::thread());
    team::meet();
    ExpertFetch<kGated> next;
    next.read(tile, rows, column, 0);
    for (u64 k = 0; k < tile.first.rows; k += Plain::kK) {
        put_operands(tile_a, tile_b, next.a, next.b);
        team::meet();
        if (k + Plain::kK < tile.first.rows) next.read(tile, rows, column, k + Plain::kK);
        multiply_operands(sums, tile_a, tile_b);
        team::meet();
    }
    const u32 size = element_bytes(output), m = team::thread() / 16 * 4, n = team::thread() % 16 * 4;
    const u64 columns = c.row_bytes / size;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u64 r = row + m + i % 4 + i / 4 * 64;
        if (r >= c.rows) continue;
#pragma unroll
        for (u32 j = 0; j < (kGated ? 4 : 8); j += 2) {
            const u64 at_column = column + n + j % 4 + j / 4 * 64;
            if (at_column >= columns) continue;
            const float low = kGated ? gate(sums[i][j], sums[i][j % 4 + 4]) : sums[i][j];
            const float high = kGated ? gate(sums[i][j + 1], sums[i][j % 4 + 5]) : sums[i][j + 1];
            store_pair(c.address + r * c.stride + at_column * size, low, high, at_column + 1 < columns, output);
        }
    }
}

}  // namespace mk
