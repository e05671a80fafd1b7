// Waits: a counter that reaches a threshold, or the reason why not. Rust twin: mkernel-core/src/signal.rs.
#pragma once

#include "sync.cuh"

namespace mk {

/// How a wait ended.
enum class WaitEnd { Reached, Deadline, Aborted };

/// What bounds every wait of a launch.
struct Watch {
    const u32* abort;
    u64 deadline_ns;
};

/// Whether a counter at `seen` satisfies a wait for `wanted`, across the wrap of u64.
__device__ __forceinline__ bool reached(u64 seen, u64 wanted) {
    return static_cast<long long>(seen - wanted) >= 0;
}

/// The clock of one spin. It looks at the clock and at the abort word, which is host memory, once in many polls.
struct Spin {
    static constexpr u32 kPolls = 64;
    u64 start = 0;
    u32 polls = 0;

    /// Call after a poll that failed: how the wait ends now, or `Reached` to poll on.
    __device__ __forceinline__ WaitEnd next(const Watch& watch) {
        if (polls == 0) start = now_ns();
        if (++polls % kPolls != 0) return WaitEnd::Reached;
        const u64 now = now_ns();
        if (load_relaxed_system(watch.abort) != 0) return WaitEnd::Aborted;
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
