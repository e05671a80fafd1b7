//! The references of GEMM+ReduceScatter and GEMM+AllReduce: a product whose partial sums are rounded on their way.

use mkernel_core::DType;
use mkernel_kernels::{GemmAr, GemmRs, Operator, Partial};

use super::product::Product;
use super::{Element, Failure, Judge, Reference};
use crate::tensor::Tensors;

impl Reference for GemmRs {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        product(self, self.partial, self.dtype, inputs, outputs).check_all(judge)
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        product(self, self.partial, self.dtype, inputs, outputs).check_some(elements, judge)
    }
}

impl Reference for GemmAr {
    fn check_all(&self, inputs: &Tensors, outputs: &Tensors, judge: &mut Judge) -> Result<(), Failure> {
        product(self, self.partial, self.dtype, inputs, outputs).check_all(judge)
    }

    fn check_some(
        &self,
        inputs: &Tensors,
        outputs: &Tensors,
        elements: &[Element],
        judge: &mut Judge,
    ) -> Result<(), Failure> {
        product(self, self.partial, self.dtype, inputs, outputs).check_some(elements, judge)
    }
}

fn product<'a>(
    operator: &dyn Operator,
    partial: Partial,
    dtype: DType,
    inputs: &'a Tensors,
    outputs: &'a Tensors,
) -> Product<'a> {
    Product::new(operator, Some(partial.dtype(dtype)), inputs, outputs)
}
