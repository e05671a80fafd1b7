// No Rust twin, as attention_hopper.cuh. The running softmax of one consumer's 64 rows, in registers.
//
// A thread holds two rows of the scores, eight apart, of each the columns 8j + 2*(t%4) and the next (wgmma.cuh); the
// four threads of a quad share their rows. State of a row: the scaled maximum so far, and this thread's part of the
// sum of exponentials relative to it. Exponentials are 2^(scale * score - maximum), one fused multiply-add each; the
// scaled maximum is rounded once and the same for the exponentials and the rescaling, so that its error cancels.
#pragma once

#include "attention_hopper.cuh"

namespace mk {
namespace attention_detail {

__device__ __forceinline__ float infinity() { return __int_as_float(0x7F800000); }

/// 2^x, to two units in the last place; zero for -inf.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Folds a value over the quad.
template <class Fold>
__device__ __forceinline__ float over_quad(float value, Fold fold) {
    value = fold(value, __shfl_xor_sync(~0u, value, 1));
    return fold(value, __shfl_xor_sync(~0u, value, 2));
}

/// Whether all rows of consumer `part` see all keys of the block.
template <class Shape>
__device__ __forceinline__ bool is_whole(const AttentionBlock& block, unsigned part) {
    return block.keys == Shape::kKeys && static_cast<int>(part * 64) + block.diagonal >= Shape::kKeys - 1;
}

/// How many keys of the block a row of the tile sees; may be negative.
__device__ __forceinline__ int seen_by(const AttentionBlock& block, int row) {
    return min(block.keys, row + block.diagonal + 1);
}

/// Hides the keys that the thread's rows, `row` and the eighth below, do not see.
template <class Shape>
__device__ __forceinline__ void mask(const AttentionBlock& block, int row, unsigned lane,
                                     float (&scores)[Shape::kScores]) {
    const int first_column = lane % 4 * 2, upper = seen_by(block, row), lower = seen_by(block, row + 8);
#pragma unroll
    for (int i = 0; i < Shape::kScores; ++i) {
        const int column = i / 4 * 8 + i % 2;
        if (column >= (i % 4 < 2 ? upper : lower) - first_column) scores[i] = -infinity();
    }
}

/// Rounds exponentials to the I/O type, in the places where a product holds its first factor.
template <class Shape>
__device__ __forceinline__ void round(const float (&scores)[Shape::kScores], unsigned (&weights)[Shape::kWeights]) {
#pragma unroll
    for (int i = 0; i < Shape::kWeights; ++i) weights[i] = gemm_detail::pack(scores[2 * i], scores[2 * i + 1]);
}

/// The state of the thread's two rows.
template <class Shape>
struct Softmax {
    float maximum[2] = {-infinity(), -infinity()};  // scaled and rounded
    float sum[2] = {0, 0};                          // of this thread's columns
    float rescale[2] = {0, 0};                      // what the last block made of earlier exponentials

    /// Takes a block of scores in and turns them into exponentials. One warp has the scheduler almost to itself here,
    /// so every chain is four instructions wide.
    __device__ __forceinline__ void digest(float (&scores)[Shape::kScores]) {
        float highest[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
        for (int i = 4; i < Shape::kScores; ++i) highest[i % 4] = fmaxf(highest[i % 4], scores[i]);
        float added[4], base[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float block = fmaxf(highest[2 * row], highest[2 * row + 1]);
            block = over_quad(block, [](float a, float b) { return fmaxf(a, b); }) * Shape::kScale;
            const float before = maximum[row];
            maximum[row] = fmaxf(before, block);
            // A row that has seen nothing, or nothing but -inf, has no finite maximum to subtract.
            base[row] = maximum[row] == -infinity() ? 0.0f : maximum[row];
            rescale[row] = power(before - base[row]);
        }
#pragma unroll
        for (int i = 0; i < Shape::kScores; ++i) {
            scores[i] = power(__fmaf_rn(scores[i], Shape::kScale, -base[i % 4 / 2]));
            added[i % 4] = i < 4 ? scores[i] : added[i % 4] + scores[i];
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            sum[row] = __fmaf_rn(sum[row], rescale[row], added[2 * row] + added[2 * row + 1]);
        }
    }

    /// Makes the output relative to the new maximum; nothing to do for a warp none of whose rows has one.
    __device__ __forceinline__ void apply(float (&output)[Shape::kSums]) const {
        if (!__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < Shape::kSums; ++i) output[i] *= rescale[i % 4 / 2];
    }

    /// Divides the output by the sums: a quotient, corrected by its remainder, as good as rounded once.
    __device__ __forceinline__ void normalise(float (&output)[Shape::kSums]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = over_quad(sum[half], [](float a, float b) { return a + b; });
            const float inverse = 1.0f / total;
#pragma unroll
            for (int i = 2 * half; i < Shape::kSums; i += i % 2 ? 3 : 1) {
                const float quotient = output[i] * inverse;
                const float corrected = __fmaf_rn(__fmaf_rn(-quotient, total, output[i]), inverse, quotient);
                output[i] = fabsf(quotient) < infinity() ? corrected : quotient;
            }
        }
    }
};

}  // namespace attention_detail
}  // namespace mk
