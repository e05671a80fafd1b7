// The GEMM engine for Hopper (sm_90a): one output tile, C = A * B, as three roles of one CTA that run ahead of each other.
//
// A is [M,K], B is [K,N], C is [M,N], all row-major, bf16 (f16 with MK_F16); sums in f32; C in the same type or f32.
// Any M; N and K multiples of 8 (the copy engine's 16-byte rule). The CTA has 384 threads:
//   warp 0, one lane   gemm_produce   waits for each K segment, loads its boxes into a ring of stages
//   warps 1 and 2      gemm_store     stores what consumer 0 and consumer 1 staged; the last to finish raises the tile
//   warps 4..7, 8..11  gemm_consume   `wgmma` over the stages, then rounds its part into swizzled staging
// Each role keeps its own cursors (`Ring`) from tile to tile and goes on with the next tile by itself, so loads run
// ahead into the next tile and stores trail into it. The two consumers share each stage but not their pace: one may be
// several stages ahead, and then its epilogue runs beside the other's products. A launch's first tile starts them apart.
//
// Why no wait here can hang: a stage is filled unless `segment` blocks, emptied unless a consumer blocks on staging,
// and staging is freed by the copy engine. `segment` and `collect` are the only waits on other CTAs. They must return,
// also when the launch is aborted: then the tile runs to its end on whatever bytes are there and `stored` must not
// signal. In a cluster all CTAs work on tiles with the same number of K blocks.
//
// `Source` joins the engine to its caller, a static schedule or the interpreter:
//   bool segment(tile, index, Segment&)  producer lane: fill in the segment; return once the engine may read it
//   void stored(tile)                    one store lane, if tile.raises: this CTA's part of C is written, visible to it
//   void publish(tile, part)             split-K, one thread: this part's partial is written by its warpgroup
//   void collect(tile, part)             split-K, one thread of the last split: return once the others are published
#pragma once

#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace mk {

/// K segment of a tile: `blocks` blocks of 64 that one wait covers. Its end in K is a multiple of 64 from its start, or
/// both maps end there (the engine reads zeros past them).
struct GemmSegment {
    const TensorMap* a;  // boxes of 64 (K) x kBoxM rows, 128-byte swizzle
    const TensorMap* b;  // boxes of 64 (N) x 64 (K) rows, 128-byte swizzle
    int a_row, a_k;      // this CTA's first row and the segment's first K in `a`
    int b_k, b_column;   // the segment's first K and this CTA's first column in `b`
    int blocks;          // at least 1
};

/// One CTA's output tile.
struct GemmTile {
    const TensorMap* c;        // boxes of 128 bytes x 64 rows, 128-byte swizzle
    int row, column;           // first element of the tile in C
    int rows;                  // rows that may be written; boxes that reach past them are stored row by row
    bool raises;               // whether `stored` is wanted: it costs a wait for the stores' end
    int segments, blocks;      // K segments, and their blocks together: at least 1 each
    char* out;                 // C and its row pitch in bytes and width, for boxes stored row by row
    unsigned long long pitch;  //
    int columns;               //
    int split;                 // split-K: which split this is; the last one adds up and stores
    float* partials;           // split-K: kPartialFloats for each split but the last
};

/// The compiled-in shape of the engine; `Out` is float for f32 output, else the I/O type's 16-bit carrier.
///
/// Three ways to share a tile's work over CTAs. `ClusterM` (or `ClusterN`) = 2: neighbours along M (N) in a cluster load
/// halves of the B (A) they share, for both. `ClusterK` = 2: two CTAs of a cluster take a half of K each, swap halves of
/// their sums through shared memory and store a half of the columns each. `Splits` > 1: tiles of the same C and
/// successive parts of K, anywhere, the last of which adds up.
/// Ranks in a cluster: the multicast neighbour is the low bit, then the half of K.
template <int TileM_, int TileN_, int Stages_, int ClusterM_, int ClusterN_, int ClusterK_, int Splits_, int Boxes_, class Out_>
struct GemmShape {
    using Out = Out_;
    static constexpr int kTileM = TileM_, kTileN = TileN_, kTileK = 64, kStages = Stages_;
    static constexpr int kClusterM = ClusterM_, kClusterN = ClusterN_, kClusterK = ClusterK_;
    static constexpr int kMulticast = kClusterM * kClusterN, kCluster = kMulticast * kClusterK;
    static constexpr int kSplits = Splits_;
    // Two consumers share the tile by rows, or by columns where it has only 64 rows.
    static constexpr int kPartM = kTileM > 64 ? kTileM / 2 : kTileM;
    static constexpr int kPartN = kTileM > 64 ? kTileN : kTileN / 2;
    static constexpr int kBlocksM = kPartM / 64;
    static constexpr int kBoxM = kTileM / kClusterN;
    static constexpr int kChunk = 128 / sizeof(Out);  // columns of one staging box
    static constexpr int kStoredN = kPartN / kClusterK;  // columns of its part that a CTA stores
    static constexpr int kChunks = kStoredN / kChunk;
    static constexpr unsigned kBytesA = kTileM * 128, kBytesB = kTileN * 128, kBoxBytes = 8192;
    static constexpr int kLead = kStages > 2 ? 2 : 1;  // blocks that consumer 0 is given ahead in the first tile
    static constexpr unsigned kStaging = Boxes_;  // staging boxes of a consumer
    static constexpr unsigned kOffsetB = kStages * kBytesA, kOffsetStaging = kOffsetB + kStages * kBytesB;
    static constexpr unsigned kSwapBytes = kClusterK > 1 ? kPartM * kStoredN * 4 : 0;  // of one consumer
    static constexpr unsigned kOffsetSwap = kOffsetStaging + 2 * kStaging * kBoxBytes;
    static constexpr unsigned kOffsetBarriers = kOffsetSwap + 2 * kSwapBytes;
    static constexpr unsigned kSharedBytes = kOffsetBarriers + 8 * (2 * kStages + 4 * kStaging + 4);
    static constexpr int kAccumulators = kPartN / 2;
    static constexpr unsigned long long kPartialFloats = 2ull * kPartM * kStoredN;

