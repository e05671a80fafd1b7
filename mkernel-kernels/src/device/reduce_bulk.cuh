// Sums whose sources come through the bulk copy engine (sm_90a). Rust twin: mkernel-core/src/program.rs (Op::Reduce).
//
// The result is that of reduce.cuh, bit for bit: the same sums in the same order. What differs is how many bytes are in
// flight: pieces of all sources stream through shared memory, while loads into registers wait for one source at a time.
#pragma once

#ifdef MK_PIPELINED
#include "bulk.cuh"
#include "reduce.cuh"

namespace mk {

/// A sum by the team; `shared` is its own.
struct Stream {
    /// Where a source lies, and the bytes of its elements.
    struct Source {
        u64 address;
        u32 size;
        u32 reserved;
    };
    static constexpr u32 kSources = 1024, kElements = Bulk::kPieceBytes / 4, kRuns = kElements / kRun / team::kThreads;

    const RankEntry& rank;
    const InstructionEntry& instruction;
    char* shared;

    /// The sources, behind the pieces: read once, since each look at an entry in global memory costs a piece's time.
    __device__ __forceinline__ Source* sources() const {
        return reinterpret_cast<Source*>(shared + Bulk::kPieces * Bulk::kPieceBytes);
    }

    /// Takes the sources down; whether they are runs of bytes that the copy engine takes and rows hold whole runs.
    __device__ __forceinline__ bool is_whole() const {
        const SpanEntry* spans = at<const SpanEntry>(rank.spans);
        const SpanEntry out = spans[instruction.writes];
        const u64 columns = out.row_bytes / element_bytes(static_cast<Element>(instruction.output));
        bool fine = columns % kRun == 0 && ((out.address | out.stride) & 15) == 0 && columns * out.rows >= kElements &&
                    instruction.segment_count <= kSources;
        for (u32 s = team::thread(); s < instruction.segment_count && fine; s += team::kThreads) {
            const SpanEntry source = spans[at<const SegmentEntry>(rank.segments)[instruction.segments + s].reads];
            fine = is_contiguous(source) && (source.address & 15) == 0;
            const bool is_wide = source.row_bytes == columns * 4;
            sources()[s] = {source.address, is_wide ? 4 : element_bytes(static_cast<Element>(instruction.input)), 0};
        }
        return team::all(fine);
    }

    /// The whole sum, once every source is here.
    __device__ __forceinline__ bool sum(Bulk& bulk) const {
        const SpanEntry out = at<const SpanEntry>(rank.spans)[instruction.writes];
        const Element output = static_cast<Element>(instruction.output), narrow = static_cast<Element>(instruction.input);
        const u64 columns = out.row_bytes / element_bytes(output), elements = columns * out.rows;
        const u32 count = instruction.segment_count;
        const u64 loads = (elements + kElements - 1) / kElements * count;
        u64 next_first = 0;  // of the piece that is loaded next, its first element
        u32 next_source = 0;
        auto load = [&](u64 number) {
            const Source source = sources()[next_source];
            const u32 slot = number % Bulk::kPieces, barrier = shared_address(bulk.barriers + slot);
            const u64 left = elements - next_first;
            const u32 bytes = (left < kElements ? static_cast<u32>(left) : kElements) * source.size;
            barrier::arrive_expecting(barrier, bytes);
            tma::load_run(shared_address(shared) + slot * Bulk::kPieceBytes, source.address + next_first * source.size, bytes,
                          barrier);
            if (++next_source == count) next_source = 0, next_first += kElements;
        };
        if (team::thread() == 0) {
            tma::fence_all();
            for (u64 i = 0; i < loads && i < Bulk::kPieces; ++i) load(bulk.count + i);
        }
        u64 number = bulk.count;
        for (u64 first = 0; first < elements; first += kElements) {
            float sums[kRuns][kRun];
            const u32 here = elements - first < kElements ? static_cast<u32>(elements - first) : kElements;
            for (u32 s = 0; s < count; ++s, ++number) {
                const u32 slot = number % Bulk::kPieces, size = sources()[s].size;
                barrier::wait(shared_address(bulk.barriers + slot), static_cast<u32>(number / Bulk::kPieces) & 1);
#pragma unroll
                for (u32 r = 0; r < kRuns; ++r) {
                    const u32 run = r * team::kThreads + team::thread();
                    if (run * kRun >= here) continue;
                    const uint4* words = reinterpret_cast<const uint4*>(shared + slot * Bulk::kPieceBytes + run * kRun * size);
                    const Raw raw = {{words[0], size == 4 ? words[1] : uint4{}}};
                    add_run(sums[r], raw, size == 4 ? Element::F32 : narrow, s == 0);
                }
                team::meet();
                if (team::thread() == 0 && number - bulk.count + Bulk::kPieces < loads) load(number + Bulk::kPieces);
            }
#pragma unroll
            for (u32 r = 0; r < kRuns; ++r) {
                const u64 element = first + (r * team::kThreads + team::thread()) * kRun;
                if (element >= elements) continue;
                const u64 row = divide(element, columns), column = element - row * columns;
                write_run(out.address + row * out.stride + column * element_bytes(output), sums[r], kRun, output);
            }
        }
        bulk.count += loads;
        return true;
    }
};

}  // namespace mk
#endif
