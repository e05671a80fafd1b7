//! Products of host tensors in f64, block by block: memory stays bounded whatever the shape.

use std::ops::Range;

use crate::tensor::Tensor;

/// Rows and columns of a block of the result.
const BLOCK: u64 = 512;
/// Length of the sum that is unpacked at once.
const DEPTH: u64 = 1024;

/// A block of a product and of the product of magnitudes.
pub(super) struct Block {
    pub(super) rows: Range<u64>,
    pub(super) columns: Range<u64>,
    /// The product, row-major.
    pub(super) value: Vec<f64>,
    /// The product of magnitudes, row-major.
    pub(super) magnitude: Vec<f64>,
}

/// A matrix `[rows, columns]` in host memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) tensor: &'a Tensor,
    pub(super) columns: u64,
}

impl Matrix<'_> {
    /// Unpacks a rectangle to f64, row-major.
    pub(super) fn unpack(&self, rows: &Range<u64>, columns: &Range<u64>, into: &mut Vec<f64>) {
        into.clear();
        for row in rows.clone() {
            into.extend(columns.clone().map(|column| self.tensor.at(row * self.columns + column)));
        }
    }

    pub(super) fn at(&self, row: u64, column: u64) -> f64 {
        self.tensor.at(row * self.columns + column)
    }
}

fn blocks(len: u64, step: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len).step_by(step as usize).map(move |start| start..(start + step).min(len))
}

/// Calls `visit` with every block of `a b`, where `a` is `[m, k]` and `b` is `[k, n]`.
pub(super) fn product<E>(
    a: Matrix<'_>,
    b: Matrix<'_>,
    (m, n, k): (u64, u64, u64),
    mut visit: impl FnMut(&Block) -> Result<(), E>,
) -> Result<(), E> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for rows in blocks(m, BLOCK) {
        for columns in blocks(n, BLOCK) {
            let size = ((rows.end - rows.start) * (columns.end - columns.start)) as usize;
            let mut block = Block { rows: rows.clone(), columns, value: vec![0.0; size], magnitude: vec![0.0; size] };
            for depth in blocks(k, DEPTH) {
                a.unpack(&rows, &depth, &mut left);
                b.unpack(&depth, &block.columns, &mut right);
                let shape = (rows.end - rows.start, depth.end - depth.start, block.columns.end - block.columns.start);
                accumulate(shape, &left, &right, &mut block.value);
                left.iter_mut().chain(right.iter_mut()).for_each(|x| *x = x.abs());
                accumulate(shape, &left, &right, &mut block.magnitude);
            }
            visit(&block)?;
        }
    }
    Ok(())
}

/// `sum += left right`, all row-major, `left` of shape `[m, k]` and `right` of `[k, n]`.
pub(super) fn accumulate((m, k, n): (u64, u64, u64), left: &[f64], right: &[f64], sum: &mut [f64]) {
    let (m, k, n) = (m as usize, k as usize, n as usize);
    assert!(left.len() == m * k && right.len() == k * n && sum.len() == m * n);
    // SAFETY: the strides are those of dense row-major matrices, whose lengths are asserted above, and `sum` is
    // borrowed for writing, so it overlaps neither of the others.
    unsafe {
        matrixmultiply::dgemm(
            m,
            k,
            n,
            1.0,
            left.as_ptr(),
            k as isize,
            1,
            right.as_ptr(),
            n as isize,
            1,
            1.0,
            sum.as_mut_ptr(),
            n as isize,
            1,
        );
    }
}
