//! The reference of AG+GEMM: `c = a b`, each element one sum of k products.

use mkernel_core::DType;
use mkernel_kernels::{AgGemm, Operator};

use super::matmul::{Matrix, product};
use super::{Element, Failure, Judge, Reference, Term};
use crate::tensor::{Tensor, Tensors};

impl Reference for AgGemm {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        let [a, b, c] = matrices(self, inputs, outputs);
        let is_integer = are_integers(a.tensor) && are_integers(b.tensor);
        product(a, b, (self.m, self.n, self.k), |block| {
            let mut index = 0;
            for row in block.rows.clone() {
                for column in block.columns.clone() {
                    let (value, magnitude) = (block.value[index], block.magnitude[index]);
                    let term = Term { value, magnitude, length: self.k, is_integer };
                    judge.element(Element { tensor: "c", row, column }, c.at(row, column), &term, self.dtype)?;
                    index += 1;
                }
            }
            Ok(())
        })
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        let [a, b, c] = matrices(self, inputs, outputs);
        for &at in elements {
            let mut term = Term { value: 0.0, magnitude: 0.0, length: self.k, is_integer: true };
            for i in 0..self.k {
                let (x, y) = (a.at(at.row, i), b.at(i, at.column));
                term.value += x * y;
                term.magnitude += (x * y).abs();
                term.is_integer &= x.fract() == 0.0 && y.fract() == 0.0;
            }
            judge.element(at, c.at(at.row, at.column), &term, self.dtype)?;
        }
        Ok(())
    }
}

/// The tensors of a run: a, b and c.
fn matrices<'a>(operator: &AgGemm, inputs: &'a Tensors, outputs: &'a Tensors) -> [Matrix<'a>; 3] {
    let specs = operator.tensors();
    let of = |tensors: &'a Tensors, index: usize| {
        let spec = &specs[index];
        let tensor = tensors.expect(spec).expect("tensors of a run have the operator's shapes");
        Matrix { tensor, columns: spec.matrix().1 }
    };
    [of(inputs, 0), of(inputs, 1), of(outputs, 2)]
}

/// Whether every element is an integer.
fn are_integers(tensor: &Tensor) -> bool {
    let elements = tensor.bytes().len() as u64 / tensor.dtype().bytes();
    tensor.dtype() == DType::I32 || (0..elements).all(|i| tensor.at(i).fract() == 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::{Extent, Tile, check};
    use super::*;
    use crate::inputs::{Fill, inputs};

    /// The product by three loops, each sum in f32 from left to right and rounded once.
    fn naive(operator: &AgGemm, tensors: &Tensors) -> Tensors {
        let (a, b) = (tensors.get("a").unwrap().to_f32(), tensors.get("b").unwrap().to_f32());
        let (n, k) = (operator.n as usize, operator.k as usize);
        let value = |row: usize, column: usize| (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum::<f32>();
        let c: Vec<f32> =
            (0..operator.m as usize).flat_map(|r| (0..n).map(move |c| (r, c))).map(|(r, c)| value(r, c)).collect();
        Tensors::from([("c", Tensor::from_f32(vec![operator.m, operator.n], operator.dtype, &c).unwrap())])
    }

    fn tiles(operator: &AgGemm) -> Vec<Tile> {
        vec![Tile { tensor: "c", row: 0, column: 0, rows: operator.m, columns: operator.n }; 64]
    }

    #[test]
    fn a_right_product_holds_in_every_type_and_a_wrong_element_is_named() {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            for fill in [Fill::Real, Fill::Integers] {
                let operator = AgGemm { m: 7, n: 13, k: 1031, dtype };
                let given = inputs(&operator, fill, 3, 0);
                let result = naive(&operator, &given);
                for extent in [Extent::All, Extent::Sampled] {
                    let errors = check(&operator, &given, &result, extent, &tiles(&operator), 1).unwrap();
                    assert_eq!(errors.exact == errors.elements, fill == Fill::Integers);
                }
                let mut values = result.get("c").unwrap().to_f32();
                values[5 * 13 + 4] += 2.0;
                let wrong = Tensors::from([("c", Tensor::from_f32(vec![7, 13], dtype, &values).unwrap())]);
                let failure = check(&operator, &given, &wrong, Extent::All, &[], 1).unwrap_err();
                assert!(matches!(failure, Failure::Element { row: 5, column: 4, .. }), "{failure}");
            }
        }
    }

    #[test]
    fn a_result_of_zeros_does_not_pass() {
        let operator = AgGemm { m: 40, n: 40, k: 40, dtype: DType::Bf16 };
        let given = inputs(&operator, Fill::Real, 3, 0);
        let zeros = Tensors::from([("c", Tensor::zeros(&operator.tensors()[2]))]);
        for extent in [Extent::All, Extent::Sampled] {
            assert!(check(&operator, &given, &zeros, extent, &tiles(&operator), 1).is_err());
        }
    }
}
