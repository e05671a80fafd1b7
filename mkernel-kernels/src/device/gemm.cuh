// The matrix product of an instruction, block by block. Rust twin: mkernel-core/src/program.rs (Op::Gemm).
//
// Only engines that the programs of a launch use are compiled in (MK_GEMM_BF16, MK_GEMM_F16, MK_GEMM_F32).
#pragma once

#include "gemm_f32.cuh"
#include "gemm_portable.cuh"

namespace mk {

/// One tile by the whole CTA. `ready(segment)` waits for a segment: asked in the first block, since waits stay true.
template <class Ready>
__device__ __forceinline__ bool gemm(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    const SpanEntry c = at<const SpanEntry>(rank.spans)[instruction.writes];
    const u64 columns = c.row_bytes / element_bytes(static_cast<Element>(instruction.output));
    [[maybe_unused]] const Element input = static_cast<Element>(instruction.input);
    bool first = true;
    auto once = [&](const SegmentEntry& segment) { return !first || ready(segment); };
    for (u64 row = 0; row < c.rows; row += Portable::kM) {
        for (u64 column = 0; column < columns; column += Portable::kN) {
            bool done = true;
#ifdef MK_GEMM_BF16
            if (input == Element::Bf16) done = multiply_block<Bf16>(rank, instruction, c, row, column, shared, once);
#endif
#ifdef MK_GEMM_F16
            if (input == Element::F16) done = multiply_block<F16>(rank, instruction, c, row, column, shared, once);
#endif
#ifdef MK_GEMM_F32
            if (input == Element::F32) done = multiply_block_f32(rank, instruction, c, row, column, shared, once);
#endif
            if (!done) return false;
            first = false;
        }
    }
    return true;
}

static_assert(Portable::kM == Plain::kM && Portable::kN == Plain::kN, "one walk for both engines");

}  // namespace mk
