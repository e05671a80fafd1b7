// The index of a rank: tiles, rows and places. Rust twin: mkernel-core/src/routing.rs (Router).
//
// All tokens in the order of arrival are cut into equal parts, a warp each. A walk over a part numbers, for every expert,
// the tokens that have it. So there are three passes: count per warp and expert; then, once prefix sums say where each
// warp's numbers start, number every pair; then put tiles in order and say where every slot's result is.
//
// Nothing lies outside: a token has at most min(topk, experts) pairs, for which the spans have room (validate), and shared
// memory has room for the tiles (encode).
#pragma once

#include "rows.cuh"

namespace mk {

/// The words of an entry of the index; the twin of `routing::Tile`.
constexpr u32 kTileWords = 5;

/// Everything about one index.
struct Router {
    const SpanEntry* spans;
    const SegmentEntry* segments;
    u32 segment_count, expert_count, topk, tile, warps;
    Experts experts;
    SpanEntry tiles, rows, places;
    // In shared memory: per warp and expert the next number and the tokens of a step; per expert the pairs, the first pair
    // and the first tile; per tile its place in order and the runs of its first and last pair.
    u32 *next, *step, *pairs, *first_pair, *first_tile, *slot;
    unsigned short *run_first, *run_last;

    __device__ __forceinline__ Router(const RankEntry& rank, const InstructionEntry& i, char* shared)
        : spans(at<const SpanEntry>(rank.spans)),
          segments(at<const SegmentEntry>(rank.segments) + i.segments),
          segment_count(i.segment_count),
          expert_count(i.expert_end - i.expert_first),
          tile(i.tile),
          experts{i.expert_first, i.expert_end},
          tiles(spans[i.writes]),
          rows(spans[i.writes + 1]),
          places(spans[i.writes + 2]) {
        topk = slots_of(places);
        slot = reinterpret_cast<u32*>(shared);
        run_first = reinterpret_cast<unsigned short*>(slot + tiles.rows);
        run_last = run_first + tiles.rows;
        pairs = slot + 2 * tiles.rows;
        first_pair = pairs + expert_count;
        first_tile = first_pair + expert_count;
        next = first_tile + expert_count;
        const u32 left = KernelShape::SHARED_BYTES / 4 - (2 * tiles.rows + 3 * expert_count);
        const u32 fit = expert_count == 0 ? kWarps : left / (2 * expert_count);
        warps = fit < kWarps ? fit : kWarps;
        step = next + warps * expert_count;
    }

