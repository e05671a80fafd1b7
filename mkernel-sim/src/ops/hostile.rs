//! Operations that trust an index, on memory that somebody has overwritten.

use std::sync::Arc;

use mkernel_core::builder::Step;
use mkernel_core::routing::{Experts, NOWHERE, Tile};
use mkernel_core::{
    Born, CellId, DType, LaneBuilder, Op, Placement, Program, ProgramBuilder, Rank, RegionId, Role, RoleName, Signal,
    Span, Stage, World, validate,
};

use super::{Kernels, Task, Unplanned};
use crate::host::Host;

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

/// One rank with two experts and rows of two floats: an index, first and last products of every slot, one combine.
struct Layer;

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
            lane.push(gated, Step::new(&[CellId(0)], &reads), &[inner], &[raise(1 + slot as u32)]);
            let down = Op::Expert { stage: Stage::Down, input: DType::F32, output: DType::F32 };
            let (waits, reads) = ([CellId(0), CellId(1 + slot as u32)], [entry, inner, weights]);
            lane.push(down, Step::new(&waits, &reads), &[result], &[raise(5 + slot as u32)]);
        }
        let results: Vec<CellId> = (5..9).map(CellId).collect();
        let results = lane.shared_waits(&results);
        let reads = [places, rows(6, 0, TOKENS, 2), rows(5, 0, SLOTS * u64::from(TILE), 2)];
        let step = Step::new(&[CellId(0)], &reads).picking(&results);
        lane.push(Op::Combine { tile: TILE }, step, &[rows(7, 0, TOKENS, 2)], &[raise(9)]);
    }
}

fn program() -> Program {
    let mut builder = ProgramBuilder::new(&World::new(&[1]).expect("one rank is a world"), Rank(0));
    for (name, words) in
        [("table", 8), ("index", WORDS), ("x", 8), ("w", 8), ("inner", 16), ("results", 16), ("f", 8), ("y", 8)]
    {
        builder.region(name, 4 * words);
    }
    for _ in 0..10 {
        builder.cell(1, Born::Empty);
    }
    for (tensor, region) in [("table", 0), ("x", 2), ("w", 3), ("f", 6)] {
        builder.input(Placement { tensor, span: rows(region, 0, 4, 2), row: 0, column: 0 });
    }
    builder.lane(&Layer, 1);
    builder.finish()
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
    let verified = Arc::new(validate(vec![program()]).expect("the program is sound"));
    let host = Host::new(verified.clone(), 0, true).expect("it is small");
    let (program, mut random) = (&verified.programs()[0], fastrand::Rng::with_seed(7));
    for span in [rows(2, 0, 4, 2), rows(3, 0, 4, 2), rows(4, 0, 8, 2), rows(5, 0, 8, 2), rows(6, 0, 4, 2)] {
        host.memory.scatter(&span, &vec![0; span.bytes() as usize]);
    }
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
