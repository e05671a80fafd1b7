// The protocol files of the device on host threads, under a thread sanitizer. Prints words for the Rust side to decode.
#include "claim.cuh"
#include "fault.cuh"
#include "signal.cuh"
#include "ticket.cuh"
#include "wait.cuh"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using namespace mk;

static void check(bool holds, const char* claim) {
    if (!holds) {
        std::printf("failed: %s\n", claim);
        std::exit(1);
    }
}

template <class T>
static u64 address(T* of) {
    return reinterpret_cast<u64>(of);
}

static void on_threads(u32 count, void (*body)(u32, void*), void* state) {
    std::vector<std::thread> threads;
    for (u32 i = 0; i < count; ++i) threads.emplace_back(body, i, state);
    for (auto& thread : threads) thread.join();
}

struct Ring {
    std::vector<u64> memory;
    u64 head = 0;
    u32 abort = 0;
    u64 progress = 0;
    RankEntry rank{};
    Watch watch;

    Ring(u32 shift, u64 deadline_ns) : memory(sizeof(FifoHeader) / 8 + (1u << shift)), watch{&abort, &progress, deadline_ns} {
        rank.fifo = address(memory.data());
        rank.fifo_head = address(&head);
        rank.fifo_shift = shift;
    }
    FifoHeader* header() { return at<FifoHeader>(rank.fifo); }
    u64* slots() { return reinterpret_cast<u64*>(header() + 1); }
};

constexpr u64 kLong = 60ull * 1000 * 1000 * 1000;

// Every instruction of a lane and of those that follow it is claimed exactly once, in order by each thread.
static void claims_are_handed_out_once() {
    static LaneEntry lanes[2] = {{0, 1000, 1, 0}, {1000, 500, KernelShape::NO_LANE, 0}};
    static u32 counters[2] = {};
    static RankEntry rank{};
    static u32 taken[2][1000] = {};
    rank.lanes = address(lanes);
    rank.claims = address(counters);
    rank.lane_count = 2;
    on_threads(6, [](u32 thread, void*) {
        u32 lane = thread % 2, last = 0;
        for (bool first = true;; first = false) {
            const Claim claim = claim_next(rank, claims_of(rank, 0), lane);
            if (claim.lane == KernelShape::NO_LANE) return;
            check(first || claim.lane != lane || claim.index > last, "claims rise");
            lane = claim.lane, last = claim.index;
            word(&taken[lane][claim.index]).fetch_add(1, std::memory_order_relaxed);
        }
    }, nullptr);
    for (u32 i = 0; i < 1500; ++i) check(taken[i / 1000][i % 1000] == 1, "each instruction is claimed once");
}

// What was written before a signal is there after the wait; the sanitizer sees a race if an order is too weak.
static void a_signal_is_never_seen_before_its_bytes() {
    static u64 bytes[1000], cell;
    static u32 abort;
    static u64 progress;
    bytes[0] = cell = 0;
    on_threads(2, [](u32 thread, void*) {
        const Watch watch{&abort, &progress, kLong};
        for (u64 i = 0; i < 1000; ++i) {
            if (thread == 0) {
                bytes[i] = i * i;
                raise(SignalEntry{address(&cell), 3, static_cast<u32>(EdgeScope::System)});
            } else {
                u64 seen;
                const WaitEnd end = wait_for(&cell, (i + 1) * 3, EdgeScope::System, watch, seen);
                check(end == WaitEnd::Reached && bytes[i] == i * i, "the bytes are there");
            }
        }
    }, nullptr);
}

// Producers push, this thread pops as mkernel-core/src/fifo.rs does; every ticket comes once, after its payload.
static void tickets_arrive_once_after_their_payload(u32 shift) {
    constexpr u32 kProducers = 3, kEach = 500;
    struct State {
        Ring ring;
        u64 payload[kProducers * kEach];
    };
    State* state = new State{Ring(shift, kLong), {}};
    std::thread producers([&] {
        on_threads(kProducers, [](u32 thread, void* raw) {
            State& s = *static_cast<State*>(raw);
            u64 tail = 0;
            for (u32 i = 0; i < kEach; ++i) {
                const u32 put = thread * kEach + i;
                s.payload[put] = put + 7ull;
                check(push_ticket(s.ring.rank, put, ~put, s.ring.watch, tail) == PushEnd::Pushed, "pushed");
            }
        }, state);
    });
    Ring& ring = state->ring;
    std::vector<u32> seen(kProducers * kEach);
    for (u64 next = 0; next < kProducers * kEach;) {
        const u64 found = load_acquire(ring.slots() + (next & ((1ull << shift) - 1)), EdgeScope::System);
        if (found >> TicketBits::LAP_SHIFT != (~(next >> shift) & 1)) {
            std::this_thread::yield();
            continue;
        }
        const u32 put = static_cast<u32>(found >> TicketBits::PUT_SHIFT) & ((1u << TicketBits::PUT_BITS) - 1);
        check(static_cast<u32>(found) == ~put, "the argument is the put's");
        check(seen[put]++ == 0 && state->payload[put] == put + 7ull, "once, and after its payload");
        store_release_system(&ring.header()->tail, ++next);
    }
    producers.join();
    delete state;
}

