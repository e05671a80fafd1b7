use mkernel_core::{Addresses, LaneId, Op, Rank, RankAddresses, Span, World};

use super::layout::{EdgeScope, OpCode, SpanEntry, WaitEntry};
use super::*;
use crate::{AgGemm, Operator, Profile, RoleCtas};

/// Rank r's region i lies at `(r + 1) << 40 | i << 32`, its cells at `(r + 1) << 40 | 0xff << 32`.
fn addresses(world: &World) -> Addresses {
    let mut table = Addresses::new(world.size());
    for rank in world.ranks() {
        let base = (u64::from(rank.0) + 1) << 40;
        table.set(rank, RankAddresses { regions: (0..3).map(|i| base | i << 32).collect(), cells: base | 0xff << 32 });
    }
    table
}

fn programs(world: &World) -> Vec<Program> {
    let op = AgGemm { m: 300, n: 129, k: 65, dtype: DType::Bf16 };
    world.ranks().map(|r| op.plan(world, r, &Profile::HOST, &RoleCtas::default()).unwrap()).collect()
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

#[test]
fn every_field_of_every_instruction_reads_back_as_planned() {
    for world in [World::uniform(1, 1), World::uniform(2, 2), World::new(&[3, 1])].map(Result::unwrap) {
        for program in programs(&world) {
            let image = encode(&program, &addresses(&world), None).unwrap();
            assert_eq!(image.instructions.len(), program.instructions().count());
            for (lane, index, planned) in program.instructions() {
                let entry = image.lanes[usize::from(lane.0)];
                assert!(index < entry.count);
                let got = &image.instructions[(entry.first + index) as usize];
                assert_eq!(got.op, OpCode::from_abi(got.op).unwrap() as u32);
                let put = if let Op::Put(put) = planned.op { put.0 } else { 0 };
                assert_eq!((got.put, got.rows), (put, 0), "puts of ag-gemm carry all of their rows");
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
                    let cells: Vec<_> = waits.iter().map(|w| cell_of(w.address)).collect();
                    let planned: Vec<_> = program.waits(planned).iter().map(|&c| (program.rank, c)).collect();
                    assert_eq!(cells, planned);
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
