// One tile of attention. Rust twin: mkernel-core/src/program.rs (Op::Attention).
//
// Only engines that the programs of a launch use are compiled in (MK_ATTENTION_BF16, MK_ATTENTION_F16, MK_ATTENTION_F32).
#pragma once

#include "attention_f32.cuh"
#include "attention_portable.cuh"

namespace mk {

/// The whole tile by the team. `ready(segment)` waits for a segment: asked in the first pass, since waits stay true.
template <class Ready>
__device__ __forceinline__ bool attention(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    [[maybe_unused]] const Element input = static_cast<Element>(instruction.input);
    const SpanEntry* spans = at<const SpanEntry>(rank.spans);
    const SegmentEntry* segments = at<const SegmentEntry>(rank.segments) + instruction.segments;
    const SpanEntry& out = spans[instruction.writes];
    // Q is read with the first segment.
    if (!ready(segments[0])) return false;
    [[maybe_unused]] const AttentionTask task{spans, segments, instruction.segment_count, &out, instruction.query,
                                              instruction.variant == static_cast<u32>(MaskCode::Causal)};
    bool first = true;
    [[maybe_unused]] auto once = [&](const SegmentEntry& segment) { return !first || ready(segment); };
    [[maybe_unused]] const u32 dim = static_cast<u32>(out.row_bytes / element_bytes(input));
    const u32 step = input == Element::F32 ? PlainAttention::kRows : kQueries;
    for (u64 row = 0; row < out.rows; row += step) {
        bool done = true;
#ifdef MK_ATTENTION_BF16
        if (input == Element::Bf16) done = attend_portable<Bf16>(task, dim, row, shared, once);
#endif
#ifdef MK_ATTENTION_F16
        if (input == Element::F16) done = attend_portable<F16>(task, dim, row, shared, once);
#endif
#ifdef MK_ATTENTION_F32
        if (input == Element::F32) done = attend_f32(task, dim, row, shared, once);
#endif
        if (!done) return false;
        first = false;
    }
    return true;
}

}  // namespace mk
