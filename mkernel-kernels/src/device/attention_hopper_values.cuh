// No Rust twin, as attention_hopper.cuh. Products with the values of a block, and what keeps hidden values out of them.
//
// A hidden key has weight zero, but zero times NaN is NaN, and a whole block is multiplied at once. Values past the
// block's end are therefore overwritten with zeros in shared memory, by both consumers alike. Values that one row sees
// and another does not must stay; where one of them is not finite, this consumer multiplies the block by ordinary
// instructions, each row with the keys that it sees.
#pragma once

#include "attention_hopper_softmax.cuh"

namespace mk {
namespace attention_detail {

/// Adds to the output the products of the weights with the values of a stage, asynchronously.
template <class Shape>
__device__ __forceinline__ void add_products(unsigned values, const unsigned (&weights)[Shape::kWeights],
                                             float (&output)[Shape::kSums]) {
    const unsigned long long v = wgmma::along_n<Shape::kBoxKeys>(values);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 16; ++i) wgmma::mma<1>(output, weights + 4 * i, wgmma::on(v, i * 2048));
}

/// a * b + c on a pair of I/O elements.
__device__ __forceinline__ unsigned fma_pair(unsigned a, unsigned b, unsigned c) {
    unsigned d;
#ifdef MK_F16
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#endif
    return d;
}

/// The low (0) or high (1) I/O element of a pair as f32.
__device__ __forceinline__ float widen(unsigned pair, int half) {
#ifdef MK_F16
    float wide;
    asm("{\n\t.reg .b16 low, high, one;\n\tmov.b32 {low, high}, %1;\n\tcvt.f32.f16 %0, low;\n\t}"
        : "=f"(wide)
        : "r"(pair >> 16 * half));
    return wide;
#else
    return __uint_as_float(half ? pair & 0xFFFF0000u : pair << 16);
#endif
}

/// Meets the 128 threads of a consumer; whether `mine` held for any of them.
__device__ __forceinline__ bool meet_any(unsigned id, bool mine) {
    unsigned any;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.b32 p, %1, 0;\n\t"
        "barrier.cta.red.or.pred q, %2, 128, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(any)
        : "r"(static_cast<unsigned>(mine)), "r"(id)
        : "memory");
    return any != 0;
}

/// Zeroes the values past the block's end and says whether there is one that is not finite among those that some row of
/// this consumer does not see. The whole consumer calls it, once the values are there.
template <class Shape>
__device__ __forceinline__ bool clean(unsigned values, const AttentionBlock& block, unsigned part, unsigned thread) {
    const int first = max(0, min(block.keys, seen_by(block, part * 64)));
    unsigned sum = 0;
#pragma unroll
    for (int box = 0; box < Shape::kBoxes; ++box) {
        const unsigned base = values + box * Shape::kBoxKeys + thread * 16;
#pragma unroll 1
        for (int key = first + thread / 8; key < Shape::kKeys; key += 16) {
            const unsigned at = base + (key - thread / 8) * 128;
            if (key < block.keys) {
                const float4 unit = gemm_detail::load_shared(at);  // zero times a finite value adds nothing
                sum = fma_pair(__float_as_uint(unit.x), 0, sum), sum = fma_pair(__float_as_uint(unit.y), 0, sum);
                sum = fma_pair(__float_as_uint(unit.z), 0, sum), sum = fma_pair(__float_as_uint(unit.w), 0, sum);
            } else {
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
            }
        }
    }
    tma::fence_shared();
    return meet_any(gemm_detail::kPartBarrier + part, (sum & 0x7FFF7FFFu) != 0);
}

/// As `add_products`, at once, key by key, each of the thread's rows with the keys that it sees.
template <class Shape>
__device__ __forceinline__ void add_seen(unsigned values, const AttentionBlock& block, int row, unsigned lane,
                                         const unsigned (&weights)[Shape::kWeights], float (&output)[Shape::kSums]) {
    const int upper = seen_by(block, row), lower = seen_by(block, row + 8);
#pragma unroll
    for (int step = 0; step < Shape::kKeys / 16; ++step) {
        const unsigned* held = weights + 4 * step;
#pragma unroll 1
        for (int i = 0; i < min(16, block.keys - step * 16); ++i) {  // beyond, the other consumer may be writing zeros
            const int key = step * 16 + i, holder = (lane & ~3u) + i % 8 / 2;
            const float a = widen(__shfl_sync(~0u, i < 8 ? held[0] : held[2], holder), i % 2);
            const float b = widen(__shfl_sync(~0u, i < 8 ? held[1] : held[3], holder), i % 2);
#pragma unroll
            for (int unit = 0; unit < Shape::kDim / 8; ++unit) {
                const unsigned at = values + unit / 8 * Shape::kBoxKeys + key * 128 + (unit % 8 ^ key % 8) * 16;
                unsigned pair;
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(at + lane % 4 * 4) : "memory");
                float* sums = output + 4 * unit;
                if (key < upper) sums[0] += a * widen(pair, 0), sums[1] += a * widen(pair, 1);
                if (key < lower) sums[2] += b * widen(pair, 0), sums[3] += b * widen(pair, 1);
            }
        }
    }
}

/// Adds the products of a block with nothing beside them; `row` is the thread's first.
template <class Shape>
__device__ __forceinline__ void add_alone(unsigned values, const AttentionBlock& block, unsigned part, unsigned thread,
                                          int row, unsigned (&weights)[Shape::kWeights],
                                          float (&output)[Shape::kSums]) {
    if (!is_whole<Shape>(block, part) && clean<Shape>(values, block, part, thread)) {
        add_seen<Shape>(values, block, row, thread % 32, weights, output);
    } else {
        wgmma::pin(output);
        wgmma::fence();
        add_products<Shape>(values, weights, output);
        wgmma::commit();
        wgmma::wait<0>();
        wgmma::pin(output);
    }
}

}  // namespace attention_detail
}  // namespace mk
