//! Expert: a tile of one expert's products, of as many rows as data says.
//!
//! As in a plain product, the sum is taken in blocks along K, each in an order that depends on its shape alone.

use mkernel_core::routing::Tile;
use mkernel_core::{DType, Op, Span, Stage};

use super::table::{Rows, words};
use super::{Kernel, Task, Unplanned};
use crate::sgemm::add_product;

/// Length of a block along K.
const BLOCK: usize = 256;

/// The tile in progress.
#[derive(Debug, Default)]
pub(super) struct Expert {
    rows: Rows,
    /// Rows of A, dense.
    a: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
}

fn parts(op: &Op) -> (Stage, DType, DType) {
    match *op {
        Op::Expert { stage, input, output } => (stage, input, output),
        _ => panic!("the expert kernel is only looked up for expert"),
    }
}

/// The entry of the tile's slot, if all that it says of the instruction's spans is within them.
fn entry(task: &Task<'_>, reads: &[Span]) -> Result<Tile, Unplanned> {
    let (stage, input, _) = parts(task.op);
    let words = words(task, &reads[0]).try_into();
    let tile = Tile::of(words.expect("validate proved the length of an entry"));
    let (listed, rows) = match stage {
        Stage::Down => (reads[1].rows.into(), &reads[1]),
        Stage::Up | Stage::Gated => (reads[1].bytes() / 4, &reads[2]),
    };
    let first = if stage == Stage::Down { 0 } else { u64::from(tile.first) };
    let experts = reads[reads.len() - 1].rows / (rows.row_bytes / input.bytes()) as u32;
    let is_planned = tile.rows <= task.writes[0].rows && first + u64::from(tile.rows) <= listed;
    if tile.rows == 0 || (is_planned && tile.expert < experts) { Ok(tile) } else { Err(Unplanned) }
}

impl Expert {
    /// Gathers the rows of A.
    fn gather(&mut self, task: &Task<'_>, tile: &Tile, reads: &[Span], depth: usize) -> Result<(), Unplanned> {
        let (stage, input, _) = parts(task.op);
        self.a.resize(tile.rows as usize * depth, 0.0);
        let (list, source) = match stage {
            Stage::Up | Stage::Gated => (words(task, &part(&reads[1], tile)), &reads[2]),
            Stage::Down => ((0..tile.rows).collect(), &reads[1]),
        };
        if list.iter().any(|&row| row >= source.rows) {
            return Err(Unplanned);
        }
        for (row, out) in list.into_iter().zip(self.a.chunks_exact_mut(depth)) {
            self.rows.load(task, input, source, row, out);
        }
        Ok(())
    }

    /// The product with the expert's rows of `weights`.
    fn product(&mut self, task: &Task<'_>, tile: &Tile, weights: &Span, depth: usize) -> Vec<f32> {
        let input = parts(task.op).1;
        let (m, n) = (tile.rows as usize, (weights.row_bytes / input.bytes()) as usize);
        let mut sum = vec![0.0; m * n];
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for start in (0..depth).step_by(BLOCK) {
            let end = (start + BLOCK).min(depth);
            a.clear();
            self.a.chunks_exact(depth).for_each(|row| a.extend_from_slice(&row[start..end]));
            b.resize((end - start) * n, 0.0);
            for (k, out) in (start..end).zip(b.chunks_exact_mut(n.max(1))) {
                let row = tile.expert * depth as u32 + k as u32;
                self.rows.load(task, input, weights, row, out);
            }
            add_product((m, n, end - start), &a, &b, &mut sum);
        }
        sum
    }
}

/// The part of a list of words that belongs to a tile.
fn part(list: &Span, tile: &Tile) -> Span {
    Span::flat(list.rank, list.region, list.offset + 4 * u64::from(tile.first), 4 * u64::from(tile.rows))
}

impl Kernel for Expert {
    fn begin(&mut self, _: &Task<'_>) {
        self.first.clear();
        self.second.clear();
    }

    fn picks(&mut self, task: &Task<'_>, _: usize, reads: &[Span], count: usize) -> Result<Vec<usize>, Unplanned> {
        let Tile { rows, landings, .. } = entry(task, reads)?;
        match (parts(task.op).0, landings.start as usize, landings.end as usize) {
            // Nothing that it reads is chosen by data.
            (Stage::Down, ..) => Ok((0..count).collect()),
            _ if rows == 0 => Ok(Vec::new()),
            (_, start, end) if start <= end && end <= count => Ok((start..end).collect()),
            _ => Err(Unplanned),
        }
    }

    fn segment(&mut self, task: &Task<'_>, _: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let (stage, input, _) = parts(task.op);
        let tile = entry(task, reads)?;
        if tile.rows == 0 {
            return Ok(());
        }
        let rows = if stage == Stage::Down { &reads[1] } else { &reads[2] };
        let depth = (rows.row_bytes / input.bytes()) as usize;
        self.gather(task, &tile, reads, depth)?;
        match (stage, reads) {
            (Stage::Gated, [.., gate, up]) => {
                self.first = self.product(task, &tile, gate, depth);
                self.second = self.product(task, &tile, up, depth);
                self.first.iter_mut().zip(&self.second).for_each(|(g, u)| *g = silu(*g) * u);
            }
            (_, [.., weights]) => self.first = self.product(task, &tile, weights, depth),
            _ => panic!("validate proved the number of spans"),
        }
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let (output, target) = (parts(task.op).2, &task.writes[0]);
        let columns = (target.row_bytes / output.bytes()).max(1) as usize;
        for (row, values) in self.first.chunks_exact(columns).enumerate() {
            self.rows.store(task, output, target, row as u32, values);
        }
    }
}

fn silu(g: f32) -> f32 {
    g / (1.0 + (-g).exp())
}
