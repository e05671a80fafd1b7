//! Cells across epochs: a full count means what it says, and no cell falls.
//!
//! Contributions for the next epoch come after every wait of this one, and after the put that fills the cell in this one:
//! a put sets a value, and two of them the wrong way round would let the cell fall.

use std::collections::HashMap;
use std::ops::Range;

use super::cells::{Event, segment_event, transfer_event};
use super::claims::{Claims, Subject};
use super::graph::Graph;
use crate::program::{Program, Slice};
use crate::signal::{Born, CellId};

/// The sets of events that wait for each cell of a program.
struct Waiters {
    /// By cell: the segments that certainly wait for it.
    certain: Vec<Vec<Event>>,
    /// Each list that data picks from, with those that share it.
    picked: HashMap<Slice, Vec<Event>>,
}

/// Claims the order of all contributions to the cells of a program.
pub(super) fn claim(graph: &Graph<'_>, index: u32, claims: &mut Claims) {
    let program = &graph.programs[index as usize];
    let Waiters { certain, picked } = waiters(program, index);
    let mut sets: Vec<Vec<Range<u32>>> = vec![Vec::new(); program.cells.len()];
    for (sets, waiters) in sets.iter_mut().zip(certain).filter(|(_, waiters)| !waiters.is_empty()) {
        sets.push(claims.set(waiters));
    }
    let mut picked: Vec<_> = picked.into_iter().collect();
    picked.sort_by_key(|(list, _)| (list.start, list.end));
    for (list, waiters) in picked {
        let set = claims.set(waiters);
        for cell in &program.waits[list.start as usize..list.end as usize] {
            sets[cell.0 as usize].push(set.clone());
        }
    }
    for (cell, sets) in (0..).map(CellId).zip(sets) {
        let raisers = graph.contributions.events(graph.contributions.flat(index, cell));
        // A put goes to another rank, so it is alone in its cell; what else other ranks raise are additions.
        let puts = raisers
            .iter()
            .copied()
            .filter(|e| e.program != index && e.local >= transfer_event(&graph.programs[e.program as usize], 0));
        for put in puts {
            let set = claims.set([put]);
            claims.push_each(&set, [put], 1, Subject::Cell(cell));
        }
        // A credit is filled in an epoch for the wait of the next one.
        let gap = i32::from(program.cell(cell).born == Born::Empty);
        for set in sets {
            let first = claims.events(&set)[0];
            let open: Vec<Event> = raisers.iter().copied().filter(|&r| !graph.is_obvious(first, r, gap)).collect();
            claims.push_each(&set, open, gap, Subject::Cell(cell));
        }
    }
}

fn waiters(program: &Program, index: u32) -> Waiters {
    let mut waiters = Waiters { certain: vec![Vec::new(); program.cells.len()], picked: HashMap::new() };
    for (number, segment) in (0..).zip(&program.segments) {
        let event = Event { program: index, local: segment_event(number) };
        for cell in program.waits(segment) {
            waiters.certain[cell.0 as usize].push(event);
        }
        if !segment.picked.is_empty() {
            waiters.picked.entry(segment.picked.clone()).or_default().push(event);
        }
    }
    waiters
}
