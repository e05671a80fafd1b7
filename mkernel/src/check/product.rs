//! The reference of every product `c = a b`: each element one sum of k products, wherever it is taken.

use mkernel_core::DType;
use mkernel_kernels::Operator;

use super::bound::overflow;
use super::matmul::{Matrix, product};
use super::{Element, Failure, Judge, Term};
use crate::tensor::{Tensor, Tensors};

/// An operator with tensors a `[m, k]`, b `[k, n]` and c `[m, n]`, and the tensors of one run.
pub(super) struct Product<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    c: Matrix<'a>,
    depth: u64,
    output: DType,
    partial: Option<DType>,
}

impl<'a> Product<'a> {
    /// `partial` is the type that partial sums are rounded to on their way, if they are.
    pub(super) fn new(
        operator: &dyn Operator,
        partial: Option<DType>,
        inputs: &'a Tensors,
        outputs: &'a Tensors,
    ) -> Product<'a> {
        let specs = operator.tensors();
        let of = |tensors: &'a Tensors, index: usize| {
            let spec = &specs[index];
            let tensor = tensors.expect(spec).expect("tensors of a run have the operator's shapes");
            Matrix { tensor, columns: spec.matrix().1 }
        };
        let [a, b, c] = [of(inputs, 0), of(inputs, 1), of(outputs, 2)];
        Product { a, b, c, depth: specs[0].matrix().1, output: specs[2].dtype, partial }
    }

    /// Judges every element.
    pub(super) fn check_all(&self, judge: &mut Judge) -> Result<(), Failure> {
        let is_integer = are_integers(self.a.tensor) && are_integers(self.b.tensor);
        let rows = elements(self.c.tensor) / self.c.columns;
        product(self.a, self.b, (rows, self.c.columns, self.depth), |block| {
            let mut index = 0;
            for row in block.rows.clone() {
                for column in block.columns.clone() {
                    let (value, magnitude) = (block.value[index], block.magnitude[index]);
                    let term = Term { value, magnitude, length: self.depth, is_integer, partial: self.partial };
                    self.judge(judge, Element { tensor: "c", row, column }, &term)?;
                    index += 1;
                }
            }
            Ok(())
        })
    }

    /// Judges the given elements.
    pub(super) fn check_some(&self, elements: &[Element], judge: &mut Judge) -> Result<(), Failure> {
        for &at in elements {
            let partial = self.partial;
            let mut term = Term { value: 0.0, magnitude: 0.0, length: self.depth, is_integer: true, partial };
            for i in 0..self.depth {
                let (x, y) = (self.a.at(at.row, i), self.b.at(i, at.column));
                term.value += x * y;
                term.magnitude += (x * y).abs();
                term.is_integer &= x.fract() == 0.0 && y.fract() == 0.0;
            }
            self.judge(judge, at, &term)?;
        }
        Ok(())
    }

    fn judge(&self, judge: &mut Judge, at: Element, term: &Term) -> Result<(), Failure> {
        let found = self.c.at(at.row, at.column);
        // An infinity of the inputs may meet another, into which a partial sum of finite products has run.
        let is_opposed = || self.finite_magnitude(at) >= overflow(term.holds());
        if term.value.is_infinite() && found.is_nan() && is_opposed() {
            judge.leave_open();
            return Ok(());
        }
        judge.element(at, found, term, self.output)
    }

    /// The sum of the magnitudes of an element's finite products.
    fn finite_magnitude(&self, at: Element) -> f64 {
        let products = (0..self.depth).map(|i| (self.a.at(at.row, i) * self.b.at(i, at.column)).abs());
        products.filter(|product| product.is_finite()).sum()
    }
}

fn elements(tensor: &Tensor) -> u64 {
    tensor.bytes().len() as u64 / tensor.dtype().bytes()
}

/// Whether every element is an integer.
fn are_integers(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::I32 || (0..elements(tensor)).all(|i| tensor.at(i).fract() == 0.0)
}
