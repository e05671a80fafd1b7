//! The reference of every product `c = a b`: each element one sum of k products, wherever it is taken.

use mkernel_core::DType;
use mkernel_kernels::Operator;

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
                    judge.element(Element { tensor: "c", row, column }, self.c.at(row, column), &term, self.output)?;
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
            judge.element(at, self.c.at(at.row, at.column), &term, self.output)?;
        }
        Ok(())
    }
}

fn elements(tensor: &Tensor) -> u64 {
    tensor.bytes().len() as u64 / tensor.dtype().bytes()
}

/// Whether every element is an integer.
fn are_integers(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::I32 || (0..elements(tensor)).all(|i| tensor.at(i).fract() == 0.0)
}
