use mkernel_core::{Addresses, Experts, LaneId, Mask, Op, Rank, RankAddresses, Span, Stage, World};

use super::layout::{EdgeScope, OpCode, SpanEntry, WaitEntry};
use super::*;
use crate::ring_attention::{Layout, RingAttention};
use crate::{AgGemm, GemmRs, MoeFfn, Operator, Partial, Profile, RoleCtas};

/// Rank r's region i lies at `(r + 1) << 40 | i << 32`, its cells at `(r + 1) << 40 | 0xff << 32`.
fn addresses(world: &World) -> Addresses {
    let mut table = Addresses::new(world.size());
    for rank in world.ranks() {
        let base = (u64::from(rank.0) + 1) << 40;
        table
            .set(rank, RankAddresses { regions: (0..200).map(|i| base | i << 32).collect(), cells: base | 0xff << 32 });
    }
    table
}

fn plan(op: &dyn Operator, world: &World) -> Vec<Program> {
    world.ranks().map(|r| op.plan(world, r, &Profile::HOST, &RoleCtas::default()).unwrap()).collect()
}

fn programs(world: &World) -> Vec<Program> {
    plan(&AgGemm { m: 300, n: 129, k: 65, dtype: DType::Bf16 }, world)
}

fn experts() -> MoeFfn {
    MoeFfn { tokens: 300, hidden: 40, inner: 24, experts: 5, topk: 2, dtype: DType::F16 }
}

fn attention() -> RingAttention {
    let (mask, layout) = (Mask::Causal, Layout::ZigZag);
    RingAttention { batch: 1, heads: 2, kv_heads: 1, seq: 300, dim: 24, mask, layout, dtype: DType::Bf16 }
}

/// Operators that between them use every operation.
fn operators() -> Vec<Box<dyn Operator>> {
    let sums = GemmRs { m: 40, n: 33, k: 20, dtype: DType::F32, partial: Partial::Narrow };
    let gathered = AgGemm { m: 300, n: 129, k: 65, dtype: DType::Bf16 };
    vec![Box::new(gathered), Box::new(sums), Box::new(experts()), Box::new(attention())]
}

fn span_of(entry: &SpanEntry) -> Span {
    Span {
        rank: Rank((entry.address >> 40) as u32 - 1),
        region: mkernel_core::RegionId((entry.address >> 32 & 0xff) as u32),
        offset: entry.address & 0xffff_ffff,
        rows: entry.rows,
        row_bytes: entry.row_bytes,
        stride: entry.stride,
    }
}

fn cell_of(address: u64) -> (Rank, CellId) {
    assert_eq!(address >> 32 & 0xff, 0xff, "a cell's address");
    (Rank((address >> 40) as u32 - 1), CellId((address & 0xffff_ffff) as u32 / 8))
}

/// What the operation says is in the entry.
fn reads_back(program: &Program, planned: &mkernel_core::Instruction, got: &InstructionEntry) {
    let element = |e: u32| Element::from_abi(e).unwrap();
    let typed = |input, output| {
        let name = |dtype| match dtype {
            DType::Bf16 => Element::Bf16,
            DType::F16 => Element::F16,
            _ => Element::F32,
        };
        assert_eq!((element(got.input), element(got.output)), (name(input), name(output)));
    };
    let experts = Experts { first: got.expert_first, end: got.expert_end };
    match (OpCode::from_abi(got.op).unwrap(), planned.op) {
        (OpCode::Copy, Op::Copy) | (OpCode::Release, Op::Release) => {}
        (OpCode::Put, Op::Put(put)) => {
            let count = program.put(put).count.map_or(0, |c| addresses(&program.world).span(&c).unwrap());
            assert_eq!((got.put, got.rows), (put.0, count));
        }
        (OpCode::Gemm, Op::Gemm { input, output }) => typed(input, output),
        (OpCode::Reduce, Op::Reduce { narrow, output }) => typed(narrow, output),
        (OpCode::Attention, Op::Attention { dtype, mask, query }) => {
            typed(dtype, dtype);
            assert_eq!((got.variant == MaskCode::Causal as u32, got.query), (mask == Mask::Causal, query));
        }
        (OpCode::Pack, Op::Pack { held, wanted }) => {
            let found = Experts { first: got.held_first, end: got.held_end };
            assert_eq!((experts, (got.variant == 1).then_some(found)), (wanted, held));
            let away = program.writes(planned)[0].rank != program.rank;
            assert_eq!(got.away == 1, away);
        }
        (OpCode::Route, Op::Route { experts: planned, tile }) => assert_eq!((experts, got.tile), (planned, tile)),
        (OpCode::Expert, Op::Expert { stage, input, output }) => {
            typed(input, output);
            let stages = [Stage::Up, Stage::Gated, Stage::Down];
            assert_eq!(stages[StageCode::from_abi(got.variant).unwrap() as usize], stage);
        }
        (OpCode::Combine, Op::Combine { tile }) => assert_eq!(got.tile, tile),
        (OpCode::Merge, Op::Merge { experts: planned, narrow, output }) => {
            typed(narrow, output);
            assert_eq!(experts, planned);
        }
        (found, planned) => panic!("{found:?} for {planned:?}"),
    }
}