    static_assert(kTileM == 64 || kTileM == 128 || kTileM == 256, "a consumer takes 64 or 128 rows");
    static_assert(kPartN == 64 || kPartN == 128 || kPartN == 256, "the widths of mma()");
    static_assert(kBlocksM * kAccumulators <= 128, "accumulators of a thread");
    static_assert(kMulticast <= 2 && kBoxM % 8 == 0, "multicast over pairs");
    static_assert(kClusterK == 1 || (kClusterK == 2 && kBlocksM == 1 && kChunks >= 1), "halves of K");
    static_assert(kSharedBytes <= 227 * 1024, "shared memory of one CTA");
};

/// The engine's shared memory: stages of A, stages of B, staging boxes, barriers; `base` is 1024-byte aligned.
template <class Shape>
struct GemmShared {
    unsigned base;

    __device__ __forceinline__ unsigned a(unsigned stage) const { return base + stage * Shape::kBytesA; }
    __device__ __forceinline__ unsigned b(unsigned stage) const { return base + Shape::kOffsetB + stage * Shape::kBytesB; }
    __device__ __forceinline__ unsigned box(unsigned part, unsigned slot) const {
        return base + Shape::kOffsetStaging + (part * Shape::kStaging + slot) * Shape::kBoxBytes;
    }
    __device__ __forceinline__ unsigned full(unsigned stage) const { return base + Shape::kOffsetBarriers + stage * 8; }
    __device__ __forceinline__ unsigned empty(unsigned stage) const { return full(Shape::kStages + stage); }
    __device__ __forceinline__ unsigned staged(unsigned part, unsigned slot) const {
        return full(2 * Shape::kStages + part * Shape::kStaging + slot);
    }
    __device__ __forceinline__ unsigned free(unsigned part, unsigned slot) const { return staged(part + 2, slot); }
    __device__ __forceinline__ unsigned swap(unsigned part) const { return base + Shape::kOffsetSwap + part * Shape::kSwapBytes; }
    __device__ __forceinline__ unsigned swapped(unsigned part) const { return staged(4, part); }
    __device__ __forceinline__ unsigned room(unsigned part) const { return swapped(part + 2); }

    /// Sets up the barriers; one thread, then a CTA (or cluster) barrier.
    __device__ void init() const {
        for (unsigned stage = 0; stage < Shape::kStages; ++stage) {
            barrier::init(full(stage), 1);
            barrier::init(empty(stage), 2 * Shape::kMulticast);
        }
        for (unsigned part = 0; part < 2; ++part) {
            for (unsigned slot = 0; slot < Shape::kStaging; ++slot) {
                barrier::init(staged(part, slot), 4);
                barrier::init(free(part, slot), 1);
            }
            barrier::init(swapped(part), 1);
            barrier::init(room(part), 4);
        }
        barrier::publish();
    }
};

/// Loads all K blocks of a tile; one lane. In a cluster each CTA loads its share of what they share, for both.
template <class Shape, class Source>
__device__ __forceinline__ void gemm_produce(const GemmTile& tile, Source& source, GemmShared<Shape> shared,
                                             Ring<Shape::kStages>& ring, unsigned rank) {
    constexpr int kColumnBoxes = Shape::kTileN / 64, kOwnBoxes = kColumnBoxes / Shape::kClusterM;
    const int half = rank % Shape::kMulticast;
    const int first_box = Shape::kClusterM > 1 ? half * kOwnBoxes : 0, first_row = Shape::kClusterN > 1 ? half * Shape::kBoxM : 0;
    const unsigned short both = 3u << (rank - half);
    for (int index = 0; index < tile.segments; ++index) {
        GemmSegment segment;
        source.segment(tile, index, segment);
        for (int block = 0; block < segment.blocks; ++block) {
            barrier::wait(shared.empty(ring.slot), ring.parity ^ 1);
            const unsigned full = shared.full(ring.slot);
            barrier::arrive_expecting(full, Shape::kBytesA + Shape::kBytesB);
            const unsigned a = shared.a(ring.slot) + first_row * 128;
            const int a_k = segment.a_k + block * 64, b_k = segment.b_k + block * 64;
            if constexpr (Shape::kClusterN > 1) {
                tma::load_multicast(a, segment.a, a_k, segment.a_row + first_row, full, both);
            } else {
                tma::load(a, segment.a, a_k, segment.a_row, full);
            }
#pragma unroll
            for (int i = 0; i < kOwnBoxes; ++i) {
                const int box = first_box + i;
                const unsigned b = shared.b(ring.slot) + box * Shape::kBoxBytes;
                if constexpr (Shape::kClusterM > 1) {
                    tma::load_multicast(b, segment.b, segment.b_column + box * 64, b_k, full, both);
                } else {
                    tma::load(b, segment.b, segment.b_column + box * 64, b_k, full);
                }
            }
            ring.advance();
        }
    }
}

