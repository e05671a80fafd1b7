// Tiles of matrix products for the pipelined kernel (sm_90a). Rust twin: mkernel-kernels/src/encode/tiles.rs.
#pragma once

#ifdef MK_TILE_N
#include "gemm_hopper_epilogue.cuh"
#include "slot.cuh"

namespace mk::pipeline::engine {

template <class Out>
using ShapeOf = GemmShape<128, MK_TILE_N, MK_STAGES, MK_BOXES, 1, 1, 1, Out>;
using Half = ShapeOf<unsigned short>;
using Full = ShapeOf<float>;

using Shared = GemmShared<Half>;
using Producer = Ring<Half::kStages>;
using Boxes = Ring<Half::kStaging>;
using Consumer = Half::Consumer;
constexpr unsigned kSharedBytes = Half::kSharedBytes, kScratch = Half::kOffsetStaging;
constexpr bool kClaimsLate = false;

/// The hooks that gemm_hopper.cuh asks for.
struct Hooks {
    Source source;

    __device__ __forceinline__ void segment(const GemmTile&, int index, GemmSegment& to) const {
        const BoxEntry box = source.box(index);
        source.arrive(index);
        to = {source.cta.map(box.a_map), source.cta.map(box.b_map), static_cast<int>(box.a_row), static_cast<int>(box.a_column),
              static_cast<int>(box.b_row), static_cast<int>(box.b_column), static_cast<int>(box.length)};
    }
    __device__ __forceinline__ void stored(const GemmTile&) const { source.raise_all(); }
    __device__ __forceinline__ void publish(const GemmTile&, unsigned) const {}
    __device__ __forceinline__ void collect(const GemmTile&, unsigned) const {}
};

/// The engine's view of a slot's tile; the consumers look at `blocks` alone.
__device__ __forceinline__ GemmTile tile_of(const TensorMap* maps, const Slot& slot) {
    const TileEntry& t = slot.tile;
    GemmTile tile;
    tile.c = maps + t.c_map;
    tile.row = static_cast<int>(t.row);
    tile.column = static_cast<int>(t.column);
    tile.rows = static_cast<int>(t.rows);
    tile.segments = static_cast<int>(slot.instruction.segment_count);
    tile.blocks = static_cast<int>(t.blocks);
    tile.raises = slot.instruction.signal_count != 0;
    tile.out = at<char>(t.out);
    tile.pitch = t.pitch;
    tile.columns = static_cast<int>(t.columns);
    tile.split = 0;
    tile.partials = nullptr;
    return tile;
}

__device__ __forceinline__ bool is_full(const Slot& slot) {
    return slot.instruction.output == static_cast<u32>(Element::F32);
}

__device__ __forceinline__ void load(const Cta& cta, const Slot& slot, Shared shared, Producer& producer) {
    Hooks hooks{{cta, slot}};
    gemm_produce<Half>(tile_of(cta.map(0), slot), hooks, shared, producer, 0);
}

__device__ __forceinline__ void store(const Cta& cta, const Slot& slot, Shared shared, Boxes& boxes, u32 part, u32 lane) {
    Hooks hooks{{cta, slot}};
    const GemmTile tile = tile_of(cta.map(0), slot);
#ifdef MK_TILE_F32
    if (is_full(slot)) gemm_store<Full>(tile, hooks, GemmShared<Full>{shared.base}, boxes, part, lane);
#endif
#ifdef MK_TILE_HALF
    if (!is_full(slot)) gemm_store<Half>(tile, hooks, shared, boxes, part, lane);
#endif
}

__device__ __forceinline__ void compute(const Slot& slot, Shared shared, Consumer& consumer, u32 part, u32 thread) {
    struct None {
        __device__ void publish(const GemmTile&, unsigned) {}
        __device__ void collect(const GemmTile&, unsigned) {}
    } none;
    const GemmTile tile = tile_of(nullptr, slot);
#ifdef MK_TILE_F32
    if (is_full(slot)) gemm_consume<Full>(tile, none, GemmShared<Full>{shared.base}, consumer, part, thread);
#endif
#ifdef MK_TILE_HALF
    if (!is_full(slot)) gemm_consume<Half>(tile, none, shared, consumer, part, thread);
#endif
}

__device__ __forceinline__ void end(const Consumer&, u32) {}

}  // namespace mk::pipeline::engine
#endif
