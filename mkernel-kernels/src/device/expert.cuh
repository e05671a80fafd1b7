// One tile of one expert. Rust twin: mkernel-core/src/program.rs (Op::Expert).
//
// The entry of the tile's slot says which expert, how many rows, and which rows of the gathered tokens. It is data: rows
// beyond the source are zeros, an expert beyond the weights has no rows, so nothing is read outside the planned spans.
//
// Only engines that the programs of a launch use are compiled in (MK_EXPERT_BF16, MK_EXPERT_F16, MK_EXPERT_F32).
#pragma once

#include "expert_f32.cuh"
#include "expert_portable.cuh"

namespace mk {

/// Reads the entry of a slot, and takes from it only what the spans hold.
__device__ __forceinline__ ExpertTile expert_tile(const SpanEntry* reads, const SpanEntry& target, const InstructionEntry& instruction) {
    const u32 size = element_bytes(static_cast<Element>(instruction.input));
    const bool is_gathered = instruction.variant != static_cast<u32>(StageCode::Down);
    const u32* words = at<const u32>(reads[0].address);
    ExpertTile tile{};
    tile.source = reads[is_gathered ? 2 : 1];
    tile.first = reads[is_gathered ? 3 : 2];
    tile.second = reads[instruction.variant == static_cast<u32>(StageCode::Gated) ? 4 : is_gathered ? 3 : 2];
    const u64 depth = tile.source.row_bytes / size, listed = reads[1].rows * reads[1].row_bytes / 4;
    tile.rows = words[2] < target.rows ? words[2] : target.rows;
    const u64 end = (words[0] + 1ull) * depth;
    if (end > tile.first.rows || end > tile.second.rows) tile.rows = 0;
    if (is_gathered && words[1] + static_cast<u64>(tile.rows) > listed) tile.rows = 0;
    tile.list = is_gathered ? reads[1].address + words[1] * 4ull : 0;
    for (SpanEntry* weights : {&tile.first, &tile.second}) {
        weights->address += words[0] * depth * weights->stride;
        weights->rows = static_cast<u32>(depth);
    }
    return tile;
}

/// Block by block, by the engine of the input's type.
template <bool kGated>
__device__ __forceinline__ void expert_blocks(const ExpertTile& tile, const SpanEntry& target, const InstructionEntry& instruction, char* shared) {
    [[maybe_unused]] const Element input = static_cast<Element>(instruction.input);
    const Element output = static_cast<Element>(instruction.output);
    const u64 columns = target.row_bytes / element_bytes(output);
    constexpr u32 kColumns = kGated ? Portable::kN / 2 : Portable::kN;
    for (u64 row = 0; row < tile.rows; row += Portable::kM) {
        for (u64 column = 0; column < columns; column += kColumns) {
#ifdef MK_EXPERT_BF16
            if (input == Element::Bf16) expert_block<Bf16, kGated>(tile, target, row, column, shared, output);
#endif
#ifdef MK_EXPERT_F16
            if (input == Element::F16) expert_block<F16, kGated>(tile, target, row, column, shared, output);
#endif
#ifdef MK_EXPERT_F32
            if (input == Element::F32) expert_block_f32<kGated>(tile, target, row, column, shared, output);
#endif
        }
    }
}

/// The whole tile by the team. `ready(segment)` waits for what is certain, `ready.picked` for what data picks.
template <class Ready>
__device__ __forceinline__ bool expert(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    const SegmentEntry segment = at<const SegmentEntry>(rank.segments)[instruction.segments];
    const SpanEntry* reads = at<const SpanEntry>(rank.spans) + segment.reads;
    SpanEntry target = at<const SpanEntry>(rank.spans)[instruction.writes];
    if (instruction.variant == static_cast<u32>(StageCode::Down)) {
        if (!ready(segment)) return false;
    } else {
        if (!ready.certain(segment)) return false;
        const u32* words = at<const u32>(reads[0].address);
        const u32 first = words[3], end = words[4];
        if (!ready.picked(segment, end > first ? end - first : 0, [&](u64 i) { return static_cast<u32>(first + i); })) return false;
    }
    // Shared, so that it takes no registers of the sums.
    __shared__ ExpertTile tile;
    if (team::thread() == 0) tile = expert_tile(reads, target, instruction);
    team::meet();
    target.rows = tile.rows;
    ready.moved(instruction, tile.rows * target.row_bytes);
    if (instruction.variant == static_cast<u32>(StageCode::Gated)) {
        expert_blocks<true>(tile, target, instruction, shared);
    } else {
        expert_blocks<false>(tile, target, instruction, shared);
    }
    return true;
}

}  // namespace mk
