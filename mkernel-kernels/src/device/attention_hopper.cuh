// No Rust twin: the result is that of `mkernel-sim`'s reference attention. The attention engine for Hopper (sm_90a):
// its shape, shared memory and producer. After FlashAttention-3 (Shah et al. 2024), with keys that come in segments.
//
// One instruction is one tile, 128 rows of queries of one head: O = softmax(Q K^T / sqrt(dim)) V over the keys of all
// its segments, which may arrive one after another. Q, K, V and O are row-major, bf16 (f16 with MK_F16), dim 64, 128 or
// 256; any number of rows and keys. The CTA has 384 threads:
//   warp 0, one lane   attention_produce   waits for each segment, loads its blocks of keys and values into two rings
//   warps 1 and 2      attention_store     stores what consumer 0 and consumer 1 staged; then the tile may be signalled
//   warp 3             the caller's, for claiming ahead
//   warps 4-7, 8-11    attention_consume   64 rows each: scores, softmax, products with the values (see its file)
// The producer cuts each segment into blocks of `kKeys` keys from its start, leaves out those that the mask hides from
// the whole tile, and passes on with each block what the consumers must know of it (`AttentionBlock`): they know
// nothing of tiles and segments. Each role goes on with the next tile by itself.
//
// Bytes beside the wanted ones may be anything, NaN included: rows past a segment's end and keys that a row does not
// see take no part. A row that sees no key is NaN, as on the host.
//
// Why no wait here can hang: as in gemm_hopper.cuh; `arrived` is the only wait on other CTAs and must return, also when
// the launch is aborted. The two consumers take turns, by equal numbers of turns a tile.
//
// `Source` joins the engine to its caller:
//   void segment(tile, index, segment&)  producer lane: fill in the segment, without waiting
//   void arrived(tile, index)            producer lane: return once the engine may read it; called once each, in order
//   void stored(tile)                    one store lane, if tile.raises: this tile of O is written, visible to it
#pragma once

#include "gemm_hopper_epilogue.cuh"

namespace mk {

/// One segment of a tile's keys and their values.
struct AttentionSegment {
    const TensorMap* k;    // boxes of 64 (dim) x kKeys rows, 128-byte swizzle
    const TensorMap* v;    // the same
    int k_row, k_column;   // first element in `k`
    int v_row, v_column;   // first element in `v`
    int keys;              // may be none
    long long position;    // of the first key in the sequence
};

/// One CTA's tile.
struct AttentionTile {
    const TensorMap* q;        // boxes of 64 (dim) x 64 rows, 128-byte swizzle
    int q_row, q_column;       // first element in `q`
    const TensorMap* o;        // as `q`
    int row, column;           // first element in O
    int rows;                  // 1 to 128 rows of the tile; no others are written
    int segments;              // at least 1
    bool is_causal;            // whether a row sees no key behind its own position
    long long query;           // position of the first row in the sequence
    bool raises;               // whether `stored` is wanted
    char* out;                 // for boxes stored row by row: O,
    unsigned long long pitch;  // its row pitch in bytes,
    int columns;               // its width
};

/// What the consumers must know of a block: row r of the tile sees its first min(keys, r + diagonal + 1) keys.
struct AttentionBlock {
    int keys, diagonal;
    bool is_last;  // of the tile
};

/// The compiled-in shape of the engine: head dimension, keys of a block, stages of each ring, staging boxes a consumer.
template <int Dim_, int Keys_, int Stages_, int Boxes_>
struct AttentionShape {
    static constexpr int kDim = Dim_, kKeys = Keys_, kStages = Stages_, kStaging = Boxes_, kRows = 128;
    static constexpr int kBoxes = kDim / 64;  // across a row of Q, K, V or O
    static constexpr int kSums = kDim / 2, kScores = kKeys / 2, kWeights = kKeys / 4;  // of one thread
    static constexpr int kUnmasked = 1 << 24;                                          // a diagonal that hides nothing
    // Exponentials are powers of two: the scale of the scores carries log2(e).
    static constexpr float kScale = 1.4426950408889634 / (kDim == 64 ? 8.0 : kDim == 128 ? 11.313708498984761 : 16.0);
    static constexpr unsigned kBoxBytes = 8192, kBytesQ = kBoxes * kBoxBytes;  // of one consumer
    static constexpr unsigned kBoxKeys = kKeys * 128, kBytesKeys = kBoxes * kBoxKeys;
    static constexpr unsigned kOffsetK = 2 * kBytesQ, kOffsetV = kOffsetK + kStages * kBytesKeys;
    static constexpr unsigned kOffsetStaging = kOffsetV + kStages * kBytesKeys;
    static constexpr unsigned kOffsetBlocks = kOffsetStaging + 2 * kStaging * kBoxBytes;
    static constexpr unsigned kOffsetBarriers = kOffsetBlocks + kStages * 16;
    static constexpr unsigned kBarriers = 4 * kStages + 4 + 4 * kStaging;
    static constexpr unsigned kSharedBytes = kOffsetBarriers + 8 * kBarriers;

