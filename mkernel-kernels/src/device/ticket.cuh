// Tickets to the proxy: the producer's half of the ring. Rust twin: mkernel-core/src/fifo.rs and ticket.rs.
//
// A position has one producer, which writes its slot once, in one store, and only after the ring's last lap of that
// slot was popped. The lap bit commits it. `head` lives in device memory, since the consumer never reads it.
#pragma once

#include "wait.cuh"

namespace mk {

/// How a push ended.
enum class PushEnd { Pushed, Full, Poisoned, Aborted };

/// The word that commits `put` with `argument` at `position`; the first lap has parity 1, so zeroed memory is empty.
__device__ __forceinline__ u64 ticket_word(u32 put, u32 argument, u64 position, u32 shift) {
    const u64 lap = ~(position >> shift) << TicketBits::LAP_SHIFT;
    return lap | static_cast<u64>(put) << TicketBits::PUT_SHIFT | argument;
}

/// One thread pushes a ticket. What the CTA wrote before its last barrier is visible to whoever pops it.
///
/// `tail` is this producer's last view of the ring's tail; it only rises, so an old one is merely cautious. A producer
/// that gives up leaves a hole: the ring is poisoned, nothing behind the hole is delivered, and the session ends.
__device__ __forceinline__ PushEnd push_ticket(const RankEntry& rank, u32 put, u32 argument, const Watch& watch, u64& tail) {
    FifoHeader* ring = at<FifoHeader>(rank.fifo);
    u64* slots = reinterpret_cast<u64*>(ring + 1);
    const u64 count = 1ull << rank.fifo_shift;
    const u64 position = take_number(at<u64>(rank.fifo_head));
    Spin spin;
    while (position - tail >= count) {
        tail = load_acquire(&ring->tail, EdgeScope::System);
        if (position - tail < count) break;
        if (load_acquire(&ring->poisoned, EdgeScope::System) != 0) return PushEnd::Poisoned;
        const WaitEnd end = spin.next(watch);
        if (end != WaitEnd::Reached) {
            store_release_system(&ring->poisoned, 1);
            return end == WaitEnd::Aborted ? PushEnd::Aborted : PushEnd::Full;
        }
    }
    store_release_system(slots + (position & (count - 1)), ticket_word(put, argument, position, rank.fifo_shift));
    return PushEnd::Pushed;
}

}  // namespace mk
