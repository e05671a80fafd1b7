//! The one call into the matrix product of `matrixmultiply`, with its bounds checked.
#![allow(unsafe_code)]

/// Adds the product of row-major `a` `[m, k]` and `b` `[k, n]` to row-major `sum` `[m, n]`, in f32.
///
/// The order of additions depends on the shape and the machine's instruction set alone.
///
/// # Panics
/// If a slice is not of its shape.
pub(crate) fn add_product(shape: (usize, usize, usize), a: &[f32], b: &[f32], sum: &mut [f32]) {
    let (m, n, k) = shape;
    assert_eq!((a.len(), b.len(), sum.len()), (m * k, k * n, m * n), "slices of a product [{m}, {k}] x [{k}, {n}]");
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    let (k_stride, n_stride) = (k as isize, n as isize);
    // SAFETY: the lengths are those of dense row-major matrices of these shapes, asserted above; `sum` is exclusive.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            k_stride,
            1,
            b.as_ptr(),
            n_stride,
            1,
            1.0,
            sum.as_mut_ptr(),
            n_stride,
            1,
        );
    }
}
