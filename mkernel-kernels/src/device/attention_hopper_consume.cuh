// No Rust twin, as attention_hopper.cuh. The consumers' loop, and the stores.
//
// Two overlaps, both from FlashAttention-3. Within a consumer the scores of the next block are multiplied while the
// products with the present block's values run, and its softmax runs beside those products. Between the consumers turns
// are taken: a consumer issues its products, hands the turn on and does its softmax while the other's products run.
// Blocks with hidden keys, and a tile's last block, are multiplied with their values alone.
//
// Turns: consumer p waits at a named barrier for the other to pass it on. The first turn is consumer 0's, given once by
// consumer 1; a tile of n blocks has n - 1 turns of each. At the end the turn is consumer 0's again, who takes it back.
#pragma once

#include "attention_hopper_values.cuh"

namespace mk {

/// What a consumer keeps from tile to tile.
template <class Shape>
struct AttentionConsumer {
    Ring<Shape::kStages> keys, values;
    Ring<1> queries;
    Ring<Shape::kStaging> boxes;
    bool started = false;
};

namespace attention_detail {

constexpr unsigned kTurnBarrier = 5;  // consumer 0; consumer 1 has the next

/// A value that is the same in all lanes, known to the compiler to be: what products need of it stays out of the way.
__device__ __forceinline__ unsigned uniform(unsigned value) { return __shfl_sync(~0u, value, 0); }

/// Multiplies the consumer's queries with the keys of a stage into `scores`, asynchronously.
template <class Shape>
__device__ __forceinline__ void multiply_keys(unsigned queries, unsigned keys, float (&scores)[Shape::kScores]) {
    const unsigned long long q = wgmma::along_k(queries), k = wgmma::along_k(keys);
#pragma unroll
    for (int i = 0; i < Shape::kDim / 16; ++i) {
        const int box = i / 4, step = i % 4 * 32;
        const unsigned long long a = wgmma::on(q, box * Shape::kBoxBytes + step);
        wgmma::mma<0>(scores, a, wgmma::on(k, box * Shape::kBoxKeys + step), i > 0);
    }
}

/// Hands back a stage of keys, and with the tile's last one the queries. Every warp does so for itself: it orders what
/// the warp read by ordinary loads, too.
template <class Shape>
__device__ __forceinline__ void release_keys(AttentionShared<Shape> shared, AttentionConsumer<Shape>& at,
                                             const AttentionBlock& block, unsigned part, unsigned lane) {
    __syncwarp();
    if (lane == 0) {
        barrier::arrive(shared.empty_k(at.keys.slot));
        if (block.is_last) barrier::arrive(shared.empty_q(part));
    }
    at.keys.advance();
}

/// Hands back a stage of values, likewise.
template <class Shape>
__device__ __forceinline__ void release_values(AttentionShared<Shape> shared, AttentionConsumer<Shape>& at,
                                               unsigned lane) {
    __syncwarp();
    if (lane == 0) barrier::arrive(shared.empty_v(at.values.slot));
    at.values.advance();
}

/// Rounds the output into staging boxes.
template <class Shape>
__device__ __forceinline__ void stage(AttentionShared<Shape> shared, Ring<Shape::kStaging>& boxes, unsigned part,
                                      unsigned thread, const float (&output)[Shape::kSums]) {
    const unsigned warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int box = 0; box < Shape::kBoxes; ++box) {
        barrier::wait(shared.free(part, boxes.slot), boxes.parity ^ 1);
        gemm_detail::fill(shared.box(part, boxes.slot), output + box * 32, warp, lane, static_cast<unsigned short>(0));
        tma::fence_shared();
        __syncwarp();
        if (lane == 0) barrier::arrive(shared.staged(part, boxes.slot));
        boxes.advance();
    }
}

}  // namespace attention_detail

