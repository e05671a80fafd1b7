// What a CTA of the pipelined kernel has under way (sm_90a). Rust twin: mkernel-kernels/src/encode/tiles.rs.
#pragma once

#ifdef MK_PIPELINED
#include "mbarrier.cuh"
#include "tma.cuh"
#include "worker.cuh"

namespace mk::pipeline {

constexpr unsigned kSlots = KernelShape::SLOTS;

/// One claimed instruction.
struct Slot {
    InstructionEntry instruction;
    TileEntry tile;  // where `instruction` is a tile
    Place place;     // lane NO_LANE: the launch has ended for this CTA
};

/// The CTA's control block, behind the engine's shared memory.
struct Control {
    u64 filled[kSlots], freed[kSlots], loaded[kSlots];
    Slot slots[kSlots];
    u64 copied[Bulk::kPieces];  // of `Bulk`
    u32 is_failed;
};
static_assert(sizeof(Control) <= KernelShape::CONTROL_BYTES, "the control block fits");
static_assert(alignof(Slot) == 8 && sizeof(InstructionEntry) % 4 == 0 && sizeof(TileEntry) % 4 == 0, "copied by words");

/// What every thread of the CTA knows.
struct Cta {
    const LaunchEntry& launch;
    const RankEntry& rank;
    Control& control;
    Watch watch;
    u64 epoch;

    __device__ __forceinline__ unsigned filled(unsigned slot) const { return shared_address(control.filled + slot); }
    __device__ __forceinline__ unsigned freed(unsigned slot) const { return shared_address(control.freed + slot); }
    __device__ __forceinline__ unsigned loaded(unsigned slot) const { return shared_address(control.loaded + slot); }
    __device__ __forceinline__ bool is_failed() const { return *static_cast<volatile u32*>(&control.is_failed) != 0; }
    __device__ __forceinline__ void fail() const { *static_cast<volatile u32*>(&control.is_failed) = 1; }
    __device__ __forceinline__ const TensorMap* map(u32 index) const { return at<const TensorMap>(rank.maps) + index; }
};

/// Joins an engine to the interpreter, for the slot at hand.
struct Source {
    const Cta& cta;
    const Slot& slot;

    /// The operands of a segment. Those of the first came with the slot.
    __device__ __forceinline__ BoxEntry box(int index) const {
        const TileEntry& t = slot.tile;
        if (index == 0) return {t.position, t.a_map, t.a_row, t.a_column, t.b_map, t.b_row, t.b_column, t.length, 0};
        return at<const BoxEntry>(cta.rank.boxes)[slot.instruction.segments + static_cast<u32>(index)];
    }

    /// Returns once the engine may read a segment. The first was waited for by the claimer.
    __device__ __forceinline__ void arrive(int index) const {
        u32 count = slot.tile.wait_count;
        if (index > 0) {
            const SegmentEntry segment = at<const SegmentEntry>(cta.rank.segments)[slot.instruction.segments + static_cast<u32>(index)];
            count = segment.wait_count;
            for (u32 i = 0; i < count && !cta.is_failed(); ++i) {
                if (!await(cta.launch, cta.rank, segment.waits + i, cta.epoch, cta.watch, slot.place)) cta.fail();
            }
        }
        if (count != 0) tma::fence_all();
    }

    /// The tile is written and visible to this thread.
    __device__ __forceinline__ void raise_all() const {
        if (cta.is_failed()) return;
        for (u32 i = 0; i < slot.instruction.signal_count; ++i) {
            raise(at<const SignalEntry>(cta.rank.signals)[slot.instruction.signals + i]);
        }
    }
};

}  // namespace mk::pipeline
#endif
