// The pipelined walk through the lanes (sm_90a). Rust twin: mkernel-kernels/src/encode/tiles.rs.
//
// A ring of slots holds what the CTA has claimed, in order. Roles pass every slot, each at its own pace:
//   warp 3                  claims, waits for the first segment, fills the slot: ahead of everybody while tiles follow
//   warp 0, one lane        loads the tile's operands
//   warps 4-11, the team    computes a tile, or does any other instruction from its waits to its signals
//   warps 1 and 2           store the tile and raise its signals
// What a tile is, `engine` says: engine_gemm.cuh or engine_attention.cuh, whichever is compiled in.
//
// A slot is free again once all roles have passed it, and as each passes slots in order, a free slot means that all
// earlier instructions are complete too.
//
// Why nothing here hangs: loads wait for stages that the team frees, the team for staging that the stores free, the
// stores for the copy engine; only segments wait for other CTAs, with a deadline. An instruction retires without
// anything of what was claimed after it. The next lane is claimed from only when all slots are free.
#pragma once

#ifdef MK_PIPELINED
#include "claim.cuh"
#include "engine_attention.cuh"
#include "engine_gemm.cuh"
#include "worker.cuh"

namespace mk::pipeline {

constexpr unsigned kControl = (engine::kSharedBytes + 15) / 16 * 16;
static_assert(kControl + KernelShape::CONTROL_BYTES == MK_SHARED_BYTES, "the host reserves what the engine takes");
static_assert(engine::kScratch >= KernelShape::SHARED_BYTES &&
                  engine::kScratch >= Bulk::kPieces * Bulk::kPieceBytes + Stream::kSources * sizeof(Stream::Source),
              "other instructions use the stages as scratch");

/// Roles that pass a slot: the loading lane, a lane of each storing warp, a thread of each half of the team.
constexpr unsigned kPasses = 5;

/// A role's way over the slots: `next` waits until the slot at hand is filled, `pass` is done with it.
struct Walk {
    Ring<kSlots> ring;

