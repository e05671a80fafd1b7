//! What counts as right for one element.

use mkernel_core::DType;

use super::{Element, Errors, Failure, round_integer};

/// The reference of one element of a sum of products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// The sum in f64.
    pub value: f64,
    /// The sum of magnitudes, `S`.
    pub magnitude: f64,
    /// The number of products.
    pub length: u64,
    /// Whether every product is an integer.
    pub is_integer: bool,
    /// The type that partial sums are rounded to before the last sum, if they are.
    pub partial: Option<DType>,
}

impl Term {
    /// The type that holds every partial sum.
    pub(super) fn holds(&self) -> DType {
        self.partial.unwrap_or(DType::F32)
    }

    /// Whether every partial sum is an integer that its type represents, in any order.
    fn is_exact(&self) -> bool {
        self.is_integer && self.magnitude <= 1.0 / self.holds().unit_roundoff()
    }
}

/// Judges elements and keeps the largest errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judge {
    elements: u64,
    exact: u64,
    max_abs: f64,
    max_rel: f64,
    max_of_bound: f64,
}

/// `gamma_k` for a unit roundoff.
pub(super) fn gamma(length: u64, unit: f64) -> f64 {
    let product = length as f64 * unit;
    if product < 1.0 { product / (1.0 - product) } else { f64::INFINITY }
}

/// Half of the smallest positive number of a type: the most that one rounding loses to underflow.
pub(super) fn tiny(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2f64.powi(-134),
        DType::F16 => 2f64.powi(-25),
        DType::F32 => 2f64.powi(-150),
        DType::I32 => 0.5,
    }
}

/// Values of this magnitude or more round to infinity.
pub(super) fn overflow(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => (2.0 - 2f64.powi(-8)) * 2f64.powi(127),
        DType::F16 => 65520.0,
        DType::F32 => (2.0 - 2f64.powi(-24)) * 2f64.powi(127),
        DType::I32 => f64::INFINITY,
    }
}

/// The error that one element may have.
fn bound(term: &Term, output: DType) -> f64 {
    let unit = DType::F32.unit_roundoff();
    let sum = gamma(term.length, unit) * term.magnitude + term.length as f64 * tiny(DType::F32);
    let on_the_way = |p: DType| p.unit_roundoff() * (term.magnitude + sum) + term.length as f64 * tiny(p);
    let partial = sum + term.partial.map_or(0.0, on_the_way);
    let rounding = output.unit_roundoff() * (term.value.abs() + partial) + tiny(output);
    // The reference's own rounding: two operations per product, as there is no fused multiply-add to count on.
    partial + rounding + gamma(2 * term.length, f64::EPSILON / 2.0) * term.magnitude
}

impl Judge {
    /// Judges one element of an output of type `output` that is a sum of products.
    ///
    /// # Errors
    /// [`Failure::Element`] if it is wrong.
    pub fn element(&mut self, at: Element, found: f64, term: &Term, output: DType) -> Result<(), Failure> {
        let is_finite = term.value.is_finite();
        if is_finite && term.magnitude >= overflow(term.holds()) {
            self.leave_open();
            return Ok(());
        }
        if is_finite && term.is_exact() {
            self.exact += 1;
            return self.within(at, found, round_integer(term.value, output), 0.0, output);
        }
        self.within(at, found, term.value, bound(term, output), output)
    }

    /// Counts an element whose partial sums may have left the range of their type: any value may be right.
    pub(super) fn leave_open(&mut self) {
        self.elements += 1;
    }

    /// Judges one element against a reference and the error that it may have.
    ///
    /// # Errors
    /// [`Failure::Element`] if it is wrong.
    pub fn within(&mut self, at: Element, found: f64, wanted: f64, bound: f64, output: DType) -> Result<(), Failure> {
        self.elements += 1;
        let Element { tensor, row, column } = at;
        let wrong = Failure::Element { tensor, row, column, found, wanted, bound };
        if !wanted.is_finite() || found.is_infinite() {
            let is_same = found == wanted || (found.is_nan() && wanted.is_nan());
            let reaches = wanted.abs() + bound >= overflow(output) && found.signum() == wanted.signum();
            let holds = if wanted.is_finite() { reaches } else { is_same };
            return if holds { Ok(()) } else { Err(wrong) };
        }
        let error = (found - wanted).abs();
        // A NaN fails this comparison and is wrong, as it must be.
        let holds = error <= bound;
        if !holds {
            return Err(wrong);
        }
        self.record(error, wanted, bound);
        Ok(())
    }

