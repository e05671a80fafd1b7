// Sums packed partial rows of a run of tokens. Rust twin: mkernel-core/src/program.rs (Op::Merge).
//
// For every source a ballot numbers the tokens that have a row there: that number is the row. Then a warp takes a token
// and sums its rows in the order of the segments, in f32, from zero, and rounds once. A row's number counts tokens, of
// which a source has as many rows, so nothing lies outside.
#pragma once

#include "rows.cuh"

namespace mk {

/// Where a source of a merge is.
struct MergeSource {
    u64 address, stride;
    Element element;
    u32 before;  // rows of tokens of earlier batches
};

/// Most segments: what shared memory holds. The twin of `MERGE_SOURCES` in mkernel-kernels/src/encode/fits.rs.
constexpr u32 kMergeSources = 96;
static_assert(kMergeSources * (sizeof(MergeSource) + team::kThreads * 4) + team::kThreads * 4 + kWarps * 4 <= KernelShape::SHARED_BYTES,
              "the rows of a batch fit");

/// The whole run by the team. `ready(segment)` waits for a segment: asked in the first batch, since waits stay true.
template <class Ready>
__device__ __forceinline__ bool merge(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SegmentEntry* segments = at<const SegmentEntry>(rank.segments) + instruction.segments;
    const SpanEntry target = spans[instruction.writes];
    const Element output = static_cast<Element>(instruction.output), narrow = static_cast<Element>(instruction.input);
    const Experts experts{instruction.expert_first, instruction.expert_end};
    const u64 columns = target.row_bytes / element_bytes(output), runs = runs_in(columns);
    const u32 count = instruction.segment_count, thread = team::thread();
    MergeSource* sources = reinterpret_cast<MergeSource*>(shared);
    u32* rows = reinterpret_cast<u32*>(sources + kMergeSources);  // by source and token of the batch
    u32* places = rows + kMergeSources * team::kThreads;
    u32* counts = places + team::kThreads;
    const bool is_packed = instruction.write_count > 1;
    u64 packed = 0;
    for (u64 base = 0; base == 0 || base < target.rows; base += team::kThreads) {
        const u64 token = base + thread;
        const bool is_token = token < target.rows;
        bool is_chosen = is_token && !is_packed;
        for (u32 s = 0; s < count; ++s) {
            const SegmentEntry segment = segments[s];
            if (base == 0 && !ready(segment)) return false;
            const SpanEntry source = spans[segment.reads], table = spans[segment.reads + 1];
            const u32 topk = slots_of(table);
            const u32 end = s + 1 < count ? static_cast<u32>(segments[s + 1].position) : experts.end;
            const Experts here{static_cast<u32>(segment.position), end};
            const bool has_row = is_token && here.wants(row_of(table, token), topk);
            u32 total;
            const u32 number = number_of(has_row, counts, total);
            const u32 before = base == 0 ? 0 : sources[s].before;
            rows[s * team::kThreads + thread] = has_row ? before + number : kNowhere;
            if (is_packed && is_token && s + 1 == count) is_chosen = experts.wants(row_of(table, token), topk);
            team::meet();
            const Element element = source.row_bytes == columns * 4 ? Element::F32 : narrow;
            if (thread == 0) sources[s] = {source.address, source.stride, element, before + total};
        }
        u32 chosen_here;
        const u32 place = number_of(is_chosen, counts, chosen_here);
        places[thread] = is_chosen ? place : kNowhere;
        team::meet();
        for (u32 t = thread / 32; t < team::kThreads; t += kWarps) {
            if (places[t] == kNowhere) continue;
            const u64 to = row_of(target, packed + places[t]);
            for (u64 run = thread % 32; run < runs; run += 32) {
                const u32 length = run_length(run, columns);
                float sum[kRun] = {};
                for (u32 s = 0; s < count; ++s) {
                    const u32 row = rows[s * team::kThreads + t];
                    if (row == kNowhere) continue;
                    float value[kRun];
                    const u64 from = sources[s].address + row * sources[s].stride;
                    read_run(value, from + run * kRun * element_bytes(sources[s].element), length, sources[s].element);
#pragma unroll
                    for (u32 e = 0; e < kRun; ++e) sum[e] = __fadd_rn(sum[e], value[e]);
                }
                write_run(to + run * kRun * element_bytes(output), sum, length, output);
            }
        }
        packed += chosen_here;
        team::meet();
    }
    ready.moved(instruction, packed * target.row_bytes);
    if (is_packed && thread == 0) *at<u64>(spans[instruction.writes + 1].address) = packed;
    return true;
}

}  // namespace mk
