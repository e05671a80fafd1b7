// No Rust twin. Tensor core steps of sm_80 and later, and the copies that feed them.
#pragma once

#include "team.cuh"

namespace mk {

/// bfloat16 and binary16 by their bits, and binary32: the element types of products.
struct Bf16 {
    unsigned short bits;
};
struct F16 {
    unsigned short bits;
};

/// The 32-bit shared-memory address of a pointer into shared memory.
__device__ __forceinline__ u32 shared_offset(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// Starts copying 16 bytes to shared memory, of which `valid` are read and the rest are zeros.
__device__ __forceinline__ void async_copy16(u32 to, u64 from, u32 valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

/// Closes a group of copies.
__device__ __forceinline__ void async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Loads four 8x8 matrices; lanes 0..7 name the rows of the first, and so on.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/// As `load_matrices`, each transposed.
__device__ __forceinline__ void load_matrices_transposed(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/// `sums += a * b` over 16x8x16.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1, Bf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1, F16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounds to nearest even.
__device__ __forceinline__ unsigned short round_to(float value, Bf16) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ unsigned short round_to(float value, F16) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/// Two floats rounded to 16 bits each, `low` in the low half.
__device__ __forceinline__ u32 round_pair(float low, float high, Element output) {
    if (output == Element::Bf16) return round_to(low, Bf16{}) | static_cast<u32>(round_to(high, Bf16{})) << 16;
    return round_to(low, F16{}) | static_cast<u32>(round_to(high, F16{})) << 16;
}

/// Writes `low` and, if `both`, `high` after it, rounded to `output`.
__device__ __forceinline__ void store_pair(u64 to, float low, float high, bool both, Element output) {
    if (output == Element::F32) {
        at<float>(to)[0] = low;
        if (both) at<float>(to)[1] = high;
        return;
    }
    const u32 pair = round_pair(low, high, output);
    if (both && (to & 3) == 0) {
        *at<u32>(to) = pair;
        return;
    }
    at<unsigned short>(to)[0] = static_cast<unsigned short>(pair);
    if (both) at<unsigned short>(to)[1] = static_cast<unsigned short>(pair >> 16);
}

/// Bytes of an element.
__device__ __forceinline__ u32 element_bytes(Element element) {
    return element == Element::F32 ? 4 : 2;
}

}  // namespace mk
