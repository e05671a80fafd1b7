// Sums whose sources come through the bulk copy engine (sm_90a). Rust twin: mkernel-core/src/program.rs (Op::Reduce).
//
// The result is that of reduce.cuh, bit for bit: the same sums in the same order. What differs is how many bytes are in
// flight: pieces of all sources stream through shared memory, while loads into registers wait for one source at a time.
#pragma once

#ifdef MK_TILE_N
#include "bulk.cuh"
#include "reduce.cuh"

namespace mk {

/// Whether the sources are runs of bytes that the copy engine takes, and rows hold whole runs.
__device__ __forceinline__ bool streams(const RankEntry& rank, const InstructionEntry& instruction) {
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SpanEntry out = spans[instruction.writes];
    const u64 columns = out.row_bytes / element_bytes(static_cast<Element>(instruction.output));
    bool fine = columns % kRun == 0 && ((out.address | out.stride) & 15) == 0;
    for (u32 s = 0; s < instruction.segment_count && fine; ++s) {
        const SpanEntry source = spans[at<const SegmentEntry>(rank.segments)[instruction.segments + s].reads];
        fine = is_contiguous(source) && (source.address & 15) == 0;
    }
    return fine && columns * out.rows >= 4096;
}

/// The whole sum by the team, where `streams` holds; `shared` is its own. `ready(segment)` waits for a segment.
template <class Ready>
__device__ __forceinline__ bool reduce_stream(const RankEntry& rank, const InstructionEntry& instruction, Bulk& bulk,
                                              char* shared, Ready ready) {
    constexpr u32 kElements = Bulk::kPieceBytes / 4, kRuns = kElements / kRun / team::kThreads;
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SegmentEntry* segments = at<const SegmentEntry>(rank.segments) + instruction.segments;
    const SpanEntry out = spans[instruction.writes];
    const Element output = static_cast<Element>(instruction.output), narrow = static_cast<Element>(instruction.input);
    const u64 columns = out.row_bytes / element_bytes(output), elements = columns * out.rows;
    const u32 sources = instruction.segment_count;
    for (u32 s = 0; s < sources; ++s) {
        if (!ready(segments[s])) return false;
    }
    const u64 loads = (elements + kElements - 1) / kElements * sources;
    auto element_of = [&](const SpanEntry& source) { return source.row_bytes == columns * 4 ? Element::F32 : narrow; };
    u64 next_first = 0;  // of the piece that is loaded next, its first element
    u32 next_source = 0;
    auto load = [&](u64 number) {
        const SpanEntry source = spans[segments[next_source].reads];
        const u32 size = element_bytes(element_of(source)), slot = number % Bulk::kPieces;
        const u64 left = elements - next_first;
        const u32 bytes = (left < kElements ? static_cast<u32>(left) : kElements) * size;
        const u32 barrier = shared_address(bulk.barriers + slot);
        barrier::arrive_expecting(barrier, bytes);
        tma::load_run(shared_address(shared) + slot * Bulk::kPieceBytes, source.address + next_first * size, bytes, barrier);
        if (++next_source == sources) next_source = 0, next_first += kElements;
    };
    if (team::thread() == 0) {
        tma::fence_all();
        for (u64 i = 0; i < loads && i < Bulk::kPieces; ++i) load(bulk.count + i);
    }
    u64 number = bulk.count;
    for (u64 first = 0; first < elements; first += kElements) {
        float sum[kRuns][kRun];
        const u32 here = elements - first < kElements ? static_cast<u32>(elements - first) : kElements;
        for (u32 s = 0; s < sources; ++s, ++number) {
            const Element element = element_of(spans[segments[s].reads]);
            const char* piece = shared + number % Bulk::kPieces * Bulk::kPieceBytes;
            barrier::wait(shared_address(bulk.barriers + number % Bulk::kPieces), static_cast<u32>(number / Bulk::kPieces) & 1);
#pragma unroll
            for (u32 r = 0; r < kRuns; ++r) {
                const u32 run = r * team::kThreads + team::thread();
                if (run * kRun >= here) continue;
                const uint4* words = reinterpret_cast<const uint4*>(piece + run * kRun * element_bytes(element));
                const Raw raw = {{words[0], element == Element::F32 ? words[1] : uint4{}}};
                add_run(sum[r], raw, element, s == 0);
            }
            team::meet();
            if (team::thread() == 0 && number - bulk.count + Bulk::kPieces < loads) load(number + Bulk::kPieces);
        }
#pragma unroll
        for (u32 r = 0; r < kRuns; ++r) {
            const u64 at_element = first + (r * team::kThreads + team::thread()) * kRun;
            if (at_element >= elements) continue;
            const u64 row = divide(at_element, columns), column = at_element - row * columns;
            write_run(out.address + row * out.stride + column * element_bytes(output), sum[r], kRun, output);
        }
    }
    bulk.count += loads;
    return true;
}

}  // namespace mk
#endif
