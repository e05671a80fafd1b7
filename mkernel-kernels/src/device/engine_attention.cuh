// Tiles of attention for the pipelined kernel (sm_90a). Rust twin: mkernel-kernels/src/encode/tiles.rs.
#pragma once

#ifdef MK_ATTENTION_DIM
#include "attention_hopper_consume.cuh"
#include "slot.cuh"

namespace mk::pipeline::engine {

using Shape = AttentionShape<MK_ATTENTION_DIM, MK_KEYS, MK_STAGES, MK_BOXES>;
using Shared = AttentionShared<Shape>;
using Producer = AttentionProducer<Shape>;
using Boxes = Ring<Shape::kStaging>;
using Consumer = AttentionConsumer<Shape>;
constexpr unsigned kSharedBytes = Shape::kSharedBytes, kScratch = Shape::kOffsetStaging;
// A tile takes long: who claims ahead takes neighbours that others could have, and shares no keys in the L2 with them.
constexpr bool kClaimsLate = true;

/// The hooks that attention_hopper.cuh asks for.
struct Hooks {
    Source source;

    __device__ __forceinline__ void segment(const AttentionTile&, int index, AttentionSegment& to) const {
        const BoxEntry box = source.box(index);
        to = {source.cta.map(box.a_map), source.cta.map(box.b_map), static_cast<int>(box.a_row), static_cast<int>(box.a_column),
              static_cast<int>(box.b_row), static_cast<int>(box.b_column), static_cast<int>(box.length),
              static_cast<long long>(box.position)};
    }
    __device__ __forceinline__ void arrived(const AttentionTile&, int index) const { source.arrive(index); }
    __device__ __forceinline__ void stored(const AttentionTile&) const { source.raise_all(); }
};

/// The engine's view of a slot's tile.
__device__ __forceinline__ AttentionTile tile_of(const Cta& cta, const Slot& slot) {
    const TileEntry& t = slot.tile;
    AttentionTile tile;
    tile.q = cta.map(t.q_map);
    tile.q_row = static_cast<int>(t.q_row);
    tile.q_column = static_cast<int>(t.q_column);
    tile.o = cta.map(t.c_map);
    tile.row = static_cast<int>(t.row);
    tile.column = static_cast<int>(t.column);
    tile.rows = static_cast<int>(t.rows);
    tile.segments = static_cast<int>(slot.instruction.segment_count);
    tile.is_causal = slot.instruction.variant == static_cast<u32>(MaskCode::Causal);
    tile.query = static_cast<long long>(slot.instruction.query);
    tile.raises = slot.instruction.signal_count != 0;
    tile.out = at<char>(t.out);
    tile.pitch = t.pitch;
    tile.columns = static_cast<int>(t.columns);
    return tile;
}

__device__ __forceinline__ void load(const Cta& cta, const Slot& slot, Shared shared, Producer& producer) {
    Hooks hooks{{cta, slot}};
    attention_produce<Shape>(tile_of(cta, slot), hooks, shared, producer);
}

__device__ __forceinline__ void store(const Cta& cta, const Slot& slot, Shared shared, Boxes& boxes, u32 part, u32 lane) {
    Hooks hooks{{cta, slot}};
    attention_store<Shape>(tile_of(cta, slot), hooks, shared, boxes, part, lane);
}

__device__ __forceinline__ void compute(const Slot&, Shared shared, Consumer& consumer, u32 part, u32 thread) {
    attention_consume<Shape>(shared, consumer, __shfl_sync(~0u, part, 0), thread);
}

__device__ __forceinline__ void end(const Consumer& consumer, u32 part) { attention_consume_end<Shape>(consumer, part); }

}  // namespace mk::pipeline::engine
#endif
