//! What is read as an index, a count or the rows of a tile must be written there in that form.
#![allow(clippy::unwrap_used)]

use mkernel::{DType, MoeDispatchGemm, MoeFfn};
use mkernel_core::{Instruction, Op, Program, Span, Stage, Violation, validate};
use mkernel_tests::mutate::{Change, Mutation, apply_all};
use mkernel_tests::original::Original;

fn layer(gpus: &[u32]) -> Vec<Program> {
    let ffn = MoeFfn { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype: DType::F32 };
    Original::new(ffn, gpus).programs().to_vec()
}

/// The instructions of a program that `is` picks.
fn find(program: &Program, is: impl Fn(&Op) -> bool) -> Vec<Instruction> {
    program.instructions().map(|(_, _, i)| i.clone()).filter(|i| is(&i.op)).collect()
}

fn is_down(op: &Op) -> bool {
    matches!(op, Op::Expert { stage: Stage::Down, .. })
}

fn is_gated(op: &Op) -> bool {
    matches!(op, Op::Expert { stage: Stage::Gated, .. })
}

/// What `validate` says once these reads of an instruction of program 0 are others.
fn with_reads(programs: &[Program], i: &Instruction, reads: &[(usize, Span)]) -> Violation {
    let changes = reads.iter().map(|&(at, span)| Change::Read(i.segments.start, at, Some(span)));
    broken(programs, changes.collect())
}

fn broken(programs: &[Program], changes: Vec<Change>) -> Violation {
    let changes: Vec<_> =
        changes.into_iter().map(|change| Mutation { program: 0, change, is_balanced: false }).collect();
    validate(apply_all(&changes, programs).unwrap()).unwrap_err()
}

fn reads(programs: &[Program], i: &Instruction) -> Vec<Span> {
    programs[0].reads(&programs[0].segments[i.segments.start as usize]).to_vec()
}

#[test]
fn the_last_product_of_a_tile_reads_the_first_ones_of_the_same_tile() {
    let programs = layer(&[1]);
    let down = find(&programs[0], is_down);
    let (tile, other) = (reads(&programs, &down[0]), reads(&programs, down.last().unwrap()));
    assert_ne!(tile[0], other[0]);
    let violation = with_reads(&programs, &down[0], &[(0, other[0])]);
    assert!(matches!(violation, Violation::Form { span, .. } if span == tile[1]), "{violation}");
}

#[test]
fn an_entry_is_one_row_of_the_tiles_and_a_list_is_the_whole_list() {
    let programs = layer(&[1]);
    let gated = &find(&programs[0], is_gated)[0];
    let read = reads(&programs, gated);
    let shifted = Span { offset: read[0].offset + 4, ..read[0] };
    let short = Span { row_bytes: read[1].row_bytes - 4, stride: read[1].row_bytes - 4, ..read[1] };
    for (at, span) in [(0, shifted), (1, short)] {
        let violation = with_reads(&programs, gated, &[(at, span)]);
        assert!(matches!(violation, Violation::Form { span: found, .. } if found == span), "{violation}");
    }
}

#[test]
fn places_are_whole_rows_of_the_places() {
    let programs = layer(&[1]);
    let combine = &find(&programs[0], |op| matches!(op, Op::Combine { .. }))[0];
    let places = reads(&programs, combine)[0];
    let into_the_list = Span { offset: places.offset - 4, ..places };
    let violation = with_reads(&programs, combine, &[(0, into_the_list)]);
    assert!(matches!(violation, Violation::Form { span, .. } if span == into_the_list), "{violation}");
}

#[test]
fn a_rank_multiplies_with_the_weights_of_all_its_experts() {
    let programs = layer(&[1]);
    let gated = &find(&programs[0], is_gated)[0];
    let weights = reads(&programs, gated)[3];
    let fewer = Span { rows: weights.rows - 4, ..weights };
    let violation = with_reads(&programs, gated, &[(3, fewer)]);
    assert!(matches!(violation, Violation::Form { span, .. } if span == fewer), "{violation}");
}

/// Both waits are there, so order holds if all are waited for; but data picks one of them, and then it does not.
#[test]
fn a_picked_wait_stands_for_its_own_part() {
    let programs = layer(&[3]);
    for is in [is_gated, |op: &Op| matches!(op, Op::Combine { .. })] {
        let picking = &find(&programs[0], is)[0];
        let violation = broken(&programs, vec![Change::SwapPicked(picking.segments.start, 0)]);
        assert!(matches!(violation, Violation::Pick { .. }), "{violation}");
    }
}

#[test]
fn a_count_belongs_to_the_rows_that_its_put_carries() {
    let programs = layer(&[1, 1]);
    let table = programs[0].inputs[0].span;
    let anything = Span::flat(table.rank, table.region, table.offset, 8);
    let violation = broken(&programs, vec![Change::Count(0, anything)]);
    assert!(matches!(violation, Violation::Form { span, .. } if span == anything), "{violation}");
}

#[test]
fn a_table_has_rows_of_one_length() {
    let programs = layer(&[1, 1]);
    let pack = &find(&programs[0], |op| matches!(op, Op::Pack { .. }))[0];
    let table = reads(&programs, pack)[1];
    let wide = Span { row_bytes: table.row_bytes + 4, stride: table.row_bytes + 4, ..table };
    let violation = with_reads(&programs, pack, &[(1, wide)]);
    assert!(matches!(violation, Violation::Form { span, .. } if span.offset == table.offset), "{violation}");
}

#[test]
fn rows_that_data_places_are_those_of_the_tiles() {
    let gemm = MoeDispatchGemm { tokens: 9, hidden: 4, inner: 3, experts: 5, topk: 2, dtype: DType::F32 };
    let programs = Original::new(gemm, &[2]).programs().to_vec();
    let routed = programs[0].routed[0];
    let fewer = Span { rows: routed.span.rows - 1, ..routed.span };
    let violation = broken(&programs, vec![Change::Routed(0, Some(fewer), None)]);
    assert!(matches!(violation, Violation::Form { span, .. } if span == fewer), "{violation}");
}
