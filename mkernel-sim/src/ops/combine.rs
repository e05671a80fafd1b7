//! Combine: the weighted sum of a rank's results, token by token.

use mkernel_core::routing::NOWHERE;
use mkernel_core::{DType, Op, Span};

use super::table::{Rows, words};
use super::{Kernel, Task, Unplanned};

/// The sums, packed.
#[derive(Debug, Default)]
pub(super) struct Combine {
    sums: Vec<f32>,
    values: Vec<f32>,
    rows: Rows,
}

impl Kernel for Combine {
    fn begin(&mut self, _: &Task<'_>) {
        self.sums.clear();
    }

    fn picks(&mut self, task: &Task<'_>, _: usize, reads: &[Span], count: usize) -> Result<Vec<usize>, Unplanned> {
        let Op::Combine { tile } = *task.op else { panic!("the combine kernel is only looked up for combine") };
        let places = words(task, &reads[0]).into_iter().filter(|&place| place != NOWHERE);
        let mut slots: Vec<usize> = places.map(|place| (place / tile) as usize).collect();
        slots.sort_unstable();
        slots.dedup();
        if slots.last().is_some_and(|&last| last >= count) { Err(Unplanned) } else { Ok(slots) }
    }

    fn segment(&mut self, task: &Task<'_>, _: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let [places, weights, results] = reads else { panic!("validate proved the number of spans") };
        let columns = (results.row_bytes / DType::F32.bytes()) as usize;
        let topk = (places.row_bytes / 4).max(1) as usize;
        let (places, weights) = (words(task, places), words(task, weights));
        if places.iter().any(|&place| place != NOWHERE && place >= results.rows) {
            return Err(Unplanned);
        }
        self.values.resize(columns, 0.0);
        for (places, weights) in places.chunks_exact(topk).zip(weights.chunks_exact(topk)) {
            let mut terms = places.iter().zip(weights).filter(|(place, _)| **place != NOWHERE).peekable();
            if terms.peek().is_none() {
                continue;
            }
            let start = self.sums.len();
            self.sums.resize(start + columns, 0.0);
            for (&place, &weight) in terms {
                let weight = f32::from_bits(weight);
                self.rows.load(task, DType::F32, results, place, &mut self.values);
                self.sums[start..].iter_mut().zip(&self.values).for_each(|(s, v)| *s += weight * v);
            }
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let target = &task.writes[0];
        let columns = (target.row_bytes / DType::F32.bytes()).max(1) as usize;
        for (row, values) in self.sums.chunks_exact(columns).enumerate() {
            self.rows.store(task, DType::F32, target, row as u32, values);
        }
    }
}
