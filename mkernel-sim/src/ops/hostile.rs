//! Operations that trust an index, on memory that somebody has overwritten.
//!
//! The program is a layer of one rank with two experts, written by hand; it uses its index only once a second rank says so.

use std::sync::Arc;

use mkernel_core::builder::Step;
use mkernel_core::routing::{Experts, NOWHERE, Tile};
use mkernel_core::{
    Born, CellId, DType, LaneBuilder, Op, Placement, Program, ProgramBuilder, Rank, RegionId, Role, RoleName, Signal,
    Span, Stage, World, validate,
};

use super::{Kernels, Task, Unplanned};
use crate::host::Host;
use crate::memory::Memory;

const TOKENS: u64 = 4;
const SLOTS: u64 = 4;
const TILE: u32 = 2;
const INDEX: RegionId = RegionId(1);
/// Words of the index: entries, rows of pairs, places.
const WORDS: u64 = SLOTS * Tile::WORDS as u64 + 8 + 8;

fn rows(region: u32, first: u64, rows: u64, words: u64) -> Span {
    let row_bytes = 4 * words;
    Span { rank: Rank(0), region: RegionId(region), offset: 4 * first, rows: rows as u32, row_bytes, stride: row_bytes }
}

/// Raised once the index is there.
pub(crate) const ROUTED: CellId = CellId(0);
/// Raised by the other rank.
pub(crate) const GATE: CellId = CellId(10);

/// Rows of two floats: an index, first and last products of every slot, one combine.
struct Layer;

/// Lets the first rank use its index.
struct Gate;

impl Role for Gate {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let open = Signal { rank: Rank(0), cell: GATE, amount: 1 };
        lane.push(Op::Release, Step::new(&[CellId(0)], &[]), &[], &[open]);
    }
}

impl Role for Layer {
    fn name(&self) -> RoleName {
        RoleName::Compute
    }

    fn fill(&self, lane: &mut LaneBuilder<'_>) {
        let raise = |cell| Signal { rank: Rank(0), cell: CellId(cell), amount: 1 };
        let experts = Experts { first: 0, end: 2 };
        let (table, x, weights) = (rows(0, 0, TOKENS, 2), rows(2, 0, TOKENS, 2), rows(3, 0, 4, 2));
        let entries = rows(1, 0, SLOTS, Tile::WORDS as u64);
        let (list, places) = (rows(1, SLOTS * Tile::WORDS as u64, 1, 8), rows(1, WORDS - 8, TOKENS, 2));
        let route = Op::Route { experts, tile: TILE };
        lane.push(route, Step::new(&[], &[table]), &[entries, list, places], &[raise(0)]);
        for slot in 0..SLOTS {
            let (entry, at) = (rows(1, slot * Tile::WORDS as u64, 1, Tile::WORDS as u64), slot * 4);
            let (inner, result) = (rows(4, at, TILE.into(), 2), rows(5, at, TILE.into(), 2));
            let gated = Op::Expert { stage: Stage::Gated, input: DType::F32, output: DType::F32 };
            let reads = [entry, list, x, weights, weights];
            lane.push(gated, Step::new(&[ROUTED, GATE], &reads), &[inner], &[raise(1 + slot as u32)]);
            let down = Op::Expert { stage: Stage::Down, input: DType::F32, output: DType::F32 };
            let (waits, reads) = ([ROUTED, CellId(1 + slot as u32)], [entry, inner, weights]);
            lane.push(down, Step::new(&waits, &reads), &[result], &[raise(5 + slot as u32)]);
        }
        let results: Vec<CellId> = (5..9).map(CellId).collect();
        // The gate may open for the next epoch.
        let credit = Signal { rank: Rank(1), cell: CellId(0), amount: 1 };
        lane.push(Op::Release, Step::new(&results, &[]), &[], &[credit]);
        let results = lane.shared_waits(&results);
        let reads = [places, rows(6, 0, TOKENS, 2), rows(5, 0, SLOTS * u64::from(TILE), 2)];
        let step = Step::new(&[ROUTED], &reads).picking(&results);
        lane.push(Op::Combine { tile: TILE }, step, &[rows(7, 0, TOKENS, 2)], &[raise(9)]);
    }
}

/// The programs of both ranks.
pub(crate) fn programs() -> Vec<Program> {
    let world = World::new(&[2]).expect("two ranks are a world");
    let mut gate = ProgramBuilder::new(&world, Rank(1));
    gate.cell(1, Born::Full);
    gate.lane(&Gate, 1);
    let mut builder = ProgramBuilder::new(&world, Rank(0));
    for (name, words) in
        [("table", 8), ("index", WORDS), ("x", 8), ("w", 8), ("inner", 16), ("results", 16), ("f", 8), ("y", 8)]
    {
        builder.region(name, 4 * words);
    }
    for _ in 0..11 {
        builder.cell(1, Born::Empty);
    }
    for (tensor, region) in [("table", 0), ("x", 2), ("w", 3), ("f", 6)] {
        builder.input(Placement { tensor, span: rows(region, 0, 4, 2), row: 0, column: 0 });
    }
    builder.lane(&Layer, 1);
    vec![builder.finish(), gate.finish()]
}

/// Writes zeros to everything that instructions read, but for the index.
pub(crate) fn clear(memory: &Memory) {
    for span in [0, 2, 3, 4, 5, 6].map(|region| rows(region, 0, if region == 4 || region == 5 { 8 } else { 4 }, 2)) {
        memory.scatter(&span, &vec![0; span.bytes() as usize]);
    }
}

/// Makes all numbers of the index too large.
pub(crate) fn spoil(memory: &Memory) {
    memory.scatter(&Span { region: INDEX, ..rows(1, 0, 1, WORDS) }, &[0x11; 4 * WORDS as usize]);
}

/// A number that a table may hold, or nearly, or nothing like it.
fn number(random: &mut fastrand::Rng) -> u32 {
    match random.u8(0..8) {
        0 => NOWHERE,
        1 => random.u32(..),
        2 => random.u32(0..20),
        _ => random.u32(0..4),
    }
}

#[test]
fn any_index_is_carried_out_or_refused_and_nothing_is_read_beyond_the_plan() {
    let verified = Arc::new(validate(programs()).expect("the programs are sound"));
    let host = Host::new(verified.clone(), 0, true).expect("it is small");
    let (program, mut random) = (&verified.programs()[0], fastrand::Rng::with_seed(7));
    clear(&host.memory);
    let (mut carried_out, mut refused) = (0, 0);
    let mut kernels = Kernels::default();
    for _ in 0..5000 {
        let words: Vec<u8> = (0..WORDS).flat_map(|_| number(&mut random).to_le_bytes()).collect();
        host.memory.scatter(&Span { region: INDEX, ..rows(1, 0, 1, WORDS) }, &words);
        for i in program.lanes[0].instructions.iter().skip(1) {
            let task = Task::new(&host, program, i);
            let picked = kernels.picks(&task, program, 0);
            let kernel = kernels.of(&i.op).expect("no put among them");
            kernel.begin(&task);
            match kernel.segment(&task, 0, program.reads(&task.segments[0])).and(picked.map(drop)) {
                Ok(()) => {
                    kernel.finish(&task);
                    carried_out += 1;
                }
                Err(Unplanned) => refused += 1,
            }
        }
    }
    println!("{carried_out} carried out, {refused} refused");
    assert!(carried_out > 1000 && refused > 1000);
}
