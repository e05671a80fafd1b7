// No Rust twin. Shared-memory barriers (`mbarrier`), within a CTA and across its cluster.
//
// A barrier is named by its 32-bit shared address. It completes a phase when its arrivals and its announced bytes are
// all in; a waiter names the parity of the phase it waits for. The pair of orderings: `arrive` releases, `wait`
// acquires, both within the CTA; `release_at` and `store_at` pair with `wait_cluster` across it. Every wait here is on
// work of the same cluster that cannot itself wait for another cluster, so it needs no abort word; with MK_SPIN_LIMIT
// (debug builds) a wait that exceeds it traps.
#pragma once

namespace mk {

/// The 32-bit shared-memory address of a pointer into shared memory.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// This CTA's rank in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// Meets all threads of all CTAs of the cluster. It releases nothing but what a fence before it released: after
/// `barrier::publish` it makes the barriers usable by the whole cluster.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

namespace barrier {

/// Sets a barrier up for `arrivals` per phase; `publish` must follow before any other thread uses it.
__device__ __forceinline__ void init(unsigned address, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
}

/// Makes initialised barriers known to the cluster and to the copy engine; a CTA or cluster barrier must follow.
__device__ __forceinline__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}

/// Arrives once and announces that the copy engine will bring `bytes` in this phase.
__device__ __forceinline__ void arrive_expecting(unsigned address, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}

/// Arrives once at a barrier of this CTA.
__device__ __forceinline__ void arrive(unsigned address) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}

/// Arrives once at the barrier with the same address in CTA `rank` of the cluster (which may be this one).
///
/// For handing a stage back only: what it orders is this warpgroup's completed `wgmma` reads, no ordinary access. (With
/// `.release.cluster` the compiler puts a full memory barrier into the main loop.)
__device__ __forceinline__ void arrive_at(unsigned address, unsigned rank) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(address),
        "r"(rank)
        : "memory");
}

/// As `arrive_at`, and releases this thread's earlier accesses to the cluster; costs a memory barrier.
__device__ __forceinline__ void release_at(unsigned address, unsigned rank) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n\t}" ::"r"(address),
        "r"(rank)
        : "memory");
}

/// Stores four floats at `target` in CTA `rank`; the bytes count at the barrier with address `barrier` there.
__device__ __forceinline__ void store_at(unsigned target, unsigned barrier, unsigned rank, float a, float b,
                                         float c, float d) {
    asm volatile(
        "{\n\t.reg .b32 there, counter;\n\t"
        "mapa.shared::cluster.u32 there, %0, %2;\n\t"
        "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counter];\n\t}" ::
        "r"(target), "r"(barrier), "r"(rank), "f"(a), "f"(b), "f"(c), "f"(d)
        : "memory");
}

/// Whether the phase of this parity is complete; the hardware may suspend the thread for a short time first.
__device__ __forceinline__ bool try_wait(unsigned address, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
    return done != 0;
}

/// Waits until the phase of this parity is complete.
__device__ __forceinline__ void wait(unsigned address, unsigned parity) {
#ifdef MK_SPIN_LIMIT
    for (unsigned spins = 0; !try_wait(address, parity); ++spins) {
        if (spins > MK_SPIN_LIMIT) __trap();
    }
#else
    while (!try_wait(address, parity)) {
    }
#endif
}

/// Waits as `wait` and acquires what other CTAs of the cluster released or stored with this phase.
__device__ __forceinline__ void wait_cluster(unsigned address, unsigned parity) {
    wait(address, parity);
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

}  // namespace barrier

/// A cursor over a ring of `Slots` barriers: the slot in use and the parity of the phase it is in.
template <unsigned Slots>
struct Ring {
    unsigned slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == Slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

}  // namespace mk
