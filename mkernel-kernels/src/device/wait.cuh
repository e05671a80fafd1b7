// Waits: a counter that reaches a threshold, or the reason why not. Rust twin: mkernel-core/src/signal.rs.
#pragma once

#include "sync.cuh"

namespace mk {

/// How a wait ended.
enum class WaitEnd { Reached, Deadline, Aborted };

/// What bounds every wait of a launch: the abort word, and a time in which no instruction of any CTA retires.
struct Watch {
    const u32* abort;
    const u64* progress;
    u64 deadline_ns;
};

/// Whether a counter at `seen` satisfies a wait for `wanted`, across the wrap of u64.
__device__ __forceinline__ bool reached(u64 seen, u64 wanted) {
    return static_cast<long long>(seen - wanted) >= 0;
}

/// The clock of one spin.
///
/// The abort word is host memory, and every look at it is a read over PCIe. A thousand threads that look at every poll
/// starve the copy engines (measured: a 256 KiB copy took 1 ms instead of 12 us), so each looks every few milliseconds.
struct Spin {
    static constexpr u64 kLookNs = 1ull << 22;
    u64 start = 0;
    u64 looked = 0;
    u64 progress = 0;

    /// Call after a poll that failed: how the wait ends now, or `Reached` to poll on.
    __device__ __forceinline__ WaitEnd next(const Watch& watch) {
        const u64 now = now_ns();
        if (start == 0) {
            start = looked = now;
            progress = load_relaxed(watch.progress);
        }
        if (now - looked < kLookNs && now - start < watch.deadline_ns) return WaitEnd::Reached;
        looked = now;
        if (load_relaxed_system(watch.abort) != 0) return WaitEnd::Aborted;
        const u64 seen = load_relaxed(watch.progress);
        if (seen != progress) {
            progress = seen;
            start = now;
        }
        return now - start >= watch.deadline_ns ? WaitEnd::Deadline : WaitEnd::Reached;
    }
};

/// One thread waits until `*cell >= wanted`; `seen` is the value last read.
__device__ __forceinline__ WaitEnd wait_for(const u64* cell, u64 wanted, EdgeScope scope, const Watch& watch, u64& seen) {
    Spin spin;
    for (;;) {
        seen = load_acquire(cell, scope);
        if (reached(seen, wanted)) return WaitEnd::Reached;
        const WaitEnd end = spin.next(watch);
        if (end != WaitEnd::Reached) return end;
    }
}

}  // namespace mk
