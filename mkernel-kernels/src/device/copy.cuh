// Copies and fills of spans by a whole CTA. Rust twin: mkernel-core/src/region.rs (Span).
//
// Sixteen bytes a thread where source and target agree modulo 16, head and tail byte by byte; bytes where they do not.
// Ordinary loads: the source may have been written in this launch, so the read-only path is never used.
#pragma once

#include "team.cuh"

namespace mk {

/// Copies `bytes` by the threads `thread` of `threads`.
__device__ __forceinline__ void copy_run(u64 to, u64 from, u64 bytes, u32 thread, u32 threads) {
    u64 head = bytes;
    if (((to ^ from) & 15) == 0) {
        const u64 lead = (0 - to) & 15;
        head = lead < bytes ? lead : bytes;
    }
    const u64 vectors = (bytes - head) / 16, tail = head + vectors * 16;
    uint4* vector_to = at<uint4>(to + head);
    const uint4* vector_from = at<const uint4>(from + head);
    constexpr u32 kUnroll = 4;
    u64 i = thread;
    for (; i + (kUnroll - 1) * static_cast<u64>(threads) < vectors; i += kUnroll * static_cast<u64>(threads)) {
        uint4 value[kUnroll];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) value[u] = vector_from[i + u * threads];
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) vector_to[i + u * threads] = value[u];
    }
    for (; i < vectors; i += threads) vector_to[i] = vector_from[i];
    for (u64 b = thread; b < head; b += threads) at<unsigned char>(to)[b] = at<const unsigned char>(from)[b];
    for (u64 b = tail + thread; b < bytes; b += threads) at<unsigned char>(to)[b] = at<const unsigned char>(from)[b];
}

/// Sets all bits of `bytes` by the threads `thread` of `threads`: every float there becomes a NaN.
__device__ __forceinline__ void poison_run(u64 to, u64 bytes, u32 thread, u32 threads) {
    const u64 lead = (0 - to) & 15, head = lead < bytes ? lead : bytes;
    const u64 vectors = (bytes - head) / 16, tail = head + vectors * 16;
    for (u64 i = thread; i < vectors; i += threads) at<uint4>(to + head)[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (u64 b = thread; b < head; b += threads) at<unsigned char>(to)[b] = 0xff;
    for (u64 b = tail + thread; b < bytes; b += threads) at<unsigned char>(to)[b] = 0xff;
}

/// Whether the rows follow each other without a gap.
__device__ __forceinline__ bool is_contiguous(const SpanEntry& span) {
    return span.rows <= 1 || span.row_bytes == span.stride;
}

/// Copies a span to one of the same shape: as one run where both are contiguous, else a warp a row.
__device__ __forceinline__ void copy_span(const SpanEntry& to, const SpanEntry& from) {
    if (is_contiguous(to) && is_contiguous(from)) {
        copy_run(to.address, from.address, to.rows * to.row_bytes, team::thread(), team::kThreads);
        return;
    }
    for (u32 row = team::thread() / 32; row < to.rows; row += team::kThreads / 32) {
        copy_run(to.address + row * to.stride, from.address + row * from.stride, to.row_bytes, team::thread() % 32, 32);
    }
}

/// Poisons a span.
__device__ __forceinline__ void poison_span(const SpanEntry& span) {
    if (is_contiguous(span)) {
        poison_run(span.address, span.rows * span.row_bytes, team::thread(), team::kThreads);
        return;
    }
    for (u32 row = team::thread() / 32; row < span.rows; row += team::kThreads / 32) {
        poison_run(span.address + row * span.stride, span.row_bytes, team::thread() % 32, 32);
    }
}

}  // namespace mk
