//! The one call into the matrix product of `matrixmultiply`, with its bounds checked.
#![allow(unsafe_code)]

/// Adds the product of row-major `a` `[m, k]` and `b` `[k, n]` to row-major `sum` `[m, n]`, in f32.
///
/// The order of additions depends on the shape and the machine's instruction set alone.
///
/// # Panics
/// If a slice is not of its shape.
pub(crate) fn add_product(shape: (usize, usize, usize), a: &[f32], b: &[f32], sum: &mut [f32]) {
    add(shape, a, (b, shape.1, 1), sum);
}

/// As [`add_product`], with `b` given as its transpose `[n, k]`.
///
/// # Panics
/// If a slice is not of its shape.
pub(crate) fn add_product_with_transpose(shape: (usize, usize, usize), a: &[f32], b: &[f32], sum: &mut [f32]) {
    add(shape, a, (b, 1, shape.2), sum);
}

/// `b` comes with the steps from one row to the next and from one column to the next: `n` and 1, or 1 and `k`.
fn add(shape: (usize, usize, usize), a: &[f32], (b, row, column): (&[f32], usize, usize), sum: &mut [f32]) {
    let (m, n, k) = shape;
    assert_eq!((a.len(), b.len(), sum.len()), (m * k, k * n, m * n), "slices of a product [{m}, {k}] x [{k}, {n}]");
    assert!((row, column) == (n, 1) || (row, column) == (1, k), "steps {row} and {column} of [{k}, {n}]");
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    // SAFETY: the lengths are those of dense matrices of these shapes, `b` row after row or column after column, asserted
    // above; `sum` is exclusive.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            k as isize,
            1,
            b.as_ptr(),
            row as isize,
            column as isize,
            1.0,
            sum.as_mut_ptr(),
            n as isize,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_operand_gives_the_same_bits() {
        let mut random = fastrand::Rng::with_seed(1);
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (17, 128, 64), (128, 33, 256)] {
            let mut values = |len: usize| -> Vec<f32> { (0..len).map(|_| random.f32() - 0.5).collect() };
            let (a, b, start) = (values(m * k), values(k * n), values(m * n));
            let transposed: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
            let (mut plain, mut other) = (start.clone(), start);
            add_product((m, n, k), &a, &b, &mut plain);
            add_product_with_transpose((m, n, k), &a, &transposed, &mut other);
            assert_eq!(plain, other);
        }
    }
}
