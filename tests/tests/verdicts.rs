//! `validate` and the race detector judge the same programs, each in its own way: they must agree.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use mkernel_core::{Born, CellId, Executor, Op, Program, Verified, Violation, validate};
use mkernel_kernels::AgGemm;
use mkernel_sim::{Options, Seeded, find_races};
use mkernel_tests::ag_gemm::Case;

/// Calls `each` with every program that differs from the plan in one place, and what was changed.
fn mutants(programs: &[Program], mut each: impl FnMut(Vec<Program>, String)) {
    let mut change = |rank: usize, what: String, change: &dyn Fn(&mut Program)| {
        let mut mutant = programs.to_vec();
        change(&mut mutant[rank]);
        if mutant != programs {
            each(mutant, format!("rank {rank}: {what}"));
        }
    };
    for (rank, program) in programs.iter().enumerate() {
        for i in 0..program.waits.len() {
            change(rank, format!("wait {i} for the next cell"), &|p| {
                p.waits[i] = CellId((p.waits[i].0 + 1) % p.cells.len() as u32);
            });
        }
        for i in 0..program.segments.len() {
            change(rank, format!("segment {i} without its first wait"), &|p| {
                p.segments[i].waits.start += u32::from(!p.segments[i].waits.is_empty());
            });
            change(rank, format!("segment {i} without its last wait"), &|p| {
                p.segments[i].waits.end -= u32::from(!p.segments[i].waits.is_empty());
            });
        }
        for i in 0..program.signals.len() {
            let (cells, ranks) = (program.cells.len() as u32, programs.len() as u32);
            change(rank, format!("signal {i} to the next cell"), &|p| {
                p.signals[i].cell = CellId((p.signals[i].cell.0 + 1) % cells);
            });
            change(rank, format!("signal {i} to the next rank"), &|p| {
                p.signals[i].rank.0 = (p.signals[i].rank.0 + 1) % ranks;
            });
            change(rank, format!("signal {i} twice"), &|p| p.signals[i].amount += 1);
        }
        for i in 0..program.spans.len() {
            change(rank, format!("span {i} a row further"), &|p| p.spans[i].offset += p.spans[i].stride);
            change(rank, format!("span {i} a row back"), &|p| {
                p.spans[i].offset = p.spans[i].offset.saturating_sub(p.spans[i].stride);
            });
        }
        for i in 0..program.cells.len() {
            change(rank, format!("cell {i} born otherwise"), &|p| {
                // Without arrivals a cell is born the same either way; one that nobody waits for says nothing.
                if p.cells[i].arrivals > 0 && p.waits.contains(&CellId(i as u32)) {
                    p.cells[i].born = if p.cells[i].born == Born::Full { Born::Empty } else { Born::Full };
                }
            });
            change(rank, format!("cell {i} for one more"), &|p| p.cells[i].arrivals += 1);
        }
        for i in 0..program.puts.len() {
            change(rank, format!("put {i} a row further"), &|p| p.puts[i].target.offset += p.puts[i].target.stride);
            change(rank, format!("put {i} from a row further"), &|p| {
                p.puts[i].source.offset += p.puts[i].source.stride;
            });
            change(rank, format!("put {i} unretired"), &|p| p.puts[i].retired = None);
        }
        for (lane, l) in program.lanes.iter().enumerate() {
            for i in 0..l.instructions.len() {
                change(rank, format!("lane {lane} without instruction {i}"), &|p| {
                    p.lanes[lane].instructions.remove(i);
                });
                let is_release = l.instructions[i].op == Op::Release;
                change(rank, format!("lane {lane} instruction {i} releases nothing"), &|p| {
                    let writes = &mut p.lanes[lane].instructions[i].writes;
                    writes.end = if is_release { writes.start } else { writes.end };
                });
            }
        }
    }
}

/// Whether a violation is of a kind that the detector looks for. It knows nothing of shapes, bounds, reach and bytes over the
/// NIC, and lets waits be vacuous and sources be many where all accesses are ordered.
fn is_watched(violation: &Violation) -> bool {
    matches!(
        violation,
        Violation::Arrivals { .. }
            | Violation::Deadlock { .. }
            | Violation::NotWritten { .. }
            | Violation::Race { .. }
            | Violation::Overrun { .. }
    )
}

/// Whether two epochs of sound programs give the exact product.
fn is_exact(case: &Case, verified: Verified) -> bool {
    let verified = Arc::new(verified);
    let mut executor = Seeded::new(verified.clone(), Options::default()).unwrap();
    (0..2).all(|seed| {
        let inputs = case.inputs(seed);
        case.write(&mut executor, &verified, &inputs);
        executor.launch().unwrap_or_else(|fault| panic!("{case:?}: proved, and yet {fault}"));
        case.read(&executor, &verified) == case.oracle(&inputs)
    })
}

#[test]
fn validate_and_the_race_detector_agree_on_every_mutant_and_none_survives_unseen() {
    let (mut tried, mut refused, mut wrong, mut equivalent) = (0, 0, 0, 0);
    for (gpus, (m, n, k)) in [
        (&[1][..], (9, 7, 3)),
        (&[3], (13, 6, 2)),
        (&[1, 1, 1], (13, 6, 2)),
        (&[2, 2], (9, 8, 2)),
        (&[2, 1], (9, 5, 2)),
    ] {
        let case = Case::new(gpus, AgGemm { m, n, k, dtype: mkernel_core::DType::Bf16 });
        mutants(&case.plan(), |mutant, what| {
            tried += 1;
            let found = find_races(&mutant, 4);
            match validate(mutant) {
                Ok(verified) => {
                    assert_eq!(found, Ok(()), "{case:?}, {what}: only the race detector objects");
                    if is_exact(&case, verified) {
                        // Sound without it: the spans of a release only let executors poison them.
                        assert!(what.ends_with("releases nothing"), "{case:?}, {what}: survives");
                        equivalent += 1;
                    } else {
                        wrong += 1;
                    }
                }
                Err(violation) => {
                    refused += 1;
                    let agrees = found.is_err() || !is_watched(&violation);
                    assert!(agrees, "{case:?}, {what}: the race detector misses {violation}");
                }
            }
        });
    }
    println!("{tried} mutants: {refused} refused, {wrong} give a wrong product, {equivalent} are equivalent");
}
