// The Hopper attention engine alone, claiming tiles from one counter: what attention_hopper.py checks and times.
//
// Specialised by NVRTC: DIM, KEYS, STAGES, BOXES, GIVE, TAKE (registers), and MK_F16 if wanted.
#include "attention_hopper_consume.cuh"

using Shape = mk::AttentionShape<DIM, KEYS, STAGES, BOXES>;

constexpr int kMaxSegments = 16;
constexpr unsigned kClaims = 2;  // tiles between the producer and the stores

/// What the host passes. Tiles are numbered by group of heads, in it by row (the last row first if causal), then head.
struct Problem {
    mk::TensorMap q, k, v, o;
    int heads, shared_by, group;     // query heads of all sequences; how many share a head of K and V; of a group
    int q_rows, kv_rows;             // of one head in Q and O, and in K and V
    int segments, is_causal;
    int rows[kMaxSegments];          // a segment's first row in its head of K and V,
    int keys[kMaxSegments];          // its keys,
    long long positions[kMaxSegments];
    long long query;                 // the position of the first query row
    char* out;
    unsigned* counter;  // tiles claimed, then CTAs that have left: the last one zeroes both
    unsigned long long* stored;       // tiles stored, over all launches; null: not counted
    const unsigned long long* gates;  // a cell for each segment, which it waits to see at 1 or more; null: no waits
};

/// The hooks of the engine, and what a tile's number says.
struct Caller {
    const Problem& problem;
    int head = 0;

    __device__ explicit Caller(const Problem& p) : problem(p) {}

    __device__ static int tiles_of_head(const Problem& p) { return (p.q_rows + Shape::kRows - 1) / Shape::kRows; }
    __device__ static int tiles(const Problem& p) { return p.heads * tiles_of_head(p); }

    __device__ void describe(int number, mk::AttentionTile& tile) {
        const Problem& p = problem;
        const int high = tiles_of_head(p), group = number / (p.group * high), rest = number - group * p.group * high;
        const int wide = min(p.group, p.heads - group * p.group), at = rest / wide;
        head = group * p.group + rest % wide;
        const int first = (p.is_causal ? high - 1 - at : at) * Shape::kRows;
        tile.q = &p.q, tile.o = &p.o;
        tile.q_row = tile.row = head * p.q_rows + first;
        tile.q_column = tile.column = 0;
        tile.rows = min(Shape::kRows, p.q_rows - first);
        tile.segments = p.segments;
        tile.is_causal = p.is_causal;
        tile.query = p.query + first;
        tile.raises = p.stored != nullptr;
        tile.out = p.out, tile.pitch = Shape::kDim * 2, tile.columns = Shape::kDim;
    }

    __device__ void segment(const mk::AttentionTile&, int index, mk::AttentionSegment& segment) {
        const int row = head / problem.shared_by * problem.kv_rows + problem.rows[index];
        segment = {&problem.k, &problem.v, row, 0, row, 0, problem.keys[index], problem.positions[index]};
    }

    /// A bound on the spins stands in for the deadline and abort word.
    __device__ void arrived(const mk::AttentionTile&, int index) {
        if (!problem.gates) return;
        unsigned long long seen = 0;
        for (unsigned spins = 0; seen < 1; ++spins) {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(problem.gates + index) : "memory");
            if (spins > 5000000u) __trap();
        }
        mk::tma::fence_all();
    }

    __device__ void stored(const mk::AttentionTile&) { atomicAdd(problem.stored, 1ull); }
};

/// Tile numbers on their way from the producer to the stores and the consumers.
struct Claims {
    unsigned base;  // for each slot: a filling and an emptying barrier, the number
    mk::Ring<kClaims> ring;

    __device__ unsigned full() const { return base + ring.slot * 24; }

    __device__ static void init(unsigned base) {
        for (unsigned slot = 0; slot < kClaims; ++slot) {
            mk::barrier::init(base + slot * 24, 1);
            mk::barrier::init(base + slot * 24 + 8, 4);
        }
    }

    __device__ void put(int number) {
        mk::barrier::wait(full() + 8, ring.parity ^ 1);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(full() + 16), "r"(number) : "memory");
        mk::barrier::arrive(full());
        ring.advance();
    }

    /// The next tile's number; one thread of each role says that it has read it, once `lanes` threads have.
    __device__ int next(bool leads, unsigned barrier, unsigned lanes) {
        int number;
        mk::barrier::wait(full(), ring.parity);
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(number) : "r"(full() + 16) : "memory");
        number = __shfl_sync(~0u, number, 0);
        if (lanes == 128) mk::gemm_detail::meet(barrier, 128);
        if (leads) mk::barrier::arrive(full() + 8);
        ring.advance();
        return number;
    }
};

__device__ void consume(mk::AttentionShared<Shape> shared, Claims claims) {
    const unsigned part = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0), thread = threadIdx.x % 128;
    mk::AttentionConsumer<Shape> consumer;
    while (claims.next(thread == 0, mk::gemm_detail::kPartBarrier + part, 128) >= 0) {
        mk::attention_consume<Shape>(shared, consumer, part, thread);
    }
    mk::attention_consume_end<Shape>(consumer, part);
}

/// Claims too: only when the loads of a tile are issued is the next one claimed, so that no CTA hoards.
__device__ void produce(const Problem& problem, mk::AttentionShared<Shape> shared, Claims claims) {
    const unsigned tiles = Caller::tiles(problem);
    Caller caller(problem);
    mk::AttentionProducer<Shape> producer;
    mk::AttentionTile tile;
    for (unsigned number; (number = atomicAdd(problem.counter, 1)) < tiles;) {
        claims.put(number);
        caller.describe(number, tile);
        mk::attention_produce<Shape>(tile, caller, shared, producer);
    }
    claims.put(-1);
    if (atomicAdd(problem.counter + 1, 1) + 1 == gridDim.x) problem.counter[0] = 0, problem.counter[1] = 0;
    mk::attention_produce_end<Shape>(shared, producer);
}

__device__ void store(const Problem& problem, mk::AttentionShared<Shape> shared, Claims claims) {
    const unsigned part = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
    Caller caller(problem);
    mk::Ring<Shape::kStaging> boxes;
    mk::AttentionTile tile;
    for (int number; (number = claims.next(lane == 0, 0, 32)) >= 0;) {
        caller.describe(number, tile);
        mk::attention_store<Shape>(tile, caller, shared, boxes, part, lane);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) attention(const __grid_constant__ Problem problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const mk::AttentionShared<Shape> shared{mk::shared_address(memory)};
    const Claims claims{shared.base + Shape::kSharedBytes, {}};
    if (threadIdx.x == 0) {
        Claims::init(claims.base);
        shared.init();
    }
    if (threadIdx.x == 32) {
        if (shared.base % 1024 != 0) __trap();
        mk::tma::prefetch(&problem.q);
        mk::tma::prefetch(&problem.k);
        mk::tma::prefetch(&problem.v);
        mk::tma::prefetch(&problem.o);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        mk::give_registers<GIVE>();
        if (threadIdx.x == 0) produce(problem, shared, claims);
        if (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) store(problem, shared, claims);
    } else {
        mk::take_registers<TAKE>();
        consume(shared, claims);
    }
}