    __device__ __forceinline__ const Slot& next(const Cta& cta) {
        barrier::wait(cta.filled(ring.slot), ring.parity);
        return cta.control.slots[ring.slot];
    }
    __device__ __forceinline__ void pass(const Cta& cta, bool is_counted) {
        if (is_counted) barrier::arrive(cta.freed(ring.slot));
        ring.advance();
    }
};

__device__ __forceinline__ bool is_end(const Slot& slot) { return slot.place.lane == KernelShape::NO_LANE; }
__device__ __forceinline__ bool is_tile(const Slot& slot) { return slot.instruction.op == static_cast<u32>(OpCode::Tile); }

/// Copies an entry to the slot by words, a lane a word.
template <class Entry>
__device__ __forceinline__ void take(Entry& to, const Entry* from, u32 lane) {
    for (u32 word = lane; word < sizeof(Entry) / 4; word += 32) {
        reinterpret_cast<u32*>(&to)[word] = reinterpret_cast<const u32*>(from)[word];
    }
}

/// Warp 3: claims instructions and fills slots until the lanes are drained or the launch unwinds.
__device__ __forceinline__ void claim(const Cta& cta, Place place, u32 lane) {
    u32* claims = claims_of(cta.rank, cta.epoch);
    Ring<kSlots> ring;
    bool is_complete = true;  // nothing claimed is under way
    Ring<kSlots> last;
    for (;;) {
        LaneEntry entry = at<const LaneEntry>(cta.rank.lanes)[place.lane];
        u32 index = 0;
        if (lane == 0) index = take_number(claims + place.lane);
        index = __shfl_sync(~0u, index, 0);
        if (index >= entry.count) {
            if (!is_complete) barrier::wait(cta.freed(last.slot), last.parity);
            is_complete = true;
            place.lane = entry.next;
        }
        if (place.lane != KernelShape::NO_LANE && index >= entry.count) continue;
        Slot& slot = cta.control.slots[ring.slot];
        barrier::wait(cta.freed(ring.slot), ring.parity ^ 1);
        if (cta.is_failed()) place.lane = KernelShape::NO_LANE;
        if (place.lane != KernelShape::NO_LANE) {
            const u32 number = entry.first + index;
            place.instruction = index;
            take(slot.instruction, at<const InstructionEntry>(cta.rank.instructions) + number, lane);
            if (cta.rank.tiles != 0) take(slot.tile, at<const TileEntry>(cta.rank.tiles) + number, lane);
            __syncwarp();
            if (is_tile(slot)) {
                bool fine = true;
                for (u32 i = lane; i < slot.tile.wait_count && fine; i += 32) {
                    fine = await(cta.launch, cta.rank, slot.tile.waits + i, cta.epoch, cta.watch, place);
                }
                if (!__all_sync(~0u, fine)) {
                    cta.fail();
                    place.lane = KernelShape::NO_LANE;
                }
            }
        }
        __syncwarp();
        if (lane == 0) {
            slot.place = place;
            barrier::arrive(cta.filled(ring.slot));
        }
        if (place.lane == KernelShape::NO_LANE) return;
        __syncwarp();
        last = ring;
        is_complete = !is_tile(slot);
        if (engine::kClaimsLate && !is_complete) barrier::wait(cta.loaded(ring.slot), ring.parity);
        // Nothing but tiles is claimed ahead: whoever is free should take the next.
        if (is_complete) barrier::wait(cta.freed(ring.slot), ring.parity);
        ring.advance();
    }
}

/// Warp 0, one lane: loads the operands of tiles.
__device__ __forceinline__ void load(const Cta& cta, engine::Shared shared) {
    Walk walk;
    engine::Producer producer;
    for (;;) {
        const Slot& slot = walk.next(cta);
        if (is_end(slot)) return;
        if (is_tile(slot)) engine::load(cta, slot, shared, producer);
        barrier::arrive(cta.loaded(walk.ring.slot));
        walk.pass(cta, true);
    }
}

/// Warps 1 and 2: store tiles and raise their signals.
__device__ __forceinline__ void store(const Cta& cta, engine::Shared shared, u32 part, u32 lane) {
    Walk walk;
    engine::Boxes boxes;
    for (;;) {
        const Slot& slot = walk.next(cta);
        if (is_end(slot)) return;
        if (is_tile(slot)) {
            // What the tile waited for may have read its memory by ordinary loads.
            if (slot.tile.wait_count != 0) tma::fence_all();
            engine::store(cta, slot, shared, boxes, part, lane);
            __syncwarp();
            if (part == 0 && lane == 0) add_relaxed(at<u64>(cta.launch.progress), 1);
        }
        walk.pass(cta, lane == 0);
    }
}

/// An instruction that is no tile, up to its signals. Not inlined: what it keeps in registers is not to push out the sums.
__device__ __noinline__ bool act(Worker& worker, const InstructionEntry& instruction, char* scratch) {
    return worker.act(instruction, scratch);
}

/// What the team keeps from slot to slot.
struct Team {
    Walk walk;
    engine::Consumer consumer;
    u32 lane;
    u64 start, tasks, busy_ns, wait_ns;
};

/// Keeps an object in memory from here on, out of the registers that a tile needs.
template <class Object>
__device__ __forceinline__ void park(Object& object) {
    asm volatile("" ::"l"(&object) : "memory");
}

/// The team computes the tiles of its lane from the slot at hand on, up to the first slot that holds none.
///
/// What is not needed within a tile is parked. (A function of its own would be simpler, but the compiler makes each `wgmma`
/// wait for the one before where a call is near.)
__device__ __forceinline__ void compute(const Cta& cta, Team& team) {
    extern __shared__ __align__(1024) char memory[];
    const engine::Shared shared{shared_address(memory)};
    const u32 part = team::thread() / 128, thread = team::thread() % 128;
    team.tasks = team.busy_ns = team.wait_ns = 0;
    for (;;) {
        const u64 asked = now_ns();
        const Slot& slot = team.walk.next(cta);
        team.start = now_ns();
        team.wait_ns += team.start - asked;
        if (!is_tile(slot) || slot.place.lane != team.lane) return;
        engine::Consumer consumer = team.consumer;
        park(team);
        park(cta);
        engine::compute(slot, shared, consumer, part, thread);
        park(team);
        park(cta);
        team.consumer = consumer;
        team.busy_ns += now_ns() - team.start;
        ++team.tasks;
        team.walk.pass(cta, thread == 0);
    }
}

/// The team: computes tiles, and does everything else as a whole.
__device__ __forceinline__ void perform(const Cta& cta, char* scratch, Place place) {
    const u32 thread = team::thread() % 128;
    Team team{};
    team.lane = place.lane;
    Worker worker{cta.launch, cta.rank, cta.watch, place, cta.epoch};
    worker.bulk.barriers = cta.control.copied;
    for (;;) {
        compute(cta, team);
        const Slot& slot = team.walk.next(cta);
        worker.tasks += team.tasks;
        worker.busy_ns += team.busy_ns + team.wait_ns;  // `leave` takes waits off
        worker.wait_ns += team.wait_ns;
        if (slot.place.lane != worker.place.lane) {
            if (team::thread() == 0) worker.leave(worker.place.lane);
            if (is_end(slot)) {
                engine::end(team.consumer, mk::team::thread() / 128);
                return;
            }
            worker.place.lane = team.lane = slot.place.lane;
            continue;  // the same slot again
        }
        worker.place = slot.place;
        mk::team::meet();  // both halves are done with the stages, which are scratch from here on
        const u64 start = now_ns();
        const InstructionEntry instruction = slot.instruction;
        if (act(worker, instruction, scratch)) {
            tma::fence_shared();
            worker.signal(instruction);
            if (team::thread() == 0) add_relaxed(at<u64>(cta.launch.progress), 1);
        } else {
            cta.fail();
            team::meet();
        }
        worker.busy_ns += now_ns() - start;
        ++worker.tasks;
        team.walk.pass(cta, thread == 0);
    }
}

/// Takes the CTA from its home lane to the end of the launch.
__device__ __forceinline__ void run(const LaunchEntry& launch, u64 epoch, char* memory) {
    const engine::Shared shared{shared_address(memory)};
    Control& control = *reinterpret_cast<Control*>(memory + kControl);
    const HomeEntry home = at<const HomeEntry>(launch.homes)[blockIdx.x];
    const Cta cta{launch, at<const RankEntry>(launch.ranks)[home.rank], control,
                  {at<const u32>(launch.abort), at<const u64>(launch.progress), launch.deadline_ns}, epoch};
    if (threadIdx.x == 0) {
        shared.init();
        for (unsigned slot = 0; slot < kSlots; ++slot) {
            barrier::init(cta.filled(slot), 1);
            barrier::init(cta.freed(slot), kPasses);
            barrier::init(cta.loaded(slot), 1);
        }
        for (unsigned piece = 0; piece < Bulk::kPieces; ++piece) barrier::init(shared_address(control.copied + piece), 1);
        barrier::publish();
        control.is_failed = 0;
    }
    __syncthreads();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < team::kFirst) {
        give_registers<56>();
        if (threadIdx.x == 0) load(cta, shared);
        if (warp == 1 || warp == 2) store(cta, shared, warp - 1, lane);
        if (warp == 3) claim(cta, {home.rank, home.lane, 0}, lane);
    } else {
        take_registers<224>();
        perform(cta, memory, {home.rank, home.lane, 0});
    }
}

}  // namespace mk::pipeline
#endif
