//! Matrices as the copy engine sees them.

use std::cmp::Ordering;
use std::collections::HashMap;

use mkernel_core::Span;

use super::super::layout::Element;

/// What the driver is to make a tensor map of; boxes have 128 bytes in a row and are swizzled by 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// The type of the elements.
    pub element: Element,
    /// Elements of a row.
    pub columns: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes from one row's start to the next, a multiple of 16.
    pub pitch: u64,
    /// Rows of a box.
    pub box_rows: u32,
}

/// A span as a part of a matrix: whole rows of it from `row` on, or a rectangle.
pub(super) struct Part {
    /// Address of the matrix.
    pub(super) base: u64,
    pub(super) pitch: u64,
    pub(super) row: u64,
    pub(super) column_bytes: u64,
}

/// Where a span lies in the matrix of its pitch that starts with its region, or at the span's phase in it where its rows
/// follow each other without a gap.
pub(super) fn part(span: &Span, address: u64) -> Option<Part> {
    let region = address - span.offset;
    if span.rows <= 1 {
        return Some(Part { base: address, pitch: span.row_bytes.next_multiple_of(16), row: 0, column_bytes: 0 });
    }
    if span.stride == 0 {
        return None;
    }
    let (row, phase) = (span.offset / span.stride, span.offset % span.stride);
    match span.row_bytes.cmp(&span.stride) {
        Ordering::Equal => Some(Part { base: region + phase, pitch: span.stride, row, column_bytes: 0 }),
        Ordering::Less if phase + span.row_bytes <= span.stride => {
            Some(Part { base: region, pitch: span.stride, row, column_bytes: phase })
        }
        _ => None,
    }
}

/// Whether a span can be read or written by the copy engine, its first byte aligned.
pub(super) fn is_aligned(span: &Span, address: u64) -> bool {
    let Some(part) = part(span, address) else { return false };
    let limits = part.row + u64::from(span.rows) <= i32::MAX as u64 && part.pitch <= i32::MAX as u64;
    part.base.is_multiple_of(16) && part.pitch.is_multiple_of(16) && address.is_multiple_of(16) && limits
}

/// Collects maps, one for each matrix.
#[derive(Default)]
pub(super) struct Maps {
    pub(super) specs: Vec<MapSpec>,
    known: HashMap<(u64, u64, u32, u32, u64), u32>,
}

impl Maps {
    /// The map of a matrix, grown to the size of `spec`; maps that end at different places (`end`) are not shared.
    pub(super) fn of(&mut self, spec: MapSpec, end: u64) -> u32 {
        let key = (spec.address, spec.pitch, spec.element as u32, spec.box_rows, end);
        let next = self.specs.len() as u32;
        let index = *self.known.entry(key).or_insert(next);
        if index == next {
            self.specs.push(spec);
        }
        let known = &mut self.specs[index as usize];
        known.rows = known.rows.max(spec.rows);
        known.columns = known.columns.max(spec.columns);
        index
    }
}

/// Bytes of an element.
pub(crate) const fn bytes_of(element: Element) -> u64 {
    match element {
        Element::Bf16 | Element::F16 => 2,
        Element::F32 => 4,
    }
}