    __device__ __forceinline__ SpanEntry table(u32 segment) const { return spans[segments[segment].reads]; }
};

/// Part `part` of `parts` of all tokens, step by step of up to 32 of one run: `visit(run, token, slots, row)` by every
/// lane of a warp, with slots 0 for a lane that has no token. Row is where the token's row lies if it has one here.
template <class Visit>
__device__ __forceinline__ void walk(const Router& r, u32 part, Visit visit) {
    const u32 lane = team::thread() % 32;
    const u64 begin = static_cast<u64>(r.places.rows) * part / r.warps, end = static_cast<u64>(r.places.rows) * (part + 1) / r.warps;
    u64 passed = 0;
    for (u32 run = 0; run < r.segment_count && passed < end; ++run) {
        const SpanEntry table = r.table(run);
        const u64 from = passed > begin ? passed : begin, to = passed + table.rows < end ? passed + table.rows : end;
        const u64 start = passed;
        passed += table.rows;
        if (from >= to) continue;
        const u32 position = static_cast<u32>(r.segments[run].position);
        u32 row = position;
        // Rows of a run that lands are packed, so the part counts those before it, too.
        for (u64 t = run == 0 ? from - start : 0; t < to - start; t += 32) {
            const u64 mine = t + lane;
            const bool is_here = start + mine >= from && start + mine < to;
            const u64 slots = mine < to - start ? row_of(table, mine) : 0;
            const bool wants = slots != 0 && r.experts.wants(slots, r.topk);
            const u32 before = __popc(__ballot_sync(~0u, wants) & ((1u << lane) - 1));
            const u32 token = position + static_cast<u32>(mine);
            visit(run, token, is_here ? slots : 0, run == 0 ? token : row + before);
            row += __popc(__ballot_sync(~0u, wants));
        }
    }
}

/// Numbers the tokens of a part for every expert that they have, from what `next` says: `each(expert, number, row)`.
template <class Each>
__device__ __forceinline__ void number_pairs(const Router& r, u32 part, Each each) {
    const u32 lane = team::thread() % 32;
    u32* next = r.next + part * r.expert_count;
    u32* step = r.step + part * r.expert_count;
    walk(r, part, [&](u32 run, u32 token, u64 slots, u32 row) {
        auto local = [&](u32 k) { return slots == 0 ? kNowhere : r.experts.position(at<const u32>(slots)[k]); };
        for (u32 k = 0; k < r.topk; ++k) {
            const u32 expert = local(k);
            if (expert != kNowhere) atomicOr(step + expert, 1u << lane);
        }
        __syncwarp();
        for (u32 k = 0; k < r.topk; ++k) {
            const u32 expert = local(k);
            if (expert == kNowhere) continue;
            const u32 number = next[expert] + __popc(step[expert] & ((1u << lane) - 1));
            each(run, token, k, expert, number, row);
        }
        __syncwarp();
        for (u32 expert = lane; expert < r.expert_count; expert += 32) {
            next[expert] += __popc(step[expert]);
            step[expert] = 0;
        }
        __syncwarp();
    });
}

/// Sets the words `first..` of shared memory to zero.
__device__ __forceinline__ void clear(u32* first, u32 count) {
    for (u32 i = team::thread(); i < count; i += team::kThreads) first[i] = 0;
}

/// Turns counts per warp and expert into where each warp's numbers start, and finds every expert's first pair and tile.
__device__ __forceinline__ u32 add_up(const Router& r) {
    for (u32 e = team::thread(); e < r.expert_count; e += team::kThreads) {
        u32 sum = 0;
        for (u32 w = 0; w < r.warps; ++w) {
            const u32 count = r.next[w * r.expert_count + e];
            r.next[w * r.expert_count + e] = sum;
            sum += count;
        }
        r.pairs[e] = sum;
    }
    team::meet();
    // One after the other: experts of a rank are few.
    u32 pair = 0, tile = 0;
    for (u32 e = 0; e < r.expert_count; ++e) {
        if (team::thread() == 0) r.first_pair[e] = pair, r.first_tile[e] = tile;
        pair += r.pairs[e];
        tile += r.pairs[e] / r.tile + (r.pairs[e] % r.tile != 0);
    }
    team::meet();
    return tile;
}

/// Puts the tiles in order of their last pair's run, then of expert and block, and writes their entries.
__device__ __forceinline__ void order_tiles(const Router& r, u32 used) {
    for (u32 i = team::thread(); i < used; i += team::kThreads) {
        u32 before = 0;
        for (u32 j = 0; j < used; ++j) before += r.run_last[j] < r.run_last[i] || (r.run_last[j] == r.run_last[i] && j < i);
        r.slot[i] = before;
        u32 expert = 0;
        while (expert + 1 < r.expert_count && r.first_tile[expert + 1] <= i) ++expert;
        const u32 first = (i - r.first_tile[expert]) * r.tile, left = r.pairs[expert] - first;
        u32* entry = at<u32>(row_of(r.tiles, before));
        entry[0] = expert;
        entry[1] = r.first_pair[expert] + first;
        entry[2] = left < r.tile ? left : r.tile;
        // Run 0 is the rank's own, so landing l is run l + 1.
        entry[3] = r.run_first[i] == 0 ? 0 : r.run_first[i] - 1;
        entry[4] = r.run_last[i];
    }
    for (u64 i = used * static_cast<u64>(kTileWords) + team::thread(); i < r.tiles.rows * static_cast<u64>(kTileWords); i += team::kThreads) {
        at<u32>(row_of(r.tiles, i / kTileWords))[i % kTileWords] = 0;
    }
}

/// Waits for all segments; only if any has a wait are they looked at one after the other.
template <class Ready>
__device__ __forceinline__ bool ready_for(const Router& r, Ready ready) {
    bool none = true;
    for (u32 s = team::thread(); s < r.segment_count; s += team::kThreads) none &= r.segments[s].wait_count + r.segments[s].picked_count == 0;
    if (team::all(none)) return true;
    for (u32 s = 0; s < r.segment_count; ++s) {
        if (!ready(r.segments[s])) return false;
    }
    return true;
}

/// The whole index by the team. `ready(segment)` waits for a segment.
template <class Ready>
__device__ __forceinline__ bool route(const RankEntry& rank, const InstructionEntry& instruction, char* shared, Ready ready) {
    const Router r(rank, instruction, shared);
    if (!ready_for(r, ready)) return false;
    const u32 warp = team::thread() / 32;
    clear(r.next, 2 * r.warps * r.expert_count);
    team::meet();
    if (warp < r.warps) number_pairs(r, warp, [](u32, u32, u32, u32, u32, u32) {});
    team::meet();
    const u32 used = add_up(r);
    // Until its tile has a place, a slot holds the number of its pair.
    if (warp < r.warps) {
        number_pairs(r, warp, [&](u32 run, u32 token, u32 k, u32 expert, u32 number, u32 row) {
            at<u32>(r.rows.address)[r.first_pair[expert] + number] = row;
            at<u32>(row_of(r.places, token))[k] = number;
            const u32 tile = r.first_tile[expert] + number / r.tile;
            if (number % r.tile == 0) r.run_first[tile] = static_cast<unsigned short>(run);
            if (number % r.tile == r.tile - 1 || number + 1 == r.pairs[expert]) r.run_last[tile] = static_cast<unsigned short>(run);
        });
    }
    team::meet();
    order_tiles(r, used);
    team::meet();
    if (warp < r.warps) {
        walk(r, warp, [&](u32, u32 token, u64 slots, u32) {
            for (u32 k = 0; slots != 0 && k < r.topk; ++k) {
                const u32 expert = r.experts.position(at<const u32>(slots)[k]);
                u32* place = at<u32>(row_of(r.places, token)) + k;
                const u32 number = expert == kNowhere ? 0 : *place;
                *place = expert == kNowhere ? kNowhere : r.slot[r.first_tile[expert] + number / r.tile] * r.tile + number % r.tile;
            }
        });
    }
    return true;
}

}  // namespace mk
