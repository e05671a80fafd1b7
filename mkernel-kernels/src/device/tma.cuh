// No Rust twin. The bulk tensor copy engine (TMA): 2-D box loads, for one CTA or a pair, and box stores.
//
// The engine works in the async proxy. Bytes that ordinary stores wrote to shared memory cross to it with
// `fence_shared` in each writing thread, before the barrier that the storing thread waits on. Bytes of global memory
// that another thread signalled cross with `fence_all` in the loading thread, after its acquire of the signal.
#pragma once

namespace mk {

/// A tensor map as the driver encodes it; opaque, 64-byte aligned, in parameter, constant or global memory.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

namespace tma {

/// Brings the map itself into the descriptor cache.
__device__ __forceinline__ void prefetch(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Loads the box at element (x, y), x innermost, to `target`; its bytes count at `barrier`. Out of bounds reads zero.
__device__ __forceinline__ void load(unsigned target, const TensorMap* map, int x, int y, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(target),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

/// As `load`, to the same address of every CTA in `ranks`, counting at each one's own barrier.
__device__ __forceinline__ void load_multicast(unsigned target, const TensorMap* map, int x, int y, unsigned barrier,
                                               unsigned short ranks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
        "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(ranks)
        : "memory");
}

/// Stores the box at `source` to element (x, y); parts out of bounds are not written. `commit` must follow.
__device__ __forceinline__ void store(const TensorMap* map, int x, int y, unsigned source) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(source)
                 : "memory");
}

/// Loads `bytes` contiguous bytes, a multiple of 16 at multiples of 16; they count at `barrier`.
__device__ __forceinline__ void load_run(unsigned target, unsigned long long source, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
}

/// Stores `bytes` contiguous bytes, a multiple of 16 at multiples of 16. `commit` must follow.
__device__ __forceinline__ void store_run(unsigned long long target, unsigned source, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(source), "r"(bytes)
                 : "memory");
}

/// Closes a group over this thread's stores since the last one.
__device__ __forceinline__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the last `Pending` groups of this thread have read their source: it may be overwritten.
template <int Pending>
__device__ __forceinline__ void wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/// Waits until this thread's groups are written and visible to it; a release by it then covers them.
__device__ __forceinline__ void wait_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Orders this thread's earlier shared-memory writes before the engine's later reads of them.
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Orders what this thread has acquired, in any memory, before the engine's later accesses.
__device__ __forceinline__ void fence_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace tma
}  // namespace mk