/// Which spans of an instruction's pool to spoil: the first that any instruction of the name reads or writes.
fn first_of<'a>(program: &'a Program, name: &str) -> &'a mkernel_core::Instruction {
    program.instructions().map(|(_, _, i)| i).find(|i| i.op.name() == name).unwrap()
}

#[test]
fn spans_that_would_lead_the_device_outside_are_refused() {
    let world = World::uniform(2, 2).unwrap();
    for (op, names) in [
        (Box::new(experts()) as Box<dyn Operator>, &["pack", "route", "expert", "combine", "merge"][..]),
        (Box::new(attention()), &["attention"]),
        (Box::new(GemmRs { m: 40, n: 33, k: 20, dtype: DType::F32, partial: Partial::Narrow }), &["reduce", "gemm"]),
    ] {
        let program = plan(op.as_ref(), &world).remove(0);
        assert!(encode(&program, &addresses(&world), None).is_ok());
        for name in names {
            let mut narrow = program.clone();
            let first = first_of(&program, name).writes.start as usize;
            narrow.spans[first].row_bytes -= 4;
            let refused = encode(&narrow, &addresses(&world), None);
            assert!(matches!(refused, Err(EncodeError::Spans { op, .. }) if op == *name), "{name}: {refused:?}");
            let mut short = program.clone();
            let segment = &program.segments(first_of(&program, name))[0];
            short.spans[segment.reads.start as usize].rows += 1;
            let refused = encode(&short, &addresses(&world), None);
            assert!(matches!(refused, Err(EncodeError::Spans { .. })), "{name}: {refused:?}");
        }
    }
}

#[test]
fn a_head_longer_than_the_engines_hold_is_refused() {
    let world = World::uniform(1, 1).unwrap();
    let mut program = plan(&attention(), &world).remove(0);
    program.spans.iter_mut().for_each(|s| s.row_bytes = 264 * 2);
    let refused = encode(&program, &addresses(&world), None);
    assert!(matches!(refused, Err(EncodeError::Spans { op: "attention", .. })), "{refused:?}");
}

#[test]
fn every_field_of_every_instruction_reads_back_as_planned() {
    for world in [World::uniform(1, 1), World::uniform(2, 2), World::new(&[3, 1])].map(Result::unwrap) {
        for program in operators().iter().flat_map(|op| plan(op.as_ref(), &world)) {
            let image = encode(&program, &addresses(&world), None).unwrap();
            assert_eq!(image.instructions.len(), program.instructions().count());
            for (lane, index, planned) in program.instructions() {
                let entry = image.lanes[usize::from(lane.0)];
                assert!(index < entry.count);
                let got = &image.instructions[(entry.first + index) as usize];
                assert_eq!(got.op, OpCode::from_abi(got.op).unwrap() as u32);
                reads_back(&program, planned, got);
                let writes = &image.spans[got.writes as usize..][..got.write_count as usize];
                assert_eq!(writes.iter().map(span_of).collect::<Vec<_>>(), program.writes(planned));
                let signals = &image.signals[got.signals as usize..][..got.signal_count as usize];
                for (signal, planned) in signals.iter().zip(program.signals(planned)) {
                    assert_eq!(
                        (cell_of(signal.address), signal.amount),
                        ((planned.rank, planned.cell), planned.amount)
                    );
                }
                let segments = &image.segments[got.segments as usize..][..got.segment_count as usize];
                for (segment, planned) in segments.iter().zip(program.segments(planned)) {
                    let reads = &image.spans[segment.reads as usize..][..segment.read_count as usize];
                    assert_eq!(reads.iter().map(span_of).collect::<Vec<_>>(), program.reads(planned));
                    let waits = &image.waits[segment.waits as usize..][..segment.wait_count as usize];
                    let picked = &image.waits[segment.picked as usize..][..segment.picked_count as usize];
                    let cells = |waits: &[WaitEntry]| waits.iter().map(|w| cell_of(w.address)).collect::<Vec<_>>();
                    let own = |cells: &[CellId]| cells.iter().map(|&c| (program.rank, c)).collect::<Vec<_>>();
                    assert_eq!(cells(waits), own(program.waits(planned)));
                    assert_eq!(cells(picked), own(program.picked(planned)));
                    assert_eq!(segment.position, planned.position);
                    assert!(waits.iter().all(|w| w.arrivals == program.cell(CellId(w.cell)).arrivals));
                }
            }
        }
    }
}

