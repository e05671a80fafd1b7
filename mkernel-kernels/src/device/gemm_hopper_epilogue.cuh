// The second half of the Hopper GEMM engine: split-K sums, rounding into staging boxes, and the stores behind them.
//
// A staging box is 64 rows of 128 bytes in the copy engine's 128-byte swizzle: 16-byte unit u of row r sits at unit
// u ^ (r % 8). A consumer fills boxes in a fixed order, the store warp of the same part empties them in that order;
// `staged` and `free` are the pair of barriers between them, and carry the bytes one way and the space the other.
#pragma once

#include "gemm_hopper.cuh"

namespace mk {

namespace gemm_detail {

/// Two floats rounded to the I/O type, `low` in the low half.
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned packed;
#ifdef MK_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
    return packed;
}

/// Writes 64 columns of the warp's 16 rows, rounded, from 32 sums a thread.
__device__ __forceinline__ void fill(unsigned box, const float* sums, unsigned warp, unsigned lane, unsigned short) {
    const unsigned row = warp * 16 + (lane & 15);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const float* s = sums + i * 8;
        const unsigned unit = (i * 2 + (lane >> 4)) ^ (row & 7);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(box + row * 128 + unit * 16),
                     "r"(pack(s[0], s[1])), "r"(pack(s[2], s[3])), "r"(pack(s[4], s[5])), "r"(pack(s[6], s[7]))
                     : "memory");
    }
}

/// Writes 32 columns of the warp's 16 rows as f32, from 16 sums a thread.
__device__ __forceinline__ void fill(unsigned box, const float* sums, unsigned warp, unsigned lane, float) {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
        const unsigned row = warp * 16 + lane / 4 + (i & 1) * 8;
        const unsigned unit = ((i >> 1) * 2 + (lane & 3) / 2) ^ (row & 7);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(box + row * 128 + unit * 16 + (lane & 1) * 8),
                     "f"(sums[i * 2]), "f"(sums[i * 2 + 1])
                     : "memory");
    }
}

/// Stores the first `rows` rows of a box by ordinary stores; the whole warp.
template <class Out>
__device__ __forceinline__ void store_rows(const GemmTile& tile, unsigned box, int row, int column, int rows, unsigned lane) {
    constexpr int kUnit = 16 / sizeof(Out);
#pragma unroll 1
    for (int unit = lane; unit < rows * 8; unit += 32) {
        const int r = unit / 8, at = column + unit % 8 * kUnit;
        if (at >= tile.columns) continue;
        float4 bytes;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(bytes.x), "=f"(bytes.y), "=f"(bytes.z), "=f"(bytes.w)
                     : "r"(box + r * 128 + ((unit % 8) ^ (r & 7)) * 16)
                     : "memory");
        *reinterpret_cast<float4*>(tile.out + (row + r) * tile.pitch + at * sizeof(Out)) = bytes;
    }
}

/// Reads four floats past the L1, where an earlier launch's may lie; volatile, so that batches stay apart.
__device__ __forceinline__ float4 load_partial(const float4* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}

}  // namespace gemm_detail

/// Writes one consumer's sums as this split's partial; element order is the threads' own, so every access is coalesced.
template <class Shape>
__device__ __forceinline__ void gemm_write_partial(const GemmTile& tile, unsigned part, unsigned thread,
                                                   const float (&sums)[Shape::kBlocksM][Shape::kAccumulators]) {
    float4* to = reinterpret_cast<float4*>(tile.partials + tile.split * Shape::kPartialFloats + part * Shape::kPartialFloats / 2);
    constexpr int kKept = Shape::kStoredN / 2;  // sums of a row block that are this CTA's to store
#pragma unroll
    for (int i = 0; i < Shape::kBlocksM * kKept / 4; ++i) {
        const float* s = &sums[i * 4 / kKept][i * 4 % kKept];
        __stcg(to + i * 128 + thread, make_float4(s[0], s[1], s[2], s[3]));
    }
}

