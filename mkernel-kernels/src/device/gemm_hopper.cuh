// No Rust twin: the result is that of `mkernel-sim`'s reference GEMM. The GEMM engine for Hopper (sm_90a), main loop.
//
// One output tile, C = A * B, by three roles of one CTA that run ahead of each other. A is [M,K], B is [K,N], C is
// [M,N], all row-major, bf16 (f16 with MK_F16); sums in f32; C in the same type or f32. Any M; N and K multiples of 8
// (the copy engine's 16-byte rule). The CTA has 384 threads:
//   warp 0, one lane   gemm_produce   waits for each K segment, loads its boxes into a ring of stages
//   warps 1 and 2      gemm_store     stores what consumer 0 and consumer 1 staged; then the tile may be signalled
//   warp 3             the caller's, for claiming ahead
//   warps 4-7, 8-11    gemm_consume   `wgmma` over the stages, then rounds its part into swizzled staging boxes
// Each role keeps its own cursors (`Ring`) from tile to tile and goes on with the next tile by itself, so loads run
// ahead into the next tile and stores trail into it. The two consumers share each stage but not their pace: one may be
// some stages ahead, and then its epilogue runs beside the other's products. A launch's first tile starts them apart.
//
// Why no wait here can hang: a stage is filled unless `segment` blocks, emptied unless a consumer blocks on staging,
// and staging is freed by the copy engine. `segment` and `collect` are the only waits on other CTAs. They must return,
// also when the launch is aborted: then the tile runs to its end on whatever bytes are there and `stored` must not
// signal. CTAs that multicast to each other must work on tiles with the same number of K blocks.
//
// `Source` joins the engine to its caller, a static schedule or the interpreter:
//   void segment(tile, index, segment&)  producer lane: fill in the segment; return once the engine may read it
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
    const TensorMap* a;  // boxes of 64 (K) x kTileM rows, 128-byte swizzle
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
    int segments, blocks;      // K segments, and their blocks together: at least 1 each
    bool raises;               // whether `stored` is wanted: it costs a wait for the stores' end
    char* out;                 // for boxes stored row by row: C,
    unsigned long long pitch;  // its row pitch in bytes,
    int columns;               // its width
    int split;                 // split-K: which split this is; the last one adds up and stores
    float* partials;           // split-K: kPartialFloats for each split but the last
};

/// What a consumer keeps from tile to tile: cursors over the stages, its staging boxes and its swap buffer.
template <unsigned Stages, unsigned Staging>
struct GemmConsumer {
    Ring<Stages> stages;
    Ring<Staging> boxes;
    Ring<1> swaps;
    bool started = false;
};

/// The compiled-in shape of the engine; `Out` is float for f32 output, else the I/O type's 16-bit carrier.
///
/// Three ways to share a tile's work over CTAs. `ClusterM` = 2: the two CTAs of a pair, one tile above the other, load
/// halves of the B they share, for both. `ClusterK` = 2: two CTAs of a cluster take a half of K each, swap halves of
/// their sums through shared memory and store a half of the columns each. `Splits` > 1: tiles of the same C over
/// successive parts of K, on any CTAs, the last of which adds up.
/// Ranks in a cluster: the place in the pair is the low bit, then the half of K.
template <int TileM_, int TileN_, int Stages_, int Boxes_, int ClusterM_, int ClusterK_, int Splits_, class Out_>
struct GemmShape {
    using Out = Out_;
    using Consumer = GemmConsumer<Stages_, Boxes_>;
    static constexpr int kTileM = TileM_, kTileN = TileN_, kStages = Stages_, kSplits = Splits_;
    static constexpr int kClusterM = ClusterM_, kClusterK = ClusterK_, kCluster = kClusterM * kClusterK;
    // Each consumer has 64 rows: a half of the tile's rows, or of the columns of a tile of 64 rows.
    static constexpr bool kByRows = kTileM > 64;
    static constexpr int kPartN = kByRows ? kTileN : kTileN / 2, kSums = kPartN / 2;  // sums: of one thread
    static constexpr int kStoredN = kPartN / kClusterK;  // columns of its part that a CTA stores
    static constexpr int kBoxN = 128 / sizeof(Out), kBoxesN = kStoredN / kBoxN;  // of a staging box, 64 rows high
    static constexpr int kLead = kStages > 2 ? 2 : 1;  // blocks that consumer 0 is given ahead in the first tile
    static constexpr unsigned kStaging = Boxes_;       // staging boxes of a consumer
    static constexpr unsigned kBytesA = kTileM * 128, kBytesB = kTileN * 128, kBoxBytes = 8192;
    static constexpr unsigned kSwapBytes = kClusterK > 1 ? 64 * kStoredN * 4 : 0;  // of one consumer
    static constexpr unsigned kOffsetB = kStages * kBytesA, kOffsetStaging = kOffsetB + kStages * kBytesB;
    static constexpr unsigned kOffsetSwap = kOffsetStaging + 2 * kStaging * kBoxBytes;
    static constexpr unsigned kOffsetBarriers = kOffsetSwap + 2 * kSwapBytes;
    static constexpr unsigned kBarriers = 2 * kStages + 4 * kStaging + 4;
    static constexpr unsigned kSharedBytes = kOffsetBarriers + 8 * kBarriers;
    static constexpr unsigned long long kPartialFloats = 2ull * 64 * kStoredN;

