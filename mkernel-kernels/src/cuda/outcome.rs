//! What a launch left behind, in the terms of the core: the fault record and the lanes' totals.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mkernel_core::executor::LaneStats;
use mkernel_core::{CellId, Fault, FaultKind, Instruction, LaneId, Op, Program, PutId, Rank, Span, Verified};

use crate::encode::data_decides_peer_bytes;
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
pub(super) fn clear(record: &[AtomicU64]) {
    record.iter().for_each(|word| word.store(0, Relaxed));
}

/// The fault in the record, if one was written.
pub(super) fn fault(record: &[AtomicU64], verified: &Verified) -> Option<Fault> {
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
    let raises = |program: &&Program| {
        let signals = program.signals.iter().any(|s| (s.rank, s.cell) == (rank, cell));
        signals || program.puts.iter().any(|p| (p.target.rank, p.cell) == (rank, cell))
    };
    verified.programs().iter().filter(|p| p.rank != rank).find(raises).map(|p| p.rank)
}

/// Bytes that CTAs of `program` wrote to peers of the node: as planned, or as counted where data decides.
pub(super) fn peer_bytes(program: &Program, totals: &[LaneTotals]) -> u64 {
    let planned = |instruction: &Instruction| {
        let is_away = |span: &&Span| span.rank != program.rank;
        let counts = instruction.op != Op::Release && !data_decides_peer_bytes(program, instruction);
        let spans = program.writes(instruction).iter().filter(is_away);
        if counts { spans.map(Span::bytes).sum() } else { 0 }
    };
    let counted: u64 = totals.iter().map(|t| t.peer_bytes).sum();
    program.instructions().map(|(_, _, i)| planned(i)).sum::<u64>() + counted
}

/// The lanes of `rank` with what they did.
pub(super) fn lane_stats(verified: &Verified, rank: Rank, ctas: &[u32], totals: &[LaneTotals]) -> Vec<LaneStats> {
    let lanes = verified.program(rank).map_or(&[][..], |p| &p.lanes);
    let stats = |((lane, &ctas), totals): ((&mkernel_core::Lane, &u32), &LaneTotals)| LaneStats {
        rank,
        role: lane.role,
        ctas,
        tasks: totals.tasks,
        busy_us: totals.busy_ns as f64 / 1e3,
        wait_us: totals.wait_ns as f64 / 1e3,
    };
    lanes.iter().zip(ctas).zip(totals).map(stats).collect()
}

#[cfg(test)]
mod tests {
    use mkernel_core::{DType, RoleName, World, validate};

    use super::*;
    use crate::{AgGemm, Operator, Profile, RoleCtas};

    fn verified() -> Verified {
        let world = World::uniform(2, 1).unwrap();
        let op = AgGemm { m: 64, n: 32, k: 16, dtype: DType::F32 };
        let plan = |rank| op.plan(&world, rank, &Profile::HOST, &RoleCtas::default()).unwrap();
        validate(world.ranks().map(plan).collect()).unwrap()
    }

    /// The words that the device writes, field by field.
    fn words(record: FaultRecord) -> Vec<AtomicU64> {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut words = vec![0; FAULT_WORDS];
        (words[WRITTEN], words[WANTED], words[SEEN]) = (record.written, record.wanted, record.seen);
        words[CODE_RANK] = pair(record.code, record.rank);
        words[LANE_INSTRUCTION] = pair(record.lane, record.instruction);
        words[CELL] = pair(record.cell, 0);
        words.into_iter().map(AtomicU64::new).collect()
    }

    const RECORD: FaultRecord =
        FaultRecord { written: 1, wanted: 9, seen: 4, code: 0, rank: 1, lane: 0, instruction: 0, cell: 0, reserved: 0 };

    #[test]
    fn a_wait_that_expired_names_its_place_and_the_other_side() {
        let verified = verified();
        let compute = &verified.programs()[1].lanes[0];
        let cell = verified.programs()[1].waits[0];
        let fault = fault(&words(FaultRecord { cell: cell.0, ..RECORD }), &verified).unwrap();
        assert_eq!((fault.kind, fault.rank, fault.role), (FaultKind::Deadline, Rank(1), Some(compute.role)));
        assert_eq!((fault.cell, fault.wanted, fault.seen, fault.peer), (Some(cell), 9, 4, Some(Rank(0))));
    }

    #[test]
    fn a_full_ring_names_the_target_of_the_put() {
        let verified = verified();
        let lane = verified.programs()[1].lanes.iter().position(|l| l.role == RoleName::Send).unwrap();
        let code = FaultCode::FifoFull as u32;
        let fault = fault(&words(FaultRecord { code, lane: lane as u32, ..RECORD }), &verified).unwrap();
        assert_eq!((fault.kind, fault.role, fault.peer), (FaultKind::FifoFull, Some(RoleName::Send), Some(Rank(0))));
    }

    #[test]
    fn a_record_that_is_not_written_is_no_fault() {
        assert_eq!(fault(&words(FaultRecord { written: 0, ..RECORD }), &verified()), None);
    }
}
