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

/// Reads up to eight elements; those past `count` are zeros.
__device__ __forceinline__ void read_run(float (&to)[kRun], u64 from, u32 count, Element element) {
    const u32 size = element_bytes(element);
    uint4 raw[2] = {};
    if (count == kRun && (from & 15) == 0) {
        raw[0] = at<const uint4>(from)[0];
        if (size == 4) raw[1] = at<const uint4>(from)[1];
    } else {
        u32* words = reinterpret_cast<u32*>(raw);
#pragma unroll
        for (u32 i = 0; i < kRun; ++i) {
            if (i >= count) break;
            if (size == 4) {
                words[i] = at<const u32>(from)[i];
            } else {
                words[i / 2] |= static_cast<u32>(at<const unsigned short>(from)[i]) << (i % 2 * 16);
            }
        }
    }
    const u32 words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
#pragma unroll
    for (u32 i = 0; i < kRun; ++i) {
        to[i] = size == 4 ? __uint_as_float(words[i]) : widen(static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16)), element);
    }
}

/// The whole sum by the whole CTA. `ready(segment)` waits for a segment: asked in the first pass, since waits stay true.
template <class Ready>
__device__ __forceinline__ bool reduce(const RankEntry& rank, const InstructionEntry& instruction, Ready ready) {
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SpanEntry out = spans[instruction.writes];
    const Element output = static_cast<Element>(instruction.output), narrow = static_cast<Element>(instruction.input);
    const u64 columns = out.row_bytes / element_bytes(output), runs = (columns + kRun - 1) / kRun, total = runs * out.rows;
    for (u64 base = 0; base == 0 || base < total; base += team::kThreads) {
        const u64 run = base + team::thread(), row = run < total ? run / runs : 0, column = run < total ? run % runs * kRun : 0;
        const u32 count = run >= total ? 0 : columns - column < kRun ? static_cast<u32>(columns - column) : kRun;
        float sum[kRun] = {};
        for (u32 s = 0; s < instruction.segment_count; ++s) {
            const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments + s];
            if (base == 0 && !ready(segment)) return false;
            const SpanEntry source = spans[segment.reads];
            const Element element = source.row_bytes == columns * 4 ? Element::F32 : narrow;
            float value[kRun];
            read_run(value, source.address + row * source.stride + column * element_bytes(element), count, element);
#pragma unroll
            for (u32 i = 0; i < kRun; ++i) sum[i] = s == 0 ? value[i] : sum[i] + value[i];
        }
        const u64 to = out.address + row * out.stride + column * element_bytes(output);
#pragma unroll
        for (u32 i = 0; i < kRun; i += 2) {
            if (i < count) store_pair(to + i * element_bytes(output), sum[i], sum[i + 1], i + 1 < count, output);
        }
    }
    return true;
}

}  // namespace mk
