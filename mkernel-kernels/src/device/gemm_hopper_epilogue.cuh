// No Rust twin, as gemm_hopper.cuh. The second half of the Hopper GEMM engine: sums shared over K, rounding, stores.
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
        const unsigned to = box + row * 128 + unit * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
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

/// Reads four floats of shared memory.
__device__ __forceinline__ float4 load_shared(unsigned from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/// Stores the first `rows` rows of a box by ordinary stores; the whole warp.
template <class Out, class Tile>
__device__ __forceinline__ void store_rows(const Tile& tile, unsigned box, int row, int column, int rows,
                                           unsigned lane) {
    constexpr int kUnit = 16 / sizeof(Out);
#pragma unroll 1
    for (int unit = lane; unit < rows * 8; unit += 32) {
        const int r = unit / 8, at = column + unit % 8 * kUnit;
        if (at >= tile.columns) continue;
        const float4 bytes = load_shared(box + r * 128 + ((unit % 8) ^ (r & 7)) * 16);
        *reinterpret_cast<float4*>(tile.out + (row + r) * tile.pitch + at * sizeof(Out)) = bytes;
    }
}

/// Reads four floats past the L1, where an earlier launch's may lie; volatile, so that it stays where it is called.
__device__ __forceinline__ float4 load_partial(const float4* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/// Writes one consumer's sums as this split's partial, in the threads' own order, so that every access is coalesced.
template <class Shape>
__device__ __forceinline__ void write_partial(const GemmTile& tile, unsigned part, unsigned thread,
                                              const float (&sums)[Shape::kSums]) {
    float* base = tile.partials + tile.split * Shape::kPartialFloats + part * Shape::kPartialFloats / 2;
    float4* to = reinterpret_cast<float4*>(base) + thread;
#pragma unroll
    for (int i = 0; i < Shape::kStoredN / 8; ++i) {
        const float* s = sums + i * 4;
        __stcg(to + i * 128, make_float4(s[0], s[1], s[2], s[3]));
    }
}

/// Adds the earlier splits' partials to `Count` of the last one's sums, from number `first` on: ((p0 + p1) + ...) + own
/// in whatever order they came. Called box by box: all loads of a tile in flight at once would spill.
template <class Shape, int Count>
__device__ __forceinline__ void add_partials(const GemmTile& tile, unsigned part, unsigned thread, int first,
                                             float* sums) {
    const float4* from = reinterpret_cast<const float4*>(tile.partials + part * Shape::kPartialFloats / 2) + thread;
    float4 loaded[Shape::kSplits][Count / 4];
#pragma unroll
    for (int split = 0; split < Shape::kSplits - 1; ++split) {
#pragma unroll
        for (int i = 0; i < Count / 4; ++i) {
            loaded[split][i] = load_partial(from + split * (Shape::kPartialFloats / 4) + (first / 4 + i) * 128);
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
__device__ __forceinline__ void swap_sums(GemmShared<Shape> shared, Ring<1>& swaps, unsigned part, unsigned thread,
                                          float (&sums)[Shape::kSums]) {
    constexpr int kHalf = Shape::kSums / 2;
    const unsigned rank = cluster_rank(), other = rank ^ Shape::kClusterM;
    const unsigned buffer = shared.swap(part) + thread * 16, swapped = shared.swapped(part);
    const bool upper = rank >= Shape::kClusterM;
    if (thread == 0) barrier::arrive_expecting(swapped, Shape::kSwapBytes);
    barrier::wait_cluster(shared.room(part), swaps.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
        float given[4];
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
            given[j - i] = upper ? sums[j] : sums[kHalf + j];
            sums[j] = upper ? sums[kHalf + j] : sums[j];
        }
        barrier::store_at(buffer + i / 4 * 2048, swapped, other, given[0], given[1], given[2], given[3]);
    }
    barrier::wait_cluster(swapped, swaps.parity);
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
        const float4 got = load_shared(buffer + i / 4 * 2048);
        sums[i] += got.x, sums[i + 1] += got.y, sums[i + 2] += got.z, sums[i + 3] += got.w;
    }
    __syncwarp();
    if (thread % 32 == 0) barrier::release_at(shared.room(part), other);
    swaps.advance();
}

}  // namespace gemm_detail

/// Multiplies one consumer's part of a tile and stages it, or publishes it as a partial if its split is not the last.
template <class Shape, class Source>
__device__ __forceinline__ void gemm_consume(const GemmTile& tile, Source& source, GemmShared<Shape> shared,
                                             typename Shape::Consumer& at, unsigned part, unsigned thread) {
    float sums[Shape::kSums];
    gemm_multiply<Shape>(tile, shared, at, part, thread, sums);
    if constexpr (Shape::kClusterK > 1) gemm_detail::swap_sums<Shape>(shared, at.swaps, part, thread, sums);
    if constexpr (Shape::kSplits > 1) {
        if (tile.split < Shape::kSplits - 1) {
            gemm_detail::write_partial<Shape>(tile, part, thread, sums);
            gemm_detail::meet(gemm_detail::kPartBarrier + part, 128);
            if (thread == 0) source.publish(tile, part);
            return;
        }
        if (thread == 0) source.collect(tile, part);
        gemm_detail::meet(gemm_detail::kPartBarrier + part, 128);
    }
    const unsigned warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int box = 0; box < Shape::kBoxesN; ++box) {
        constexpr int kCount = Shape::kBoxN / 2;
        float* own = sums + box * kCount;
        if constexpr (Shape::kSplits > 1) {
            gemm_detail::add_partials<Shape, kCount>(tile, part, thread, box * kCount, own);
        }
        barrier::wait(shared.free(part, at.boxes.slot), at.boxes.parity ^ 1);
        gemm_detail::fill(shared.box(part, at.boxes.slot), own, warp, lane, typename Shape::Out{});
        tma::fence_shared();
        __syncwarp();
        if (lane == 0) barrier::arrive(shared.staged(part, at.boxes.slot));
        at.boxes.advance();
    }
}

/// Waits until the other half of K has read what this consumer sent: its CTA may leave, or use the buffer otherwise.
template <class Shape>
__device__ __forceinline__ void gemm_consume_end(GemmShared<Shape> shared, const typename Shape::Consumer& at,
                                                 unsigned part) {
    if constexpr (Shape::kClusterK > 1) barrier::wait(shared.room(part), at.swaps.parity ^ 1);
}

/// Stores what one consumer stages for a tile, and calls `stored` when both parts are written; the whole warp.
/// The staging is read when it returns; without `raises` the writes may still be on their way.
template <class Shape, class Source>
__device__ __forceinline__ void gemm_store(const GemmTile& tile, Source& source, GemmShared<Shape> shared,
                                           Ring<Shape::kStaging>& boxes, unsigned part, unsigned lane) {
    if (Shape::kSplits > 1 && tile.split < Shape::kSplits - 1) return;
    constexpr int kBehind = Shape::kStaging - 1;  // stores in flight while the next box is filled
    const bool upper = Shape::kClusterK > 1 && cluster_rank() >= Shape::kClusterM;
    const int first_row = Shape::kByRows ? part * 64 : 0, row = tile.row + first_row, rows = tile.rows - first_row;
    const int first_column = tile.column + (Shape::kByRows ? 0 : part * Shape::kPartN) + (upper ? Shape::kStoredN : 0);
    Ring<Shape::kStaging> oldest = boxes;  // the first box that is not handed back yet
    for (int box = 0; box < Shape::kBoxesN; ++box) {
        const int column = first_column + box * Shape::kBoxN;
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
        for (int box = 0; box < min(Shape::kBoxesN, kBehind); ++box, oldest.advance()) {
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