    static_assert(kTileM == 64 || kTileM == 128, "a consumer takes 64 rows");
    static_assert(kPartN == 64 || kPartN == 128 || kPartN == 256, "the widths of mma()");
    static_assert((kClusterM == 1 || kClusterM == 2) && (kClusterK == 1 || kClusterK == 2), "pairs");
    static_assert(kBoxesN >= 1, "a CTA stores whole boxes");
    static_assert(kSharedBytes <= 227 * 1024, "shared memory of one CTA");
};

/// The engine's shared memory: stages of A, stages of B, staging, swap buffers, barriers; `base` is 1024-byte aligned.
template <class Shape>
struct GemmShared {
    unsigned base;

    __device__ __forceinline__ unsigned a(unsigned stage) const { return base + stage * Shape::kBytesA; }
    __device__ __forceinline__ unsigned b(unsigned stage) const {
        return base + Shape::kOffsetB + stage * Shape::kBytesB;
    }
    __device__ __forceinline__ unsigned box(unsigned part, unsigned slot) const {
        return base + Shape::kOffsetStaging + (part * Shape::kStaging + slot) * Shape::kBoxBytes;
    }
    __device__ __forceinline__ unsigned swap(unsigned part) const {
        return base + Shape::kOffsetSwap + part * Shape::kSwapBytes;
    }

    // Barriers, in this order, each pair of a filling and an emptying.
    __device__ __forceinline__ unsigned full(unsigned stage) const { return base + Shape::kOffsetBarriers + stage * 8; }
    __device__ __forceinline__ unsigned empty(unsigned stage) const { return full(Shape::kStages + stage); }
    __device__ __forceinline__ unsigned staged(unsigned part, unsigned slot) const {
        return full(2 * Shape::kStages + part * Shape::kStaging + slot);
    }
    __device__ __forceinline__ unsigned free(unsigned part, unsigned slot) const { return staged(part + 2, slot); }
    __device__ __forceinline__ unsigned swapped(unsigned part) const { return staged(4, part); }
    __device__ __forceinline__ unsigned room(unsigned part) const { return swapped(part + 2); }

    /// Sets up the barriers; one thread, then a CTA (or cluster) barrier. Unrolled: the instruction takes only uniform
    /// addresses, and lanes that each set up one would go through it in turn, for a whole microsecond.
    __device__ __forceinline__ void init() const {
        constexpr unsigned kEmpty = Shape::kStages, kStaged = 2 * kEmpty, kFree = kStaged + 2 * Shape::kStaging;
        constexpr unsigned kSwapped = kFree + 2 * Shape::kStaging, kRoom = kSwapped + 2;
#pragma unroll
        for (unsigned i = 0; i < (Shape::kClusterK > 1 ? kRoom + 2 : kSwapped); ++i) {
            const bool by_consumers = i >= kEmpty && i < kStaged, by_warps = (i >= kStaged && i < kFree) || i >= kRoom;
            barrier::init(full(i), by_consumers ? 2 * Shape::kClusterM : by_warps ? 4 : 1);
        }
        barrier::publish();
    }
};

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

