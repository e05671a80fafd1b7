//! The reference of AG+GEMM: `c = a b`, each element one sum of k products.

use mkernel_kernels::AgGemm;

use super::product::Product;
use super::{Element, Failure, Judge, Reference};
use crate::tensor::Tensors;

impl Reference for AgGemm {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        Product::new(self, None, inputs, outputs).check_all(judge)
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        Product::new(self, None, inputs, outputs).check_some(elements, judge)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Extent, Tile, check};
    use mkernel_core::DType;
    use mkernel_kernels::Operator;

    use super::*;
    use crate::inputs::{Fill, inputs};
    use crate::tensor::Tensor;

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
            for fill in [Fill::Real, Fill::Exact] {
                let operator = AgGemm { m: 7, n: 13, k: 1031, dtype };
                let given = inputs(&operator, fill, 3, 0).unwrap();
                let result = naive(&operator, &given);
                for extent in [Extent::All, Extent::Sampled] {
                    let errors = check(&operator, &given, &result, extent, &tiles(&operator), 1).unwrap();
                    assert_eq!(errors.exact == errors.elements, fill == Fill::Exact);
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
        let given = inputs(&operator, Fill::Real, 3, 0).unwrap();
        let zeros = Tensors::from([("c", Tensor::zeros(&operator.tensors()[2]).unwrap())]);
        for extent in [Extent::All, Extent::Sampled] {
            assert!(check(&operator, &given, &zeros, extent, &tiles(&operator), 1).is_err());
        }
    }
}