/// Waits until the cluster's consumers are done with all stages of this CTA: it may leave, or use them otherwise.
template <class Shape>
__device__ __forceinline__ void gemm_produce_end(GemmShared<Shape> shared, Ring<Shape::kStages>& ring) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
        barrier::wait(shared.empty(ring.slot), ring.parity ^ 1);
        ring.advance();
    }
}

/// Hands a stage back to the producers of all CTAs that write it; the whole warpgroup calls it.
template <class Shape>
__device__ __forceinline__ void gemm_release(unsigned empty, unsigned thread) {
    if constexpr (Shape::kMulticast > 1) {
        const unsigned first = Shape::kClusterK > 1 ? cluster_rank() & ~1u : 0;
        if (thread < Shape::kMulticast) barrier::arrive_at(empty, first + thread);
    } else {
        if (thread == 0) barrier::arrive(empty);
    }
}

namespace gemm_detail {

/// Meets `threads` threads at the CTA's named barrier `id`.
__device__ __forceinline__ void meet(unsigned id, unsigned threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts this thread in at named barrier `id` and goes on.
__device__ __forceinline__ void pass(unsigned id, unsigned threads) {
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

constexpr unsigned kStoreBarrier = 1;  // the two store warps
constexpr unsigned kPartBarrier = 2;   // consumer 0; consumer 1 has the next
constexpr unsigned kLeadBarrier = 4;   // consumer 1 waits for consumer 0

}  // namespace gemm_detail

/// What a consumer keeps from tile to tile: cursors over the stages, its staging boxes and its swap buffer.
template <class Shape>
struct GemmConsumer {
    Ring<Shape::kStages> stages;
    Ring<Shape::kStaging> boxes;
    Ring<1> swaps;
    bool started = false;
};

/// Multiplies all K blocks of a tile for one consumer into `sums`.
///
/// In the first tile consumer 1 waits until consumer 0 has issued its first blocks: side by side from the start, both
/// would come to their epilogues at once, with no products beside them.
template <class Shape>
__device__ __forceinline__ void gemm_multiply(const GemmTile& tile, GemmShared<Shape> shared, GemmConsumer<Shape>& at,
                                              unsigned part, unsigned thread,
                                              float (&sums)[Shape::kBlocksM][Shape::kAccumulators]) {
    const int lead = at.started ? 0 : min(tile.blocks, Shape::kLead);
    if (!at.started && part == 1) gemm_detail::meet(gemm_detail::kLeadBarrier, 256);
    at.started = true;
    Ring<Shape::kStages>& ring = at.stages;
    const unsigned part_a = Shape::kTileM > 64 ? part * Shape::kPartM * 128 : 0;
    const unsigned part_b = Shape::kTileM > 64 ? 0 : part * (Shape::kPartN / 64) * Shape::kBoxBytes;
    unsigned previous = 0;
    for (int block = 0; block < tile.blocks; ++block) {
        barrier::wait(shared.full(ring.slot), ring.parity);
        const unsigned long long a = wgmma::along_k(shared.a(ring.slot) + part_a);
        const unsigned long long b = wgmma::along_n<Shape::kBoxBytes>(shared.b(ring.slot) + part_b);
#pragma unroll
        for (int i = 0; i < Shape::kBlocksM; ++i) wgmma::pin(sums[i]);
        wgmma::fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int i = 0; i < Shape::kBlocksM; ++i) {
                wgmma::mma<1>(sums[i], a + (i * 8192 + k * 32) / 16, b + k * 2048 / 16, (block | k) != 0);
            }
        }
        wgmma::commit();
        if (block + 1 == lead && part == 0) gemm_detail::pass(gemm_detail::kLeadBarrier, 256);
        wgmma::wait<1>();
        if (block > 0) gemm_release<Shape>(shared.empty(previous), thread);
        previous = ring.slot;
        ring.advance();
    }
    wgmma::wait<0>();
#pragma unroll
    for (int i = 0; i < Shape::kBlocksM; ++i) wgmma::pin(sums[i]);
    gemm_release<Shape>(shared.empty(previous), thread);
}

}  // namespace mk