/// Hands a stage back to the producers of all CTAs that write it; the whole warpgroup calls it.
template <class Shape>
__device__ __forceinline__ void release(unsigned empty, unsigned thread) {
    if constexpr (Shape::kClusterM > 1) {
        const unsigned first = Shape::kClusterK > 1 ? cluster_rank() & ~1u : 0;
        if (thread < Shape::kClusterM) barrier::arrive_at(empty, first + thread);
    } else {
        if (thread == 0) barrier::arrive(empty);
    }
}

}  // namespace gemm_detail

/// Loads all K blocks of a tile; one lane. `rank` is the CTA's in its cluster.
template <class Shape, class Source>
__device__ __forceinline__ void gemm_produce(const GemmTile& tile, Source& source, GemmShared<Shape> shared,
                                             Ring<Shape::kStages>& ring, unsigned rank) {
    constexpr int kOwnBoxes = Shape::kTileN / 64 / Shape::kClusterM;  // of B; a pair loads halves, each for both
    const int place = Shape::kClusterM > 1 ? rank % 2 : 0, first_box = place * kOwnBoxes;
    for (int index = 0; index < tile.segments; ++index) {
        GemmSegment segment;
        source.segment(tile, index, segment);
        for (int block = 0; block < segment.blocks; ++block) {
            barrier::wait(shared.empty(ring.slot), ring.parity ^ 1);
            const unsigned full = shared.full(ring.slot);
            const int b_k = segment.b_k + block * 64;
            barrier::arrive_expecting(full, Shape::kBytesA + Shape::kBytesB);
            tma::load(shared.a(ring.slot), segment.a, segment.a_k + block * 64, segment.a_row, full);
#pragma unroll
            for (int i = 0; i < kOwnBoxes; ++i) {
                const int box = first_box + i, column = segment.b_column + box * 64;
                const unsigned b = shared.b(ring.slot) + box * Shape::kBoxBytes;
                if constexpr (Shape::kClusterM > 1) {
                    tma::load_multicast(b, segment.b, column, b_k, full, 3u << (rank - place));
                } else {
                    tma::load(b, segment.b, column, b_k, full);
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

/// Multiplies all K blocks of a tile for one consumer into `sums`.
///
/// In the first tile consumer 1 waits until consumer 0 has issued its first blocks: side by side from the start, both
/// would come to their epilogues at once, with no products beside them.
template <class Shape>
__device__ __forceinline__ void gemm_multiply(const GemmTile& tile, GemmShared<Shape> shared, typename Shape::Consumer& at,
                                              unsigned part, unsigned thread, float (&sums)[Shape::kSums]) {
    const int lead = at.started ? 0 : min(tile.blocks, Shape::kLead);
    if (!at.started && part == 1) gemm_detail::meet(gemm_detail::kLeadBarrier, 256);
    at.started = true;
    const unsigned part_a = Shape::kByRows ? part * 64 * 128 : 0;
    const unsigned part_b = Shape::kByRows ? 0 : part * (Shape::kPartN / 64) * Shape::kBoxBytes;
    unsigned previous = 0;
    for (int block = 0; block < tile.blocks; ++block) {
        barrier::wait(shared.full(at.stages.slot), at.stages.parity);
        const unsigned long long a = wgmma::along_k(shared.a(at.stages.slot) + part_a);
        const unsigned long long b = wgmma::along_n<Shape::kBoxBytes>(shared.b(at.stages.slot) + part_b);
        wgmma::pin(sums);
        wgmma::fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma::mma<1>(sums, a + k * 32 / 16, b + k * 2048 / 16, (block | k) != 0);
        wgmma::commit();
        if (block + 1 == lead && part == 0) gemm_detail::pass(gemm_detail::kLeadBarrier, 256);
        wgmma::wait<1>();
        if (block > 0) gemm_detail::release<Shape>(shared.empty(previous), thread);
        previous = at.stages.slot;
        at.stages.advance();
    }
    wgmma::wait<0>();
    wgmma::pin(sums);
    gemm_detail::release<Shape>(shared.empty(previous), thread);
}

}  // namespace mk
