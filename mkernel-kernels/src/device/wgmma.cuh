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

#define MK_F4X(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define MK_F16X(i) MK_F4X(i), MK_F4X((i) + 4), MK_F4X((i) + 8), MK_F4X((i) + 12)

/// d[64,64] (+)= a[64,16] * b[16,64].
template <int TransposedB>
__device__ __forceinline__ void mma(float (&d)[32], unsigned long long a, unsigned long long b, bool accumulate) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." MK_WGMMA_TYPE "." MK_WGMMA_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, %35;\n\t}"
        : MK_F16X(0),
          MK_F16X(16)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposedB));
}

/// d[64,128] (+)= a[64,16] * b[16,128].
template <int TransposedB>
__device__ __forceinline__ void mma(float (&d)[64], unsigned long long a, unsigned long long b, bool accumulate) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." MK_WGMMA_TYPE "." MK_WGMMA_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, %67;\n\t}"
        : MK_F16X(0),
          MK_F16X(16),
          MK_F16X(32),
          MK_F16X(48)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposedB));
}

/// d[64,256] (+)= a[64,16] * b[16,256].
template <int TransposedB>
__device__ __forceinline__ void mma(float (&d)[128], unsigned long long a, unsigned long long b, bool accumulate) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." MK_WGMMA_TYPE "." MK_WGMMA_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, 0, %131;\n\t}"
        : MK_F16X(0),
          MK_F16X(16),
          MK_F16X(32),
          MK_F16X(48),
          MK_F16X(64),
          MK_F16X(80),
          MK_F16X(96),
          MK_F16X(112)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposedB));
}

#undef MK_F16X
#undef MK_F4X

}  // namespace wgmma
}  // namespace mk
