//! A launch's fault as the record that a rank raises, and back.

use mkernel_core::{CellId, Fault, FaultKind, LaneId, Rank, RoleName};

use super::wire::{Reader, put_u32};

/// First byte of a record that is a fault of a launch; text never begins with it.
const FAULT: u8 = 0;

/// Kinds by their number on the wire.
const KINDS: [FaultKind; 6] = [
    FaultKind::Deadline,
    FaultKind::Transport,
    FaultKind::FifoFull,
    FaultKind::Aborted,
    FaultKind::Died,
    FaultKind::Index,
];

/// The record of a fault.
pub(crate) fn encode(fault: &Fault) -> Vec<u8> {
    let kind = KINDS.iter().position(|kind| *kind == fault.kind).expect("the table has every kind");
    let role = fault.role.map(|role| {
        let number = RoleName::ALL.iter().position(|name| *name == role);
        number.expect("the table has every role") as u32
    });
    let mut out = vec![FAULT, kind as u8];
    put_u32(&mut out, fault.rank.0);
    for value in [
        role,
        fault.lane.map(|lane| lane.0.into()),
        fault.instruction,
        fault.cell.map(|cell| cell.0),
        fault.peer.map(|peer| peer.0),
        fault.status,
    ] {
        out.push(value.is_some().into());
        put_u32(&mut out, value.unwrap_or(0));
    }
    out.extend_from_slice(&fault.wanted.to_le_bytes());
    out.extend_from_slice(&fault.seen.to_le_bytes());
    out
}

/// The fault of a record; `None` if it is text or nonsense.
pub(crate) fn decode(record: &[u8]) -> Option<Fault> {
    let mut reader = Reader::new(record);
    if reader.u8()? != FAULT {
        return None;
    }
    let kind = *KINDS.get(usize::from(reader.u8()?))?;
    let rank = Rank(reader.u32()?);
    let mut optional = || Some((reader.u8()? != 0, reader.u32()?)).map(|(is_there, value)| is_there.then_some(value));
    let (role, lane, instruction, cell, peer) = (optional()?, optional()?, optional()?, optional()?, optional()?);
    let status = optional()?;
    let role = role.map(|number| RoleName::ALL.get(number as usize).copied().ok_or(())).transpose().ok()?;
    let lane = lane.map(|lane| u16::try_from(lane).map(LaneId)).transpose().ok()?;
    let (wanted, seen) = (u64::from_le_bytes(reader.array()?), u64::from_le_bytes(reader.array()?));
    reader.end()?;
    let (cell, peer) = (cell.map(CellId), peer.map(Rank));
    Some(Fault { kind, rank, role, lane, instruction, cell, wanted, seen, peer, status })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_survives_its_record_and_text_is_none() {
        for kind in KINDS {
            let bare = Fault::new(kind, Rank(7));
            let full = Fault {
                role: Some(RoleName::ALL[1]),
                lane: Some(LaneId(3)),
                instruction: Some(u32::MAX),
                cell: Some(CellId(0)),
                wanted: u64::MAX,
                seen: 5,
                peer: Some(Rank(0)),
                status: Some(12),
                ..bare
            };
            for fault in [bare, full] {
                let record = encode(&fault);
                assert_eq!(decode(&record), Some(fault));
                assert_eq!(decode(&record[..record.len() - 1]), None);
            }
        }
        assert_eq!(decode(b"rank 0 cannot write"), None);
        assert_eq!(decode(b""), None);
    }
}