/// Adds the earlier splits' partials to `Count` of the last one's sums, from number `first` on: ((p0 + p1) + ...) + own,
/// in whatever order they came. Called box by box: all loads of a tile in flight at once would spill.
template <class Shape, int Count>
__device__ __forceinline__ void gemm_add_partials(const GemmTile& tile, unsigned part, unsigned thread, int first, float* sums) {
    const float4* from = reinterpret_cast<const float4*>(tile.partials + part * Shape::kPartialFloats / 2) + thread;
    float4 loaded[Shape::kSplits][Count / 4];
#pragma unroll
    for (int split = 0; split < Shape::kSplits - 1; ++split) {
#pragma unroll
        for (int i = 0; i < Count / 4; ++i) {
            loaded[split][i] = gemm_detail::load_partial(from + split * (Shape::kPartialFloats / 4) + (first / 4 + i) * 128);
        }
    }
#pragma unroll
    for (int i = 0; i < Count / 4; ++i) {
        float4 sum = loaded[0][i];
#pragma unroll
        for (int split = 1; split < Shape::kSplits - 1; ++split) {
            const float4 next = loaded[split][i];
            sum = make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w);
        }
        float* s = sums + i * 4;
        s[0] += sum.x, s[1] += sum.y, s[2] += sum.z, s[3] += sum.w;
    }
}

/// Swaps halves of the sums with the CTA that has the other half of K: afterwards the first half of `sums` is complete,
/// and is the columns that this CTA stores. `room` guards the buffer that the other CTA fills, `swapped` its filling.
template <class Shape>
__device__ __forceinline__ void gemm_swap_sums(GemmShared<Shape> shared, Ring<1>& swaps, unsigned part, unsigned thread,
                                               float (&sums)[Shape::kAccumulators]) {
    constexpr int kHalf = Shape::kAccumulators / 2;
    const unsigned rank = cluster_rank(), other = rank ^ Shape::kMulticast;
    const bool upper = rank >= Shape::kMulticast;
    if (thread == 0) barrier::arrive_expecting(shared.swapped(part), Shape::kSwapBytes);
    barrier::wait_cluster(shared.room(part), swaps.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
        float given[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            given[j] = upper ? sums[i + j] : sums[kHalf + i + j];
            sums[i + j] = upper ? sums[kHalf + i + j] : sums[i + j];
        }
        barrier::store_at(shared.swap(part) + (i / 4 * 128 + thread) * 16, shared.swapped(part), other, given[0], given[1],
                          given[2], given[3]);
    }
    barrier::wait_cluster(shared.swapped(part), swaps.parity);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
        float got[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(got[0]), "=f"(got[1]), "=f"(got[2]), "=f"(got[3])
                     : "r"(shared.swap(part) + (i / 4 * 128 + thread) * 16)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i + j] += got[j];
    }
    __syncwarp();
    if (thread % 32 == 0) barrier::release_at(shared.room(part), other);
    swaps.advance();
}

/// Multiplies one consumer's part of a tile and stages it (or, for a split that is not the last, publishes its partial).
template <class Shape, class Source>
__device__ __forceinline__ void gemm_consume(const GemmTile& tile, Source& source, GemmShared<Shape> shared,
                                             GemmConsumer<Shape>& at, unsigned part, unsigned thread) {
    float sums[Shape::kBlocksM][Shape::kAccumulators];
    gemm_multiply<Shape>(tile, shared, at, part, thread, sums);
    if constexpr (Shape::kClusterK > 1) gemm_swap_sums<Shape>(shared, at.swaps, part, thread, sums[0]);
    if constexpr (Shape::kSplits > 1) {
        if (tile.split < Shape::kSplits - 1) {
            gemm_write_partial<Shape>(tile, part, thread, sums);
            gemm_detail::meet(gemm_detail::kPartBarrier + part, 128);
            if (thread == 0) source.publish(tile, part);
            return;
        }
        if (thread == 0) source.collect(tile, part);
        gemm_detail::meet(gemm_detail::kPartBarrier + part, 128);
    }
    const unsigned warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < Shape::kBlocksM; ++i) {
#pragma unroll
        for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
            constexpr int kSums = Shape::kChunk / 2;
            if constexpr (Shape::kSplits > 1) {
                const int first = (i * Shape::kChunks + chunk) * kSums;
                gemm_add_partials<Shape, kSums>(tile, part, thread, first, &sums[i][chunk * kSums]);
            }
            barrier::wait(shared.free(part, at.boxes.slot), at.boxes.parity ^ 1);
            gemm_detail::fill(shared.box(part, at.boxes.slot), &sums[i][chunk * kSums], warp, lane,
                              typename Shape::Out{});
            tma::fence_shared();
            __syncwarp();
            if (lane == 0) barrier::arrive(shared.staged(part, at.boxes.slot));
            at.boxes.advance();
        }
    }
}

