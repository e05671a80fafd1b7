// Copies by the bulk copy engine, through shared memory (sm_90a). Rust twin: mkernel-core/src/region.rs (Span).
//
// One thread drives it: pieces are loaded some ahead of those that are stored, so that as many bytes are in flight as the
// scratch holds. Threads that load and store through registers have a tenth of that under way.
//
// Orderings: the team has met after the waits, `fence_all` lets the engine read what these cover; the thread that
// commits the stores waits until all are written, and the barrier before the signals does the rest.
#pragma once

#ifdef MK_PIPELINED
#include "copy.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"

namespace mk {

/// Pieces under way, and how many of them are being loaded.
struct Bulk {
    static constexpr u32 kPieceBytes = 16384, kPieces = 8, kAhead = 4;
    u64* barriers;  // one per piece: its load has come
    u64 count = 0;  // pieces so far, over all copies of the launch

    /// Whether two spans can be copied so: rows that start and end at multiples of 16 bytes, not too short.
    static __device__ __forceinline__ bool takes(const SpanEntry& to, const SpanEntry& from) {
        const bool whole = is_contiguous(to) && is_contiguous(from);
        const u64 strides = whole ? 0 : to.stride | from.stride;
        return ((to.address | from.address | strides | to.row_bytes) & 15) == 0 && (whole ? to.rows : 1) * to.row_bytes >= 2048;
    }

    /// Copies a span by the first thread of the team; all of it count the pieces. `scratch` of kPieces pieces is its own.
    __device__ __forceinline__ void copy(const SpanEntry& to, const SpanEntry& from, u32 scratch) {
        const bool whole = is_contiguous(to) && is_contiguous(from);
        const u64 rows = whole ? 1 : to.rows, row_bytes = whole ? to.rows * to.row_bytes : to.row_bytes;
        const u64 pieces = rows * ((row_bytes + kPieceBytes - 1) / kPieceBytes);
        if (team::thread() == 0) drive(to, from, scratch, row_bytes, pieces);
        count += pieces;
    }

  private:
    /// `pieces` in all, of rows of `row_bytes`.
    __device__ __forceinline__ void drive(const SpanEntry& to, const SpanEntry& from, u32 scratch, u64 row_bytes, u64 pieces) {
        tma::fence_all();
        u64 row = 0, at_byte = 0, load_row = 0, load_byte = 0;
        auto load = [&](u64 number) {
            const u64 left = row_bytes - load_byte;
            const u32 bytes = left < kPieceBytes ? static_cast<u32>(left) : kPieceBytes, slot = number % kPieces;
            const u32 barrier = shared_address(barriers + slot);
            barrier::arrive_expecting(barrier, bytes);
            tma::load_run(scratch + slot * kPieceBytes, from.address + load_row * from.stride + load_byte, bytes, barrier);
            load_byte += bytes;
            if (load_byte == row_bytes) ++load_row, load_byte = 0;
        };
        for (u64 i = 0; i < pieces && i < kAhead; ++i) load(count + i);
        for (u64 i = 0; i < pieces; ++i) {
            const u64 number = count + i;
            const u64 left = row_bytes - at_byte;
            const u32 bytes = left < kPieceBytes ? static_cast<u32>(left) : kPieceBytes, slot = number % kPieces;
            barrier::wait(shared_address(barriers + slot), static_cast<u32>(number / kPieces) & 1);
            tma::store_run(to.address + row * to.stride + at_byte, scratch + slot * kPieceBytes, bytes);
            tma::commit();
            at_byte += bytes;
            if (at_byte == row_bytes) ++row, at_byte = 0;
            if (i + kAhead < pieces) {
                // The piece that was in the slot of the next load has left it: it is kPieces - kAhead stores back.
                tma::wait_read<kPieces - kAhead>();
                load(number + kAhead);
            }
        }
        tma::wait_written();
    }
};

}  // namespace mk
#endif