    static_assert(kDim == 64 || kDim == 128 || kDim == 256, "the widths of mma() with a held factor");
    static_assert(kKeys % 16 == 0 && kKeys <= 256, "whole products, one box");
    static_assert(kSharedBytes <= 227 * 1024, "shared memory of one CTA");
};

/// The engine's shared memory: Q of both consumers, stages of K, stages of V, staging, word of the blocks in the stages
/// of K, barriers; `base` is 1024-byte aligned.
template <class Shape>
struct AttentionShared {
    unsigned base;

    __device__ __forceinline__ unsigned q(unsigned part) const { return base + part * Shape::kBytesQ; }
    __device__ __forceinline__ unsigned k(unsigned stage) const {
        return base + Shape::kOffsetK + stage * Shape::kBytesKeys;
    }
    __device__ __forceinline__ unsigned v(unsigned stage) const {
        return base + Shape::kOffsetV + stage * Shape::kBytesKeys;
    }
    __device__ __forceinline__ unsigned box(unsigned part, unsigned slot) const {
        return base + Shape::kOffsetStaging + (part * Shape::kStaging + slot) * Shape::kBoxBytes;
    }

    // Barriers, in this order, each pair of a filling and an emptying.
    __device__ __forceinline__ unsigned full_k(unsigned stage) const {
        return base + Shape::kOffsetBarriers + stage * 8;
    }
    __device__ __forceinline__ unsigned empty_k(unsigned stage) const { return full_k(Shape::kStages + stage); }
    __device__ __forceinline__ unsigned full_v(unsigned stage) const { return full_k(2 * Shape::kStages + stage); }
    __device__ __forceinline__ unsigned empty_v(unsigned stage) const { return full_k(3 * Shape::kStages + stage); }
    __device__ __forceinline__ unsigned full_q(unsigned part) const { return full_k(4 * Shape::kStages + part); }
    __device__ __forceinline__ unsigned empty_q(unsigned part) const { return full_q(2 + part); }
    __device__ __forceinline__ unsigned staged(unsigned part, unsigned slot) const {
        return full_q(4 + part * Shape::kStaging + slot);
    }
    __device__ __forceinline__ unsigned free(unsigned part, unsigned slot) const { return staged(part + 2, slot); }

    /// Sets up the barriers; one thread, then a CTA barrier. Unrolled, as in GemmShared.
    __device__ __forceinline__ void init() const {
        constexpr unsigned kQ = 4 * Shape::kStages, kFree = kQ + 4 + 2 * Shape::kStaging;
#pragma unroll
        for (unsigned i = 0; i < Shape::kBarriers; ++i) {
            const bool by_all = i < kQ && i / Shape::kStages % 2 == 1, by_consumer = i >= kQ + 2 && i < kFree;
            barrier::init(full_k(i), by_all ? 8 : by_consumer ? 4 : 1);  // each warp of a consumer arrives
        }
        barrier::publish();
    }

    /// Leaves word of the block in a stage of K; the producer, before it arrives there.
    __device__ __forceinline__ void put_block(unsigned stage, const AttentionBlock& block) const {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %3};" ::"r"(base + Shape::kOffsetBlocks + stage * 16),
                     "r"(block.keys), "r"(block.diagonal), "r"(static_cast<int>(block.is_last))
                     : "memory");
    }

    /// Reads what the producer left; the same for the whole warp, and known to the compiler to be.
    __device__ __forceinline__ AttentionBlock get_block(unsigned stage) const {
        int keys, diagonal, last, unused;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(keys), "=r"(diagonal), "=r"(last), "=r"(unused)
                     : "r"(base + Shape::kOffsetBlocks + stage * 16)
                     : "memory");
        keys = __shfl_sync(~0u, keys, 0), diagonal = __shfl_sync(~0u, diagonal, 0);
        return {keys, diagonal, __shfl_sync(~0u, last, 0) != 0};
    }
};

/// What the producer keeps from tile to tile.
template <class Shape>
struct AttentionProducer {
    Ring<Shape::kStages> keys, values;
    Ring<1> queries;
};

namespace attention_detail {

/// How many of a segment's keys any row of the tile sees.
__device__ __forceinline__ int seen(const AttentionTile& tile, const AttentionSegment& segment) {
    if (!tile.is_causal) return segment.keys;
    const long long before = tile.query + tile.rows - segment.position;  // keys up to the last row's own position
    return static_cast<int>(max(0ll, min(before, static_cast<long long>(segment.keys))));
}

/// Loads one block across a row of Q, K or V.
template <int Boxes>
__device__ __forceinline__ void load(unsigned target, unsigned box_bytes, const TensorMap* map, int column, int row,
                                     unsigned full) {
    barrier::arrive_expecting(full, Boxes * box_bytes);
#pragma unroll
    for (int box = 0; box < Boxes; ++box) tma::load(target + box * box_bytes, map, column + box * 64, row, full);
}

}  // namespace attention_detail

