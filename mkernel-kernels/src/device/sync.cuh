// Every ordering between CTAs, and the only file with PTX for it. Rust twin: mkernel-core/src/signal.rs, fifo.rs.
//
// Within a CTA mbarrier.cuh orders shared memory, and tma.cuh what crosses to the copy engine.
// A release and its acquire name the same scope: `Gpu` when both ends are CTAs of one rank, `System` for anybody else.
// Both are made by one thread. A barrier of the CTA joins the other threads to it: what they wrote before the barrier is
// released with it, and what follows the barrier after an acquire sees what was released (PTX causality order).
//
// | release               | acquire                    | covers                                         |
// |-----------------------|----------------------------|------------------------------------------------|
// | add_release           | load_acquire (a cell)      | the bytes that the instruction wrote           |
// | store_release_system  | the proxy's pop (a slot)   | the bytes that the put reads                   |
// | the proxy's publish   | load_acquire (`tail`)      | the pop that freed the slot                    |
// | the transport's signal| load_acquire (a cell)      | the bytes that the put landed                  |
// | store_release_system  | the host's read of a fault | the fields of the fault record                 |
#pragma once

namespace mk {

using u32 = unsigned int;
using u64 = unsigned long long;

/// The object at an address of an entry.
template <class T>
__device__ __forceinline__ T* at(u64 address) {
    return reinterpret_cast<T*>(address);
}

/// Reads a counter; what was released with the value seen is visible afterwards.
__device__ __forceinline__ u64 load_acquire(const u64* from, EdgeScope scope) {
    u64 value;
    if (scope == EdgeScope::Gpu) {
        asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    } else {
        asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    }
    return value;
}

/// Adds to a counter once everything written before is visible in the scope.
__device__ __forceinline__ void add_release(u64* to, u64 amount, EdgeScope scope) {
    if (scope == EdgeScope::Gpu) {
        asm volatile("red.release.gpu.add.u64 [%0], %1;" ::"l"(to), "l"(amount) : "memory");
    } else {
        asm volatile("red.release.sys.add.u64 [%0], %1;" ::"l"(to), "l"(amount) : "memory");
    }
}

/// Stores a word for the CPU once everything written before is visible to it.
__device__ __forceinline__ void store_release_system(u64* to, u64 value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

/// Reads a flag that covers no data.
__device__ __forceinline__ u32 load_relaxed_system(const u32* from) {
    u32 value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

/// Raises a flag that covers no data.
__device__ __forceinline__ void store_relaxed_system(u32* to, u32 value) {
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/// Takes the next number; covers no data.
__device__ __forceinline__ u32 take_number(u32* counter) {
    u32 number;
    asm volatile("atom.relaxed.gpu.add.u32 %0, [%1], 1;" : "=r"(number) : "l"(counter) : "memory");
    return number;
}

/// Takes the next number; covers no data.
__device__ __forceinline__ u64 take_number(u64* counter) {
    u64 number;
    asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], 1;" : "=l"(number) : "l"(counter) : "memory");
    return number;
}

/// Adds to a total that covers no data.
__device__ __forceinline__ void add_relaxed(u64* to, u64 amount) {
    asm volatile("red.relaxed.gpu.add.u64 [%0], %1;" ::"l"(to), "l"(amount) : "memory");
}

/// Reads a total that covers no data.
__device__ __forceinline__ u64 load_relaxed(const u64* from) {
    u64 value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

/// Nanoseconds of the GPU's clock.
__device__ __forceinline__ u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

}  // namespace mk
