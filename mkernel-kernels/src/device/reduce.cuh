// Sums of sources in segment order. Rust twin: mkernel-core/src/program.rs (Op::Reduce).
//
// A thread owns runs of eight elements: it adds them up over all segments in registers, in f32, and rounds once. So the
// order of the sum is that of the segments, whatever arrives first.
#pragma once

#include "mma.cuh"

namespace mk {

/// Elements of one run.
constexpr u32 kRun = 8;

/// Widens 16 bits to f32, exactly.
__device__ __forceinline__ float widen(unsigned short bits, Element element) {
    float value;
    if (element == Element::Bf16) return __uint_as_float(static_cast<u32>(bits) << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

/// The bytes of eight elements.
struct Raw {
    uint4 words[2];
};

/// Whether a run can be read or written as vectors.
__device__ __forceinline__ bool is_whole(u64 address, u32 count) { return count == kRun && (address & 15) == 0; }

/// Reads up to eight elements one by one; those past `count` are zeros.
__device__ __forceinline__ Raw read_elements(u64 from, u32 count, Element element) {
    u32 words[kRun] = {};
#pragma unroll
    for (u32 i = 0; i < kRun; ++i) {
        if (i >= count) break;
        if (element == Element::F32) {
            words[i] = at<const u32>(from)[i];
        } else {
            words[i / 2] |= static_cast<u32>(at<const unsigned short>(from)[i]) << (i % 2 * 16);
        }
    }
    return {{make_uint4(words[0], words[1], words[2], words[3]), make_uint4(words[4], words[5], words[6], words[7])}};
}

/// Adds a run to `sum`, or starts the sum with it.
__device__ __forceinline__ void add_run(float (&sum)[kRun], const Raw& raw, Element element, bool is_first) {
    const u32 words[8] = {raw.words[0].x, raw.words[0].y, raw.words[0].z, raw.words[0].w,
                          raw.words[1].x, raw.words[1].y, raw.words[1].z, raw.words[1].w};
#pragma unroll
    for (u32 i = 0; i < kRun; ++i) {
        const float value = element == Element::F32 ? __uint_as_float(words[i])
                                                    : widen(static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16)), element);
        sum[i] = is_first ? value : sum[i] + value;
    }
}

/// Reads up to eight elements as f32; those past `count` are zeros.
__device__ __forceinline__ void read_run(float (&to)[kRun], u64 from, u32 count, Element element) {
    Raw raw;
    if (is_whole(from, count)) {
        raw.words[0] = at<const uint4>(from)[0];
        if (element == Element::F32) raw.words[1] = at<const uint4>(from)[1];
    } else {
        raw = read_elements(from, count, element);
    }
    add_run(to, raw, element, true);
}

/// Writes the first `count` elements of a run, rounded.
__device__ __forceinline__ void write_run(u64 to, const float (&sum)[kRun], u32 count, Element element) {
    if (is_whole(to, count) && element == Element::F32) {
        at<float4>(to)[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        at<float4>(to)[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    } else if (is_whole(to, count)) {
        u32 words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = round_pair(sum[2 * i], sum[2 * i + 1], element);
        at<uint4>(to)[0] = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
        for (u32 i = 0; i < kRun; i += 2) {
            if (i < count) store_pair(to + i * element_bytes(element), sum[i], sum[i + 1], i + 1 < count, element);
        }
    }
}

/// A quotient; the division of 64 bits is many times slower.
__device__ __forceinline__ u64 divide(u64 number, u64 by) {
    if ((number | by) >> 32 == 0) return static_cast<u32>(number) / static_cast<u32>(by);
    return number / by;
}

/// Where a run of a sum lies.
struct Run {
    u64 row, column;
    u32 count;  // elements; 0 past the end
};

/// The whole sum by the team. `ready(segment)` waits for a segment: asked in the first pass, since waits stay true.
///
/// A thread has several runs under way: what bounds a sum is how many loads are in flight.
template <class Ready>
__device__ __forceinline__ bool reduce(const RankEntry& rank, const InstructionEntry& instruction, Ready ready) {
    constexpr u32 kRuns = 4;
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SpanEntry out = spans[instruction.writes];
    const Element output = static_cast<Element>(instruction.output), narrow = static_cast<Element>(instruction.input);
    const u64 columns = out.row_bytes / element_bytes(output), runs = (columns + kRun - 1) / kRun, total = runs * out.rows;
    for (u64 base = 0; base == 0 || base < total; base += kRuns * team::kThreads) {
        Run own[kRuns];
        float sum[kRuns][kRun] = {};
#pragma unroll
        for (u32 r = 0; r < kRuns; ++r) {
            const u64 run = base + r * team::kThreads + team::thread();
            own[r].row = run < total ? divide(run, runs) : 0;
            own[r].column = run < total ? (run - own[r].row * runs) * kRun : 0;
            const u64 left = run < total ? columns - own[r].column : 0;
            own[r].count = left < kRun ? static_cast<u32>(left) : kRun;
        }
        for (u32 s = 0; s < instruction.segment_count; ++s) {
            const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments + s];
            if (base == 0 && !ready(segment)) return false;
            const SpanEntry source = spans[segment.reads];
            const Element element = source.row_bytes == columns * 4 ? Element::F32 : narrow;
            u64 from[kRuns];
            bool whole = true;
#pragma unroll
            for (u32 r = 0; r < kRuns; ++r) {
                from[r] = source.address + own[r].row * source.stride + own[r].column * element_bytes(element);
                whole = whole && is_whole(from[r], own[r].count);
            }
            Raw raw[kRuns];
            if (whole) {
#pragma unroll
                for (u32 r = 0; r < kRuns; ++r) raw[r].words[0] = at<const uint4>(from[r])[0];
                if (element == Element::F32) {
#pragma unroll
                    for (u32 r = 0; r < kRuns; ++r) raw[r].words[1] = at<const uint4>(from[r])[1];
                }
            } else {
#pragma unroll
                for (u32 r = 0; r < kRuns; ++r) raw[r] = read_elements(from[r], own[r].count, element);
            }
#pragma unroll
            for (u32 r = 0; r < kRuns; ++r) add_run(sum[r], raw[r], element, s == 0);
        }
#pragma unroll
        for (u32 r = 0; r < kRuns; ++r) {
            write_run(out.address + own[r].row * out.stride + own[r].column * element_bytes(output), sum[r], own[r].count, output);
        }
    }
    return true;
}

}  // namespace mk