#[test]
fn a_lane_goes_on_with_the_lane_that_was_planned() {
    let world = World::uniform(2, 2).unwrap();
    for program in programs(&world) {
        let image = encode(&program, &addresses(&world), None).unwrap();
        for (entry, lane) in image.lanes.iter().zip(&program.lanes) {
            let next = (entry.next != KernelShape::NO_LANE).then_some(LaneId(entry.next as u16));
            assert_eq!((next, role_of(entry)), (lane.next, Some(lane.role)));
        }
    }
}

#[test]
fn only_edges_between_ctas_of_one_rank_have_the_scope_of_the_gpu() {
    let world = World::uniform(2, 2).unwrap();
    let programs = programs(&world);
    for program in &programs {
        let image = encode(program, &addresses(&world), None).unwrap();
        for signal in &image.signals {
            let near = cell_of(signal.address).0 == program.rank;
            assert_eq!(signal.scope == EdgeScope::Gpu as u32, near);
        }
        // Who raises a cell: signals of any rank, puts of any rank, retirements of this rank's puts.
        let is_far = |wait: &WaitEntry| {
            let to = (program.rank, CellId(wait.cell));
            let from_peers = programs.iter().filter(|p| p.rank != program.rank);
            let mut raised = from_peers.flat_map(|p| &p.signals).any(|s| (s.rank, s.cell) == to);
            raised |= programs.iter().flat_map(|p| &p.puts).any(|p| (p.target.rank, p.cell) == to);
            raised | program.puts.iter().any(|p| p.retired == Some(to.1))
        };
        assert!(image.waits.iter().any(is_far) && !image.waits.iter().all(is_far));
        for wait in &image.waits {
            assert_eq!(wait.scope == EdgeScope::System as u32, is_far(wait), "cell {} of {}", wait.cell, program.rank);
        }
    }
}

#[test]
fn memory_that_is_not_mapped_is_refused() {
    let world = World::uniform(1, 2).unwrap();
    let program = programs(&world).remove(0);
    let mut table = Addresses::new(2);
    table.set(Rank(0), RankAddresses { regions: vec![0; 3], cells: 0 });
    assert_eq!(encode(&program, &table, None), Err(EncodeError::Unmapped { program: Rank(0), rank: Rank(1) }));
}

#[test]
fn a_product_whose_sides_do_not_fit_is_refused() {
    let world = World::uniform(1, 1).unwrap();
    let mut program = programs(&world).remove(0);
    program.spans[1].rows -= 1;
    assert!(matches!(encode(&program, &addresses(&world), None), Err(EncodeError::Spans { op: "gemm", .. })));
}

#[test]
fn a_put_of_counted_rows_says_where_the_count_is() {
    let world = World::uniform(2, 1).unwrap();
    let mut program = programs(&world).remove(0);
    let count = Span::flat(Rank(0), mkernel_core::RegionId(2), 16, 8);
    program.puts[0].count = Some(count);
    let image = encode(&program, &addresses(&world), None).unwrap();
    let rows: Vec<_> =
        image.instructions.iter().filter(|i| i.op == OpCode::Put as u32).map(|i| (i.put, i.rows)).collect();
    assert!(rows.len() > 1);
    assert!(rows.iter().all(|&(put, rows)| rows == if put == 0 { (1 << 40) | (2 << 32) | 16 } else { 0 }), "{rows:x?}");
}