    fn record(&mut self, error: f64, wanted: f64, bound: f64) {
        self.max_abs = self.max_abs.max(error);
        if wanted != 0.0 {
            self.max_rel = self.max_rel.max(error / wanted.abs());
        }
        if bound > 0.0 {
            self.max_of_bound = self.max_of_bound.max(error / bound);
        }
    }

    /// What was found so far.
    pub fn errors(&self) -> Errors {
        let Judge { elements, exact, max_abs, max_rel, max_of_bound } = *self;
        Errors { elements, exact, max_abs, max_rel, max_of_bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Element = Element { tensor: "c", row: 0, column: 0 };

    fn judge(found: f64, value: f64, magnitude: f64, is_integer: bool, output: DType) -> Result<(), Failure> {
        Judge::default().element(AT, found, &Term { value, magnitude, length: 8, is_integer, partial: None }, output)
    }

    #[test]
    fn small_integers_must_match_bit_for_bit() {
        assert!(judge(256.0, 257.0, 257.0, true, DType::Bf16).is_ok());
        assert!(judge(258.0, 257.0, 257.0, true, DType::Bf16).is_err());
        assert!(judge(257.0, 257.0, 257.0, true, DType::F32).is_ok());
        assert!(judge(257.000_03, 257.0, 257.0, true, DType::F32).is_err());
        assert!(judge(-0.0, 0.0, 4.0, true, DType::F32).is_ok());
    }

    #[test]
    fn one_rounding_of_the_output_is_allowed_and_two_units_are_not() {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let unit = dtype.unit_roundoff();
            assert!(judge(1.0 + unit, 1.0, 1.0, false, dtype).is_ok(), "{dtype}");
            assert!(judge(1.0 + 12.0 * unit, 1.0, 1.0, false, dtype).is_err(), "{dtype}");
        }
    }

    #[test]
    fn nan_is_right_exactly_where_the_reference_is_nan() {
        assert!(judge(f64::NAN, f64::NAN, f64::NAN, false, DType::Bf16).is_ok());
        assert!(judge(1.0, f64::NAN, f64::NAN, false, DType::Bf16).is_err());
        assert!(judge(f64::NAN, 1.0, 1.0, false, DType::Bf16).is_err());
        assert!(judge(f64::NAN, 1.0, 1.0, true, DType::Bf16).is_err());
    }

    #[test]
    fn infinity_is_right_only_where_the_range_ends() {
        assert!(judge(f64::INFINITY, 65519.0, 65519.0, false, DType::F16).is_ok());
        assert!(judge(f64::INFINITY, 60000.0, 60000.0, false, DType::F16).is_err());
        assert!(judge(f64::NEG_INFINITY, 70000.0, 70000.0, false, DType::F16).is_err());
        assert!(judge(f64::INFINITY, f64::INFINITY, f64::INFINITY, false, DType::F16).is_ok());
        assert!(judge(f64::NEG_INFINITY, f64::INFINITY, f64::INFINITY, false, DType::F16).is_err());
        assert!(judge(f64::INFINITY, 70000.0, 70000.0, true, DType::F16).is_ok());
    }

    #[test]
    fn rounded_partials_widen_the_bound_by_one_unit_of_their_type_and_end_exactness_early() {
        let with = |partial, found, is_integer, magnitude| {
            let term = Term { value: 1.0, magnitude, length: 8, is_integer, partial };
            Judge::default().element(AT, found, &term, DType::F32).is_ok()
        };
        let (bf16, unit) = (Some(DType::Bf16), DType::Bf16.unit_roundoff());
        assert!(with(bf16, 1.0 + 0.99 * unit, false, 1.0) && !with(bf16, 1.0 + 1.01 * unit, false, 1.0));
        assert!(!with(None, 1.0 + 0.99 * unit, false, 1.0) && !with(Some(DType::F32), 1.0 + 0.99 * unit, false, 1.0));
        assert!(!with(bf16, 2.0, true, 256.0) && with(bf16, 2.0, true, 258.0));
    }
}
