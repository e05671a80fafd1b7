// No Rust twin: the result is that of `mkernel-sim`'s reference GEMM. Products in bf16 or f16 on any GPU since sm_80.
//
// Any shape and any alignment. The tile is worked off in blocks of 128 x 128: K in steps of 64 through a ring of stages filled by `cp.async`, products
// by `mma.sync` in f32, one rounding at the end. Bytes outside the operands are zeros in shared memory, never read.
#pragma once

#include "mma.cuh"

namespace mk {

/// The blocking, and where things lie in shared memory. Rows are padded so that `ldmatrix` meets no bank twice.
struct Portable {
    static constexpr u32 kM = 128, kN = 128, kK = 64, kStages = 3;
    static constexpr u32 kPitchA = kK * 2 + 16, kPitchB = kN * 2 + 16;
    static constexpr u32 kBytesA = kM * kPitchA, kStageBytes = kBytesA + kK * kPitchB;
    static_assert(kStages * kStageBytes <= KernelShape::SHARED_BYTES, "the stages fit");
    static_assert(team::kThreads == 256, "2 x 4 warps of 64 x 32");
};

/// The sums of one thread: 4 x 4 products of 16 x 8.
using Sums = float[4][4][4];

/// Fetches up to 16 bytes to shared memory, `valid` of them real.
__device__ __forceinline__ void fetch16(u32 to, u64 from, u32 valid, bool aligned) {
    if (aligned) {
        async_copy16(to, from, valid);
        return;
    }
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        if (i * 2 < valid) words[i / 2] |= static_cast<u32>(at<const unsigned short>(from)[i]) << (i % 2 * 16);
    }
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

/// One thread's part in filling blocks of kRows x kBytes of an operand: one 16-byte column of every kRowStep-th row.
template <u32 kRows, u32 kBytes, u32 kPitch>
struct Feed {
    static constexpr u32 kVectors = kBytes / 16, kRowStep = team::kThreads / kVectors;
    u64 from;         // this thread's first vector of the next block
    u64 pitch;        // bytes over kRowStep rows of the operand
    long long rows;   // rows left from that vector's on, may be negative
    long long bytes;  // bytes left in a row from that vector on, may be negative
    bool aligned;

    /// Starts at row `row` and byte `byte` of the operand.
    __device__ __forceinline__ Feed(const SpanEntry& span, u64 row, u64 byte) {
        row += team::thread() / kVectors;
        byte += team::thread() % kVectors * 16;
        from = span.address + row * span.stride + byte;
        pitch = kRowStep * span.stride;
        rows = static_cast<long long>(span.rows - row);
        bytes = static_cast<long long>(span.row_bytes - byte);
        aligned = ((span.address | span.stride) & 15) == 0;
    }

    /// Fetches a block to shared memory. Where nothing is valid nothing is read, whatever the address.
    __device__ __forceinline__ void fetch(u32 to) const {
        to += team::thread() / kVectors * kPitch + team::thread() % kVectors * 16;
        const u32 width = bytes >= 16 ? 16 : bytes > 0 ? static_cast<u32>(bytes) : 0;
#pragma unroll
        for (u32 i = 0; i < kRows / kRowStep; ++i) {
            const u32 valid = static_cast<long long>(i * kRowStep) < rows ? width : 0;
            fetch16(to + i * kRowStep * kPitch, from + i * pitch, valid, aligned);
        }
    }
};

/// Adds one step of K that lies in shared memory. A warp's columns are two groups of 16, `kApart` bytes apart, which start at
/// `kWarp` bytes for each warp along N.
template <class Type, u32 kWarp = 64, u32 kApart = 32>
__device__ __forceinline__ void multiply_stage(Sums& sums, u32 stage) {
    const u32 lane = team::thread() % 32, warp = team::thread() / 32;
    const u32 row = lane % 16, half = lane / 16 * 16;
    const u32 a_at = stage + (warp / 4 * 64 + row) * Portable::kPitchA + half;
    const u32 b_at = stage + Portable::kBytesA + row * Portable::kPitchB + warp % 4 * kWarp + half;
#pragma unroll
    for (u32 k = 0; k < Portable::kK; k += 16) {
        u32 a[4][4], b[2][4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) load_matrices(a[i], a_at + i * 16 * Portable::kPitchA + k * 2);
#pragma unroll
        for (u32 j = 0; j < 2; ++j) load_matrices_transposed(b[j], b_at + k * Portable::kPitchB + j * kApart);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], Type{});
        }
    }
}

/// Adds `a[row.., :] * b[:, column..]` over the whole K of a segment.
template <class Type>
__device__ __forceinline__ void multiply_segment(Sums& sums, const SpanEntry& a, const SpanEntry& b, u64 row, u64 column,
                                                 u32 shared) {
    constexpr u32 kK = Portable::kK, kStages = Portable::kStages;
    const u32 steps = b.rows / kK + (b.rows % kK != 0);
    Feed<Portable::kM, kK * 2, Portable::kPitchA> feed_a(a, row, 0);
    Feed<kK, Portable::kN * 2, Portable::kPitchB> feed_b(b, 0, column * 2);
    auto fetch = [&](u32 step) {
        const u32 stage = shared + step % kStages * Portable::kStageBytes;
        feed_a.fetch(stage);
        feed_b.fetch(stage + Portable::kBytesA);
        feed_a.from += kK * 2;
        feed_a.bytes -= kK * 2;
        feed_b.from += kK * b.stride;
        feed_b.rows -= kK;
    };
#pragma unroll
    for (u32 step = 0; step < kStages - 1; ++step) {
        if (step < steps) fetch(step);
        async_commit();
    }
    for (u32 step = 0; step < steps; ++step) {
        async_wait<kStages - 2>();
        team::meet();
        if (step + kStages - 1 < steps) fetch(step + kStages - 1);
        async_commit();
        multiply_stage<Type>(sums, shared + step % kStages * Portable::kStageBytes);
    }
    async_wait<0>();
    team::meet();
}

/// Rounds and writes the part of a block that lies inside the tile.
__device__ __forceinline__ void store_block(const Sums& sums, const SpanEntry& c, u64 row, u64 column, Element output) {
    const u32 lane = team::thread() % 32, warp = team::thread() / 32, size = element_bytes(output);
    const u64 columns = c.row_bytes / size;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 upper = 0; upper < 2; ++upper) {
            const u64 r = row + warp / 4 * 64 + i * 16 + upper * 8 + lane / 4;
            if (r >= c.rows) continue;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u64 n = column + warp % 4 * 32 + j * 8 + lane % 4 * 2;
                if (n >= columns) continue;
                store_pair(c.address + r * c.stride + n * size, sums[i][j][upper * 2], sums[i][j][upper * 2 + 1],
                           n + 1 < columns, output);
            }
        }
    }
}

/// One block of a tile, over all segments. `ready(segment)` waits for a segment; false ends the tile.
template <class Type, class Ready>
__device__ __forceinline__ bool multiply_block(const RankEntry& rank, const InstructionEntry& instruction, const SpanEntry& c,
                                               u64 row, u64 column, char* shared, Ready ready) {
    Sums sums = {};
    for (u32 s = 0; s < instruction.segment_count; ++s) {
        const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments + s];
        if (!ready(segment)) return false;
        const SpanEntry* reads = at<const SpanEntry>(rank.spans) + segment.reads;
        multiply_segment<Type>(sums, reads[0], reads[1], row, column, shared_offset(shared));
    }
    store_block(sums, c, row, column, static_cast<Element>(instruction.output));
    return true;
}

}  // namespace mk
