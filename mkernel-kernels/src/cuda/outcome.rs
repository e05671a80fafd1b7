//! What a launch left behind, in the terms of the core: the fault record and the lanes' totals.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mkernel_core::executor::LaneStats;
use mkernel_core::{CellId, Fault, FaultKind, LaneId, PutId, Rank, Verified};

use super::memory::Pinned;
use crate::encode::layout::{FaultCode, FaultRecord, LaneTotals};

/// Words of a fault record.
pub(super) const FAULT_WORDS: usize = size_of::<FaultRecord>() / 8;

const WRITTEN: usize = std::mem::offset_of!(FaultRecord, written) / 8;
const WANTED: usize = std::mem::offset_of!(FaultRecord, wanted) / 8;
const SEEN: usize = std::mem::offset_of!(FaultRecord, seen) / 8;
const CODE_RANK: usize = std::mem::offset_of!(FaultRecord, code) / 8;
const LANE_INSTRUCTION: usize = std::mem::offset_of!(FaultRecord, lane) / 8;
const CELL: usize = std::mem::offset_of!(FaultRecord, cell) / 8;

/// Empties the record before a launch.
pub(super) fn clear(record: &Pinned) {
    record.iter().for_each(|word| word.store(0, Relaxed));
}

/// The fault in the record, if one was written.
pub(super) fn fault(record: &Pinned, verified: &Verified) -> Option<Fault> {
    // Acquire: pairs with the device's release of `written`.
    if record[WRITTEN].load(Acquire) == 0 {
        return None;
    }
    let pair = |word: usize| {
        let both = record[word].load(Relaxed);
        (both as u32, (both >> 32) as u32)
    };
    let ((code, rank), (lane, instruction), (cell, _)) = (pair(CODE_RANK), pair(LANE_INSTRUCTION), pair(CELL));
    let program = verified.programs().get(rank as usize)?;
    let mut fault = Fault::new(FaultKind::Died, program.rank);
    fault.lane = Some(LaneId(lane as u16));
    fault.role = program.lanes.get(lane as usize).map(|l| l.role);
    fault.instruction = Some(instruction);
    match FaultCode::from_abi(code) {
        Some(FaultCode::FifoFull) => {
            fault.kind = FaultKind::FifoFull;
            fault.peer = Some(program.put(PutId(cell)).target.rank);
        }
        Some(code) => {
            fault.kind = if code == FaultCode::Deadline { FaultKind::Deadline } else { FaultKind::Aborted };
            fault.cell = Some(CellId(cell));
            (fault.wanted, fault.seen) = (record[WANTED].load(Relaxed), record[SEEN].load(Relaxed));
            fault.peer = source_of(verified, program.rank, CellId(cell));
        }
        None => {}
    }
    Some(fault)
}

/// The other rank that raises a cell, by a signal or by a put.
fn source_of(verified: &Verified, rank: Rank, cell: CellId) -> Option<Rank> {
    let raises = |program: &&mkernel_core::Program| {
        let signals = program.signals.iter().any(|s| (s.rank, s.cell) == (rank, cell));
        signals || program.puts.iter().any(|p| (p.target.rank, p.cell) == (rank, cell))
    };
    verified.programs().iter().filter(|p| p.rank != rank).find(raises).map(|p| p.rank)
}

/// The lanes of `rank` with what they did.
pub(super) fn lane_stats(verified: &Verified, rank: Rank, totals: &[LaneTotals]) -> Vec<LaneStats> {
    let lanes = verified.program(rank).map_or(&[][..], |p| &p.lanes);
    let stats = |(lane, totals): (&mkernel_core::Lane, &LaneTotals)| LaneStats {
        rank,
        role: lane.role,
        ctas: lane.ctas,
        tasks: totals.tasks,
        busy_us: totals.busy_ns as f64 / 1e3,
        wait_us: totals.wait_ns as f64 / 1e3,
    };
    lanes.iter().zip(totals).map(stats).collect()
}