// A ring that nobody drains: the producer gives up in time and poisons the ring for the others.
static void a_producer_that_gives_up_poisons_the_ring() {
    Ring ring(1, 20 * 1000 * 1000);
    u64 tail = 0;
    for (u32 i = 0; i < 2; ++i) check(push_ticket(ring.rank, i, 0, ring.watch, tail) == PushEnd::Pushed, "two slots");
    check(push_ticket(ring.rank, 2, 0, ring.watch, tail) == PushEnd::Full, "the third gives up");
    check(ring.header()->poisoned == 1, "the ring is poisoned");
    check(push_ticket(ring.rank, 3, 0, ring.watch, tail) == PushEnd::Poisoned, "the fourth stops at once");
    check((ring.slots()[0] >> TicketBits::PUT_SHIFT & 1) == 0, "nothing is overwritten");
}

// A wait ends at its deadline, or earlier by the abort word; progress elsewhere puts the deadline off.
static void waits_end() {
    static u32 abort, stop;
    static u64 progress, cell;
    u64 seen;
    const Watch watch{&abort, &progress, 30 * 1000 * 1000};
    check(wait_for(&cell, 1, EdgeScope::Gpu, watch, seen) == WaitEnd::Deadline && seen == 0, "the deadline ends it");
    std::thread busy([] {
        for (u64 start = now_ns(); now_ns() - start < 120 * 1000 * 1000ull && load_relaxed_system(&stop) == 0;) {
            add_relaxed(&progress, 1);
        }
        add_release(&cell, 1, EdgeScope::Gpu);
    });
    check(wait_for(&cell, 1, EdgeScope::Gpu, watch, seen) == WaitEnd::Reached, "progress puts it off");
    busy.join();
    store_relaxed_system(&abort, 1);
    const Watch patient{&abort, &progress, kLong};
    check(wait_for(&cell, 2, EdgeScope::Gpu, patient, seen) == WaitEnd::Aborted, "the abort word ends it");
    check(reached(2, ~0ull) && !reached(~0ull, 2), "across the wrap");
}

// Many report, one record is kept whole.
static void the_first_fault_is_kept() {
    static u32 claim, abort;
    static FaultRecord record;
    static LaunchEntry launch{};
    launch.fault_claim = address(&claim), launch.abort = address(&abort), launch.fault = address(&record);
    on_threads(8, [](u32 thread, void*) {
        report(launch, FaultCode::Deadline, Place{thread, thread, thread}, thread, thread, thread);
    }, nullptr);
    check(record.written == 1 && abort == 1, "written, and everybody is told");
    const bool whole = record.rank == record.lane && record.lane == record.instruction && record.seen == record.rank;
    check(whole && record.wanted == record.rank && record.cell == record.rank, "the fields are of one thread");
}

int main() {
    claims_are_handed_out_once();
    a_signal_is_never_seen_before_its_bytes();
    for (u32 shift : {1u, 3u, 10u}) tickets_arrive_once_after_their_payload(shift);
    a_producer_that_gives_up_poisons_the_ring();
    waits_end();
    the_first_fault_is_kept();
    for (u64 position : {0ull, 1ull, 2ull, 5ull, 1023ull, ~0ull}) {
        for (u32 put : {0u, 1u, 0x7fffffffu}) {
            for (u32 shift : {1u, 10u}) {
                std::printf("%llu %u %u %u %llu\n", position, put, put ^ 0x5a5a5a5au, shift,
                            ticket_word(put, put ^ 0x5a5a5a5au, position, shift));
            }
        }
    }
}
