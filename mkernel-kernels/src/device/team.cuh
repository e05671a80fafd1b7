// No Rust twin. The team: the threads of a CTA that do an instruction together.
//
// In the portable kernel that is every thread. In the pipelined one (MK_PIPELINED) a warpgroup before them serves: it
// claims, loads and stores, and never takes part in the team's barriers.
#pragma once

#include "sync.cuh"

namespace mk::team {

constexpr u32 kThreads = KernelShape::THREADS;
#ifdef MK_PIPELINED
constexpr u32 kFirst = KernelShape::SERVICE_THREADS;
#else
constexpr u32 kFirst = 0;
#endif

/// This thread's number in the team.
__device__ __forceinline__ u32 thread() { return threadIdx.x - kFirst; }

/// Meets the team: what each wrote before is seen by all after.
__device__ __forceinline__ void meet() { asm volatile("barrier.sync 8, %0;" ::"n"(kThreads) : "memory"); }

/// Meets the team; whether `holds` is true of every thread.
__device__ __forceinline__ bool all(bool holds) {
    u32 result;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\t"
        "setp.ne.u32 p, %1, 0;\n\t"
        "barrier.red.and.pred q, 8, %2, p;\n\t"
        "selp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(result)
        : "r"(static_cast<u32>(holds)), "n"(kThreads)
        : "memory");
    return result != 0;
}

}  // namespace mk::team
