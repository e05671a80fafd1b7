// No Rust twin. Warpgroup matrix products (`wgmma` m64nNk16) from shared memory, f32 accumulators in registers.
//
// The element type is the specialisation's: f16 with MK_F16, else bf16. Both operands sit in 128-byte-swizzled boxes
// of 64 elements a row, as the copy engine writes them, at 1024-byte-aligned addresses.
// Thread t of the warpgroup holds, for j < N/8: d[4j], d[4j+1] at row 16*(t/32) + t%32/4, columns 8j + 2*(t%4) and the
// next, and d[4j+2], d[4j+3] eight rows below.
#pragma once

#ifdef MK_F16
#define MK_WGMMA_TYPE "f16"
#else
#define MK_WGMMA_TYPE "bf16"
#endif

namespace mk {
namespace wgmma {

/// Describes an operand whose rows run along K (A as [M,K]): 8-row groups 1024 bytes apart; 16 of K are 32 bytes on.
__device__ __forceinline__ unsigned long long along_k(unsigned address) {
    return (address & 0x3FFFFu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/// Describes an operand whose rows run along N (B as [K,N], "transposed"): 64-column boxes `Stride` bytes apart, 8-row
/// groups 1024 bytes apart; 16 of K are 2048 bytes on.
template <unsigned Stride>
__device__ __forceinline__ unsigned long long along_n(unsigned address) {
    return (address & 0x3FFFFu) >> 4 | static_cast<unsigned long long>(Stride >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

/// The same operand `bytes` further on. No carry leaves the low word: addresses of shared memory are small.
__device__ __forceinline__ unsigned long long on(unsigned long long operand, unsigned bytes) {
    return (operand & 0xFFFFFFFF00000000ull) | (static_cast<unsigned>(operand) + (bytes >> 4));
}

/// Orders earlier register and shared-memory accesses before the products that follow.
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes a group over the products issued since the last one.
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until all but the last `Pending` groups are complete.
template <int Pending>
__device__ __forceinline__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving uses of the accumulators across this point.
template <int Count>
__device__ __forceinline__ void pin(float (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The accumulators as text and as operands, eight at a time.
#define MK_F4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define MK_F8(i) MK_F4(i), MK_F4((i) + 4)
#define MK_TEXT_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MK_SUMS_32 MK_F8(0), MK_F8(8), MK_F8(16), MK_F8(24)
#define MK_TEXT_40 MK_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MK_SUMS_40 MK_SUMS_32, MK_F8(32)
#define MK_TEXT_48 MK_TEXT_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MK_SUMS_48 MK_SUMS_40, MK_F8(40)
#define MK_TEXT_56 MK_TEXT_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MK_SUMS_56 MK_SUMS_48, MK_F8(48)
#define MK_TEXT_64 MK_TEXT_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MK_SUMS_64 MK_SUMS_56, MK_F8(56)
#define MK_TEXT_72 MK_TEXT_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MK_SUMS_72 MK_SUMS_64, MK_F8(64)
#define MK_TEXT_80 MK_TEXT_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MK_SUMS_80 MK_SUMS_72, MK_F8(72)
#define MK_TEXT_88 MK_TEXT_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MK_SUMS_88 MK_SUMS_80, MK_F8(80)
#define MK_TEXT_96 MK_TEXT_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MK_SUMS_96 MK_SUMS_88, MK_F8(88)
#define MK_TEXT_104 MK_TEXT_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define MK_SUMS_104 MK_SUMS_96, MK_F8(96)
#define MK_TEXT_112 MK_TEXT_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define MK_SUMS_112 MK_SUMS_104, MK_F8(104)
#define MK_TEXT_120 MK_TEXT_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define MK_SUMS_120 MK_SUMS_112, MK_F8(112)
#define MK_TEXT_128 MK_TEXT_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define MK_SUMS_128 MK_SUMS_120, MK_F8(120)

#define MK_MMA(columns) "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." MK_WGMMA_TYPE "." MK_WGMMA_TYPE " {"

// d[64,columns] (+)= a[64,16] * b[16,columns], `a` in shared memory; a_ to t_ are the numbers of the other operands.
#define MK_MMA_SHARED(columns, sums, a_, b_, p_, t_)                                                       \
    template <int TransposedB>                                                                             \
    __device__ __forceinline__ void mma(float (&d)[sums], unsigned long long a, unsigned long long b,      \
                                        bool accumulate) {                                                 \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_ ", 0;\n\t" MK_MMA(columns)               \
                         MK_TEXT_##sums "}, %" #a_ ", %" #b_ ", p, 1, 1, 0, %" #t_ ";\n\t}"                \
                     : MK_SUMS_##sums                                                                      \
                     : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposedB));               \
    }

// As MK_MMA_SHARED with `a` in registers: columns 2 * (t % 4) and the next of row 16 * (t / 32) + t % 32 / 4, the same
// eight rows below, then both eight columns on; and always adding.
#define MK_MMA_HELD(columns, sums, a0_, a1_, a2_, a3_, b_, t_)                                               \
    template <int TransposedB>                                                                               \
    __device__ __forceinline__ void mma(float (&d)[sums], const unsigned* a, unsigned long long b) {         \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t" MK_MMA(columns)                       \
                         MK_TEXT_##sums "}, {%" #a0_ ", %" #a1_ ", %" #a2_ ", %" #a3_ "}, %" #b_             \
                                        ", p, 1, 1, %" #t_ ";\n\t}"                                          \
                     : MK_SUMS_##sums                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TransposedB));                \
    }

MK_MMA_SHARED(64, 32, 32, 33, 34, 35)
MK_MMA_SHARED(128, 64, 64, 65, 66, 67)
MK_MMA_SHARED(160, 80, 80, 81, 82, 83)
MK_MMA_SHARED(176, 88, 88, 89, 90, 91)
MK_MMA_SHARED(192, 96, 96, 97, 98, 99)
MK_MMA_SHARED(256, 128, 128, 129, 130, 131)
MK_MMA_HELD(64, 32, 32, 33, 34, 35, 36, 37)
MK_MMA_HELD(128, 64, 64, 65, 66, 67, 68, 69)
MK_MMA_HELD(256, 128, 128, 129, 130, 131, 132, 133)

#undef MK_MMA_HELD
#undef MK_MMA_SHARED
#undef MK_MMA

}  // namespace wgmma
}  // namespace mk