/// Computes and stages one consumer's 64 rows of the next tile; the whole warpgroup.
template <class Shape>
__device__ __forceinline__ void attention_consume(AttentionShared<Shape> shared, AttentionConsumer<Shape>& at,
                                                  unsigned part, unsigned thread) {
    using namespace attention_detail;
    const unsigned lane = thread % 32, queries = uniform(shared.q(part));
    const int row = part * 64 + thread / 32 * 16 + lane / 4;  // the thread's first of the tile
    float scores[Shape::kScores], output[Shape::kSums];
    unsigned weights[Shape::kWeights];
    Softmax<Shape> softmax;
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) output[i] = 0;
    if (!at.started && part == 1) gemm_detail::pass(kTurnBarrier, 256);
    at.started = true;

    barrier::wait(shared.full_k(at.keys.slot), at.keys.parity);
    AttentionBlock block = shared.get_block(at.keys.slot);
    barrier::wait(shared.full_q(part), at.queries.parity);
    at.queries.advance();
    wgmma::pin(scores);
    wgmma::fence();
    multiply_keys<Shape>(queries, shared.k(at.keys.slot), scores);
    wgmma::commit();
    wgmma::wait<0>();
    wgmma::pin(scores);
    release_keys<Shape>(shared, at, block, part, lane);
    if (!is_whole<Shape>(block, part)) mask<Shape>(block, row, lane, scores);
    softmax.digest(scores);
    round<Shape>(scores, weights);

    while (true) {
        const bool is_alone = block.is_last || !is_whole<Shape>(block, part);
        if (is_alone) {
            barrier::wait(shared.full_v(at.values.slot), at.values.parity);
            add_alone<Shape>(shared.v(at.values.slot), block, part, thread, row, weights, output);
            release_values<Shape>(shared, at, lane);
            if (block.is_last) break;
        }
        const unsigned keys = uniform(shared.k(at.keys.slot)), values = uniform(shared.v(at.values.slot));
        barrier::wait(shared.full_k(at.keys.slot), at.keys.parity);
        gemm_detail::meet(kTurnBarrier + part, 256);
        wgmma::pin(scores);
        wgmma::pin(output);
        wgmma::fence();
        multiply_keys<Shape>(queries, keys, scores);
        wgmma::commit();
        if (is_alone) {
            gemm_detail::pass(kTurnBarrier + (part ^ 1), 256);
            block = shared.get_block(at.keys.slot);
            wgmma::wait<0>();
        } else {
            barrier::wait(shared.full_v(at.values.slot), at.values.parity);
            wgmma::fence();
            add_products<Shape>(values, weights, output);
            wgmma::commit();
            gemm_detail::pass(kTurnBarrier + (part ^ 1), 256);
            block = shared.get_block(at.keys.slot);
            wgmma::wait<1>();
        }
        wgmma::pin(scores);
        release_keys<Shape>(shared, at, block, part, lane);
        if (!is_whole<Shape>(block, part)) mask<Shape>(block, row, lane, scores);
        softmax.digest(scores);
        wgmma::wait<0>();
        wgmma::pin(output);
        wgmma::pin(scores);
        if (!is_alone) release_values<Shape>(shared, at, lane);
        round<Shape>(scores, weights);
        softmax.apply(output);
    }
    softmax.normalise(output);
    stage<Shape>(shared, at.boxes, part, thread, output);
}

/// Takes the turn back: the named barriers are as before the first tile.
template <class Shape>
__device__ __forceinline__ void attention_consume_end(const AttentionConsumer<Shape>& at, unsigned part) {
    if (at.started && part == 0) gemm_detail::meet(attention_detail::kTurnBarrier, 256);
}

/// Stores what one consumer stages for a tile, and calls `stored` when both parts are written; the whole warp.
/// The staging is read when it returns; without `raises` the writes may still be on their way.
template <class Shape, class Source>
__device__ __forceinline__ void attention_store(const AttentionTile& tile, Source& source,
                                                AttentionShared<Shape> shared, Ring<Shape::kStaging>& boxes,
                                                unsigned part, unsigned lane) {
    const int row = tile.row + part * 64, rows = tile.rows - static_cast<int>(part) * 64;
    for (int box = 0; box < Shape::kBoxes; ++box) {
        const int column = tile.column + box * 64;
        const unsigned from = shared.box(part, boxes.slot);
        barrier::wait(shared.staged(part, boxes.slot), boxes.parity);
        if (rows < 64) gemm_detail::store_rows<unsigned short>(tile, from, row, column, rows, lane);
        __syncwarp();
        if (lane == 0) {
            if (rows >= 64) tma::store(tile.o, column, row, from);
            tma::commit();
            tma::wait_read<0>();
            barrier::arrive(shared.free(part, boxes.slot));
        }
        boxes.advance();
    }
    if (!tile.raises) return;
    if (lane == 0) tma::wait_written();
    gemm_detail::meet(gemm_detail::kStoreBarrier, 64);
    if (part == 0 && lane == 0) source.stored(tile);
}

}  // namespace mk