/// Waits until the other half of K has read what this consumer sent: its CTA may leave, or use the buffer otherwise.
template <class Shape>
__device__ __forceinline__ void gemm_consume_end(GemmShared<Shape> shared, const GemmConsumer<Shape>& at, unsigned part) {
    if constexpr (Shape::kClusterK > 1) barrier::wait(shared.room(part), at.swaps.parity ^ 1);
}

/// Stores what one consumer stages for a tile, and calls `stored` when both parts are written; the whole warp.
/// The staging is read when it returns; without `raises` the writes may still be on their way.
template <class Shape, class Source>
__device__ __forceinline__ void gemm_store(const GemmTile& tile, Source& source, GemmShared<Shape> shared,
                                           Ring<Shape::kStaging>& boxes, unsigned part, unsigned lane) {
    if (Shape::kSplits > 1 && tile.split < Shape::kSplits - 1) return;
    constexpr int kBoxes = Shape::kBlocksM * Shape::kChunks, kBehind = Shape::kStaging - 1;
    const int part_row = Shape::kTileM > 64 ? part * Shape::kPartM : 0;
    const int half = Shape::kClusterK > 1 && cluster_rank() >= Shape::kMulticast ? Shape::kStoredN : 0;
    const int part_column = (Shape::kTileM > 64 ? 0 : part * Shape::kPartN) + half;
    Ring<Shape::kStaging> oldest = boxes;  // the first box that is not handed back yet
    for (int box = 0; box < kBoxes; ++box) {
        const int first = part_row + box / Shape::kChunks * 64, rows = tile.rows - first;
        const int row = tile.row + first, column = tile.column + part_column + box % Shape::kChunks * Shape::kChunk;
        const unsigned from = shared.box(part, boxes.slot);
        barrier::wait(shared.staged(part, boxes.slot), boxes.parity);
        if (rows < 64) gemm_detail::store_rows<typename Shape::Out>(tile, from, row, column, rows, lane);
        __syncwarp();
        if (lane == 0) {
            if (rows >= 64) tma::store(tile.c, column, row, from);
            tma::commit();
            if (box >= kBehind) {
                tma::wait_read<kBehind>();
                barrier::arrive(shared.free(part, oldest.slot));
                oldest.advance();
            }
        }
        boxes.advance();
    }
    if (lane == 0) {
        tma::wait_read<0>();
        for (int box = 0; box < (kBoxes < kBehind ? kBoxes : kBehind); ++box, oldest.advance()) {
            barrier::arrive(shared.free(part, oldest.slot));
        }
    }
    if (!tile.raises) return;
    if (lane == 0) tma::wait_written();
    gemm_detail::meet(gemm_detail::kStoreBarrier, 64);
    if (part == 0 && lane == 0) source.stored(tile);
}

/// Gives registers of this warpgroup back to the CTA's pool; a kernel's producer warpgroup calls it first.
template <int Count>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

/// Takes registers for this warpgroup from the CTA's pool, waiting for them.
template <int Count>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

}  // namespace mk
