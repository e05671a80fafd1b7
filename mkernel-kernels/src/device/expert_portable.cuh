// Products of gathered rows in bf16 or f16 on any GPU since sm_80. Rust twin: mkernel-sim/src/ops/expert.rs.
//
// Blocks, stages and products are those of gemm_portable.cuh; only rows of A are fetched from where a list says. With two
// matrices a block is half as wide: the left half of B's columns in shared memory is the first matrix, the right half the
// second, and a thread has both sums of an element.
#pragma once

#include "gemm_portable.cuh"
#include "rows.cuh"

namespace mk {

/// A tile, as its entry says.
struct ExpertTile {
    SpanEntry source, first, second;  // rows of A; the expert's own rows of weights, twice the same unless there are two
    u64 list;                         // address of the rows' numbers, or 0 if they are the source's first
    u32 rows;

    /// The row of A that is row `row` of the tile, or `kNowhere`.
    __device__ __forceinline__ u32 row(u64 row) const {
        if (row >= rows) return kNowhere;
        const u32 number = list == 0 ? static_cast<u32>(row) : at<const u32>(list)[row];
        return number < source.rows ? number : kNowhere;
    }
};

/// `silu(g) * u` with `silu(g) = g / (1 + exp(-g))`.
__device__ __forceinline__ float gate(float g, float u) {
    return g / (1.0f + expf(-g)) * u;
}

/// As `Feed` for a block of A, with rows from anywhere.
struct Gather {
    static constexpr u32 kVectors = Portable::kK * 2 / 16, kRowStep = team::kThreads / kVectors, kSteps = Portable::kM / kRowStep;
    u64 from[kSteps];
    u32 live;         // a bit for each row that there is
    long long bytes;  // bytes left in a row
    bool aligned;

    __device__ __forceinline__ Gather(const ExpertTile& tile, u64 row) {
        const u32 byte = team::thread() % kVectors * 16;
        live = 0;
#pragma unroll
        for (u32 i = 0; i < kSteps; ++i) {
            const u32 number = tile.row(row + team::thread() / kVectors + i * kRowStep);
            from[i] = tile.source.address + (number == kNowhere ? 0 : number * tile.source.stride) + byte;
            live |= static_cast<u32>(number != kNowhere) << i;
        }
        bytes = static_cast<long long>(tile.source.row_bytes) - byte;
        aligned = ((tile.source.address | tile.source.stride) & 15) == 0;
    }

    /// Fetches a block and moves on along K.
    __device__ __forceinline__ void fetch(u32 to) {
        to += team::thread() / kVectors * Portable::kPitchA + team::thread() % kVectors * 16;
        const u32 width = bytes >= 16 ? 16 : bytes > 0 ? static_cast<u32>(bytes) : 0;
#pragma unroll
        for (u32 i = 0; i < kSteps; ++i) {
            fetch16(to + i * kRowStep * Portable::kPitchA, from[i], live >> i & 1 ? width : 0, aligned);
            from[i] += Portable::kK * 2;
        }
        bytes -= Portable::kK * 2;
    }
};

/// Rounds and writes the part of a block that lies inside the tile, gated.
__device__ __forceinline__ void store_gated(const Sums& sums, const SpanEntry& c, u64 row, u64 column, Element output) {
    const u32 lane = team::thread() % 32, warp = team::thread() / 32, size = element_bytes(output);
    const u64 columns = c.row_bytes / size;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
            const u64 r = row + warp / 4 * 64 + i * 16 + upper * 8 + lane / 4;
            if (r >= c.rows) continue;
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                const u64 n = column + warp % 4 * 16 + j * 8 + lane % 4 * 2;
                if (n >= columns) continue;
                const float low = gate(sums[i][j][upper * 2], sums[i][j + 2][upper * 2]);
                const float high = gate(sums[i][j][upper * 2 + 1], sums[i][j + 2][upper * 2 + 1]);
                store_pair(c.address + r * c.stride + n * size, low, high, n + 1 < columns, output);
            }
        }
    }
}

/// One block of a tile over the whole K.
template <class Type, bool kGated>
__device__ __forceinline__ void expert_block(const ExpertTile& tile, const SpanEntry& c, u64 row, u64 column, char* raw, Element output) {
    constexpr u32 kK = Portable::kK, kStages = Portable::kStages, kBytesB = Portable::kN * 2 / (kGated ? 2 : 1);
    const u32 shared = shared_offset(raw), steps = (tile.first.rows + kK - 1) / kK;
    Sums sums = {};
    Gather rows(tile, row);
    Feed<kK, kBytesB, Portable::kPitchB> first(tile.first, 0, column * 2), second(tile.second, 0, column * 2);
    auto fetch = [&](u32 step) {
        const u32 stage = shared + step % kStages * Portable::kStageBytes;
        rows.fetch(stage);
        first.fetch(stage + Portable::kBytesA);
        first.from += kK * tile.first.stride;
        first.rows -= kK;
        if (kGated) {
            second.fetch(stage + Portable::kBytesA + kBytesB);
            second.from += kK * tile.second.stride;
            second.rows -= kK;
        }
    };
#pragma unroll
    for (u32 step = 0; step < kStages - 1; ++step) {
        if (step < steps) fetch(step);
        async_commit();
    }
    for (u32 step = 0; step < steps; ++step) {
        async_wait<kStages - 2>();
        team::meet();
        if (step + kStages - 1 < steps) fetch(step + kStages - 1);
        async_commit();
        multiply_stage<Type, kGated ? 32 : 64, kGated ? 128 : 32>(sums, shared + step % kStages * Portable::kStageBytes);
    }
    async_wait<0>();
    team::meet();
    if (kGated) {
        store_gated(sums, c, row, column, output);
    } else {
        store_block(sums, c, row, column, output);
    }
}

}  // namespace mk
