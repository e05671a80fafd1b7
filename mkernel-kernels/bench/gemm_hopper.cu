// The Hopper GEMM engine alone, under a static schedule: what gemm_hopper.py checks and times.
//
// Specialised by NVRTC: TILE_M, TILE_N, STAGES, BOXES, CLUSTER_M, CLUSTER_K, SPLITS, and MK_F16 or OUT_F32 if wanted.
// Work units are numbered so that split s of every tile comes before split s+1 of any: the last split waits only for
// units that were claimed earlier.
#include "gemm_hopper_epilogue.cuh"

#ifdef OUT_F32
using Out = float;
#else
using Out = unsigned short;
#endif
using Shape = mk::GemmShape<TILE_M, TILE_N, STAGES, BOXES, CLUSTER_M, CLUSTER_K, SPLITS, Out>;

/// What the host passes; `group` is the raster's height in cluster tiles, `segments` cuts every tile's K for tests.
struct Problem {
    mk::TensorMap a, b, c;
    int m, n, k, rows, columns;  // rows and columns of C in cluster tiles
    int group, segments, clip;   // clip: store only m rows of a taller C
    char* out;
    float* partials;
    unsigned long long* cells;  // two a tile: published partials of consumer 0 and 1, only ever rising
    unsigned long long* exits;  // CTAs that have left, over all launches: launch number = exits / CTAs
    unsigned long long* stored;  // tiles stored, over all launches; null: not counted
    const unsigned long long* gates;  // a cell for each segment, which it waits to see at 1 or more; null: no waits
};

/// The static schedule: cluster c takes units c, c + clusters, ...
struct Schedule {
    const Problem& problem;
    unsigned rank;
    int unit, step;
    unsigned long long launches;  // launches up to and with this one

    __device__ Schedule(const Problem& p) : problem(p) {
        rank = Shape::kCluster > 1 ? mk::cluster_rank() : 0;
        unit = blockIdx.x / Shape::kCluster;
        step = gridDim.x / Shape::kCluster;
        launches = Shape::kSplits > 1 ? *static_cast<volatile unsigned long long*>(p.exits) / gridDim.x + 1 : 0;
    }

    /// The next tile of this CTA, the same for every role; false when there is none.
    __device__ bool next(mk::GemmTile& tile) {
        const int tiles = problem.rows * problem.columns;
        if (unit >= tiles * Shape::kSplits) return false;
        const int split = Shape::kSplits > 1 ? unit / tiles : 0, at = unit - split * tiles;
        unit += step;
        const int strip = problem.rows > problem.group ? at / (problem.group * problem.columns) : 0;
        const int in_strip = at - strip * problem.group * problem.columns;
        const int height = min(problem.group, problem.rows - strip * problem.group);
        const int column = in_strip / height, row = strip * problem.group + in_strip - column * height;
        const int share = split * Shape::kClusterK + rank / Shape::kClusterM;
        first = first_block(share);
        tile.c = &problem.c;
        tile.row = (row * Shape::kClusterM + rank % Shape::kClusterM) * Shape::kTileM;
        tile.column = column * Shape::kTileN;
        tile.rows = problem.clip ? problem.m - tile.row : Shape::kTileM;
        tile.raises = problem.stored != nullptr;
        tile.blocks = first_block(share + 1) - first;
        tile.segments = min(problem.segments, tile.blocks);
        tile.out = problem.out;
        tile.pitch = static_cast<unsigned long long>(problem.n) * sizeof(Out);
        tile.columns = problem.n;
        tile.split = split;
        cell = 2 * (at * Shape::kCluster + rank);
        tile.partials = problem.partials + (at * Shape::kCluster + rank) * (Shape::kSplits - 1) * Shape::kPartialFloats;
        return true;
    }

    __device__ void segment(const mk::GemmTile& tile, int index, mk::GemmSegment& segment) {
        const bool whole = tile.segments == 1;
        const int from = whole ? 0 : tile.blocks * index / tile.segments;
        const int to = whole ? tile.blocks : tile.blocks * (index + 1) / tile.segments;
        if (problem.gates) {
            reach(problem.gates + index, 1);
            mk::tma::fence_all();
        }
        const int k = (first + from) * 64;
        segment = {&problem.a, &problem.b, tile.row, k, k, tile.column, to - from};
    }

    __device__ void stored(const mk::GemmTile&) { atomicAdd(problem.stored, 1ull); }

    __device__ void publish(const mk::GemmTile&, unsigned part) {
        asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(problem.cells + cell + part) : "memory");
    }

    __device__ void collect(const mk::GemmTile&, unsigned part) {
        reach(problem.cells + cell + part, launches * (Shape::kSplits - 1));
    }

  private:
    int cell, first;  // of the tile that `next` gave last: its cells, its first block of K

    /// Waits until a cell is at `wanted` or above; a bound on the spins stands in for the deadline and abort word.
    __device__ static void reach(const unsigned long long* cell, unsigned long long wanted) {
        unsigned long long seen = 0;
        for (unsigned spins = 0; seen < wanted; ++spins) {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(cell) : "memory");
            if (spins > 5000000u) __trap();
        }
    }

    /// The first block of K of a share: splits, and in each the halves of a pair along K.
    __device__ int first_block(int share) {
        return (problem.k + 63) / 64 * share / (Shape::kSplits * Shape::kClusterK);
    }
};

__device__ void consume(const Problem& problem, mk::GemmShared<Shape> shared) {
    const unsigned part = threadIdx.x / 128 - 1, thread = threadIdx.x % 128;
    Schedule schedule(problem);
    Shape::Consumer consumer;
    mk::GemmTile tile;
    while (schedule.next(tile)) mk::gemm_consume<Shape>(tile, schedule, shared, consumer, part, thread);
    mk::gemm_consume_end<Shape>(shared, consumer, part);
}

__device__ void produce(const Problem& problem, mk::GemmShared<Shape> shared) {
    Schedule schedule(problem);
    mk::Ring<Shape::kStages> ring;
    mk::GemmTile tile;
    while (schedule.next(tile)) mk::gemm_produce<Shape>(tile, schedule, shared, ring, schedule.rank);
    mk::gemm_produce_end<Shape>(shared, ring);
}

__device__ void store(const Problem& problem, mk::GemmShared<Shape> shared) {
    const unsigned part = threadIdx.x / 32 - 1;
    Schedule schedule(problem);
    mk::Ring<Shape::kStaging> boxes;
    mk::GemmTile tile;
    while (schedule.next(tile)) mk::gemm_store<Shape>(tile, schedule, shared, boxes, part, threadIdx.x % 32);
}

extern "C" __global__ void __cluster_dims__(Shape::kCluster, 1, 1) __launch_bounds__(384, 1)
    gemm(const __grid_constant__ Problem problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const mk::GemmShared<Shape> shared{mk::shared_address(memory)};
    if (threadIdx.x == 0) shared.init();
    if (threadIdx.x == 32) {
        if (shared.base % 1024 != 0) __trap();
        mk::tma::prefetch(&problem.a);
        mk::tma::prefetch(&problem.b);
        mk::tma::prefetch(&problem.c);
    }
    if (Shape::kCluster > 1) mk::cluster_meet();
    __syncthreads();
    if (threadIdx.x < 128) {
        mk::give_registers<56>();
        if (threadIdx.x == 0) produce(problem, shared);
        if (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) store(problem, shared);
    } else {
        mk::take_registers<224>();
        consume(problem, shared);
    }
    if constexpr (Shape::kSplits > 1) {
        __syncthreads();  // every role has read the count
        if (threadIdx.x == 0) atomicAdd(problem.exits, 1ull);
    }
}
