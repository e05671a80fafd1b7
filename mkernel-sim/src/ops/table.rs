//! Tables of u32 and i32 words, and rows of floats, in host memory.

use mkernel_core::{DType, Span};

use super::{Task, float};

/// All words of a span.
pub(super) fn words(task: &Task<'_>, span: &Span) -> Vec<u32> {
    let mut bytes = vec![0; span.bytes() as usize];
    task.host.memory.gather(span, &mut bytes);
    bytes.as_chunks::<4>().0.iter().map(|raw| u32::from_le_bytes(*raw)).collect()
}

/// All words of a span of chosen experts.
pub(super) fn ids(task: &Task<'_>, span: &Span) -> Vec<i32> {
    words(task, span).into_iter().map(u32::cast_signed).collect()
}

/// Writes words over the first bytes of a span, row after row.
pub(super) fn put_words(task: &Task<'_>, span: &Span, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let rows = bytes.chunks(span.row_bytes.max(1) as usize);
    rows.enumerate().for_each(|(row, bytes)| task.store(span, row as u32, bytes));
}

/// Writes the number of rows that were packed, if it is asked for.
pub(super) fn put_count(task: &Task<'_>, rows: u32) {
    if let Some(span) = task.writes.get(1) {
        task.store(span, 0, &u64::from(rows).to_le_bytes());
    }
}

/// Buffers that turn rows in memory into f32 and back.
#[derive(Debug, Default)]
pub(super) struct Rows {
    bytes: Vec<u8>,
    bits: Vec<u16>,
}

impl Rows {
    /// The bytes of one row.
    pub(super) fn raw(&mut self, task: &Task<'_>, span: &Span, row: u32) -> &[u8] {
        self.bytes.resize(span.row_bytes as usize, 0);
        task.host.memory.load(span, row, 0, &mut self.bytes);
        &self.bytes
    }

    /// One row as f32.
    pub(super) fn load(&mut self, task: &Task<'_>, dtype: DType, span: &Span, row: u32, out: &mut [f32]) {
        self.raw(task, span, row);
        float::widen(dtype, &self.bytes, &mut self.bits, out);
    }

    /// Rounds values once to `dtype` and writes them as one row.
    pub(super) fn store(&mut self, task: &Task<'_>, dtype: DType, span: &Span, row: u32, values: &[f32]) {
        float::narrow(dtype, values, &mut self.bits, &mut self.bytes);
        task.store(span, row, &self.bytes);
    }
}