namespace attention_detail {

/// The first segment from `index` on that the tile sees, and how many of its keys.
template <class Source>
__device__ __forceinline__ int seek(const AttentionTile& tile, Source& source, int index, AttentionSegment& segment,
                                    int& keys) {
    for (keys = 0; index < tile.segments; ++index) {
        source.segment(tile, index, segment);
        keys = seen(tile, segment);
        if (keys > 0) break;
    }
    return index;
}

/// Where the values of a block are.
struct Values {
    const TensorMap* map;
    int column, row;
};

/// Loads the values of a block; with no map, says that there are none to load.
template <class Shape>
__device__ __forceinline__ void load_values(const Values& from, AttentionShared<Shape> shared,
                                            Ring<Shape::kStages>& ring) {
    const unsigned full = shared.full_v(ring.slot);
    barrier::wait(shared.empty_v(ring.slot), ring.parity ^ 1);
    if (from.map) {
        load<Shape::kBoxes>(shared.v(ring.slot), Shape::kBoxKeys, from.map, from.column, from.row, full);
    } else {
        barrier::arrive(full);
    }
    ring.advance();
}

/// Loads the keys of a block with word of it; none to load for a block of no keys.
template <class Shape>
__device__ __forceinline__ void load_keys(const AttentionBlock& block, const AttentionSegment& segment, int start,
                                          AttentionShared<Shape> shared, Ring<Shape::kStages>& ring) {
    const unsigned full = shared.full_k(ring.slot);
    barrier::wait(shared.empty_k(ring.slot), ring.parity ^ 1);
    shared.put_block(ring.slot, block);
    if (block.keys > 0) {
        const int row = segment.k_row + start;
        load<Shape::kBoxes>(shared.k(ring.slot), Shape::kBoxKeys, segment.k, segment.k_column, row, full);
    } else {
        barrier::arrive(full);
    }
    ring.advance();
}

/// Loads the queries of both consumers.
template <class Shape>
__device__ __forceinline__ void load_queries(const AttentionTile& tile, AttentionShared<Shape> shared, Ring<1>& ring) {
    for (int part = 0; part < 2; ++part) {
        barrier::wait(shared.empty_q(part), ring.parity ^ 1);
        const int row = tile.q_row + part * 64;
        load<Shape::kBoxes>(shared.q(part), Shape::kBoxBytes, tile.q, tile.q_column, row, shared.full_q(part));
    }
    ring.advance();
}

}  // namespace attention_detail

/// Loads Q and all blocks of keys and values of a tile; one lane.
///
/// The values of a block are loaded after the next block's keys, in the order in which the consumers use them. A tile
/// that sees nothing has one block of no keys.
template <class Shape, class Source>
__device__ __forceinline__ void attention_produce(const AttentionTile& tile, Source& source,
                                                  AttentionShared<Shape> shared, AttentionProducer<Shape>& at) {
    using namespace attention_detail;
    AttentionSegment segment, next;
    int keys, next_keys, arrived = 0, index = seek(tile, source, 0, segment, keys);
    bool is_first = true;
    Values owed{};
    do {
        const int next_index = index < tile.segments ? seek(tile, source, index + 1, next, next_keys) : index;
        for (; arrived < min(index + 1, tile.segments); ++arrived) source.arrived(tile, arrived);
        int start = 0;
        do {
            AttentionBlock block{min(keys - start, Shape::kKeys), Shape::kUnmasked, false};
            block.is_last = start + Shape::kKeys >= keys && next_index == tile.segments;
            if (tile.is_causal) {
                const long long diagonal = tile.query - segment.position - start;
                block.diagonal = static_cast<int>(min(diagonal, static_cast<long long>(Shape::kUnmasked)));
            }
            load_keys<Shape>(block, segment, start, shared, at.keys);
            if (is_first) {
                load_queries<Shape>(tile, shared, at.queries);
            } else {
                load_values<Shape>(owed, shared, at.values);
            }
            is_first = false;
            owed = {keys > 0 ? segment.v : nullptr, segment.v_column, segment.v_row + start};
            start += Shape::kKeys;
        } while (start < keys);
        index = next_index, segment = next, keys = next_keys;
    } while (index < tile.segments);
    load_values<Shape>(owed, shared, at.values);
    for (; arrived < tile.segments; ++arrived) source.arrived(tile, arrived);
}

/// Waits until the consumers are done with all stages: the CTA may leave, or use the shared memory otherwise.
template <class Shape>
__device__ __forceinline__ void attention_produce_end(AttentionShared<Shape> shared, AttentionProducer<Shape>& at) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
        barrier::wait(shared.empty_k(at.keys.slot), at.keys.parity ^ 1);
        barrier::wait(shared.empty_v(at.values.slot), at.values.parity ^ 1);
        at.keys.advance(), at.values.advance();
    }
    for (int part = 0; part < 2; ++part) barrier::wait(shared.empty_q(part), at.queries.parity ^ 1);
}

}  // namespace mk
