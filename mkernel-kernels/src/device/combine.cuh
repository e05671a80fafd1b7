// Sums a rank's results for a run of tokens. Rust twin: mkernel-core/src/program.rs (Op::Combine).
//
// A token's results are summed over its slots in order, each product and each sum rounded, as the host does. A place
// beyond the results is no place, whatever the data says.
#pragma once

#include "rows.cuh"

namespace mk {

/// The whole run by the team. `ready(segment)` waits for what is certain, `ready.picked` for what data picks.
template <class Ready>
__device__ __forceinline__ bool combine(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments];
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SpanEntry places = spans[segment.reads], weights = spans[segment.reads + 1], results = spans[segment.reads + 2];
    const SpanEntry target = spans[instruction.writes];
    const u32 topk = slots_of(places), lane = team::thread() % 32;
    auto place_of = [&](u64 token, u32 slot) {
        const u32 place = at<const u32>(row_of(places, token))[slot];
        return place < results.rows ? place : kNowhere;
    };
    if (!ready.certain(segment)) return false;
    const bool is_there = ready.picked(segment, static_cast<u64>(places.rows) * topk, [&](u64 i) {
        const u32 place = place_of(i / topk, static_cast<u32>(i % topk));
        return place == kNowhere ? kNowhere : place / instruction.tile;
    });
    if (!is_there) return false;
    u32* counts = reinterpret_cast<u32*>(shared);
    u32* list = counts + kWarps;
    const u64 columns = target.row_bytes / 4, runs = runs_in(columns);
    u64 packed = 0;
    for (u64 base = 0; base < places.rows; base += team::kThreads) {
        const u64 token = base + team::thread();
        bool is_chosen = false;
        for (u32 k = 0; token < places.rows && k < topk; ++k) is_chosen |= place_of(token, k) != kNowhere;
        u32 chosen_here;
        const u32 place = number_of(is_chosen, counts, chosen_here);
        if (is_chosen) list[place] = team::thread();
        team::meet();
        for (u32 i = team::thread() / 32; i < chosen_here; i += kWarps) {
            const u64 from = base + list[i];
            for (u64 run = lane; run < runs; run += 32) {
                const u32 count = run_length(run, columns);
                float sum[kRun] = {};
                for (u32 k = 0; k < topk; ++k) {
                    const u32 row = place_of(from, k);
                    if (row == kNowhere) continue;
                    const float weight = at<const float>(row_of(weights, from))[k];
                    float value[kRun];
                    read_run(value, row_of(results, row) + run * kRun * 4, count, Element::F32);
#pragma unroll
                    for (u32 e = 0; e < kRun; ++e) sum[e] = __fadd_rn(sum[e], __fmul_rn(weight, value[e]));
                }
                write_run(row_of(target, packed + i) + run * kRun * 4, sum, count, Element::F32);
            }
        }
        packed += chosen_here;
    }
    ready.moved(instruction, packed * target.row_bytes);
    return true;
}

}  // namespace mk
