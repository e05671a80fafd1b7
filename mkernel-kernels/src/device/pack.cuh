// Packs the rows of tokens with an expert in a range. Rust twin: mkernel-core/src/program.rs (Op::Pack).
//
// A thread looks at a token; ballots number those that are held and those that are wanted, in order; then a warp copies a
// row. A row's number counts tokens, of which the table has as many as each span has rows, so nothing lies outside.
#pragma once

#include "copy.cuh"
#include "rows.cuh"

namespace mk {

/// The whole pack by the team. `ready(segment)` waits for a segment.
template <class Ready>
__device__ __forceinline__ bool pack(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments];
    if (!ready(segment)) return false;
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SpanEntry source = spans[segment.reads], table = spans[segment.reads + 1], target = spans[instruction.writes];
    const Experts held{instruction.held_first, instruction.held_end}, wanted{instruction.expert_first, instruction.expert_end};
    const u32 topk = slots_of(table), lane = team::thread() % 32;
    u32* counts = reinterpret_cast<u32*>(shared);
    u32* list = counts + 2 * kWarps;
    u64 rows = 0, packed = 0;
    for (u64 base = 0; base < table.rows; base += team::kThreads) {
        const u64 token = base + team::thread();
        const bool is_token = token < table.rows;
        const bool is_held = is_token && (instruction.variant == 0 || held.wants(row_of(table, token), topk));
        const bool is_chosen = is_held && wanted.wants(row_of(table, token), topk);
        u32 held_here, chosen_here;
        const u32 row = number_of(is_held, counts, held_here);
        const u32 place = number_of(is_chosen, counts + kWarps, chosen_here);
        if (is_chosen) list[place] = row;
        team::meet();
        for (u32 i = team::thread() / 32; i < chosen_here; i += kWarps) {
            copy_run(row_of(target, packed + i), row_of(source, rows + list[i]), source.row_bytes, lane, 32);
        }
        rows += held_here;
        packed += chosen_here;
    }
    ready.moved(instruction, packed * source.row_bytes);
    if (instruction.write_count > 1 && team::thread() == 0) *at<u64>(spans[instruction.writes + 1].address) = packed;
    return true;
}

}  // namespace mk
