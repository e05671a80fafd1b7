//! The shapes and worlds that are tested.

use mkernel::ring_attention::Layout;
use mkernel::{AgGemm, AllReduce, DType, GemmAr, GemmRs, Mask, MoeDispatchGemm, MoeFfn, Partial, RingAttention, World};

use super::super::args::OpName;
use super::{EPOCHS, MANY_EPOCHS, Subject, Tally, test_case, test_hidden};

/// All operators.
pub(super) const OPERATORS: [OpName; 6] =
    [OpName::AgGemm, OpName::GemmRs, OpName::GemmAr, OpName::MoeDispatchGemm, OpName::MoeFfn, OpName::RingAttention];

const DTYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// GPUs of each node.
const WORLDS: [&[u32]; 7] = [&[1], &[4], &[2, 2], &[2, 2, 2], &[4, 4], &[3, 2], &[1, 1, 1]];

/// M, N, K.
const PRODUCTS: [[u64; 3]; 5] = [[1, 1, 1], [13, 11, 7], [129, 65, 40], [300, 129, 65], [257, 520, 96]];

/// Tokens, hidden, inner, experts, top-k.
const EXPERTS: [[u64; 5]; 5] =
    [[1, 8, 8, 1, 1], [7, 16, 12, 3, 2], [40, 33, 20, 5, 3], [700, 64, 48, 8, 2], [90, 72, 136, 6, 6]];

/// Batch, heads, heads of K and V, positions, length of a head; even ones are causal.
const ATTENTIONS: [[u64; 5]; 7] = [
    [1, 2, 1, 33, 16],
    [1, 1, 1, 1, 16],
    [2, 4, 2, 70, 40],
    [1, 2, 2, 300, 64],
    [1, 1, 1, 450, 128],
    [1, 1, 1, 65, 136],
    [1, 2, 1, 150, 256],
];

/// Every shape in every world for every type; if `quick`, a third of them. One case runs many epochs.
pub(super) fn test(operator: OpName, subject: &Subject, seed: u64, is_quick: bool, tally: &mut Tally) {
    let shapes = if operator == OpName::RingAttention { ATTENTIONS.len() } else { PRODUCTS.len() };
    let mut number = 0u64;
    for gpus in WORLDS {
        let world = World::new(gpus).expect("these worlds are sound");
        for dtype in DTYPES {
            for shape in 0..shapes {
                number += 1;
                let is_long = gpus == [2, 2] && dtype == DType::Bf16 && shape + 2 == shapes;
                if is_quick && !is_long && !number.is_multiple_of(3) {
                    continue;
                }
                let case = Case { subject, world: &world, seed: seed.wrapping_add(number) };
                case.test(operator, dtype, shape, if is_long { MANY_EPOCHS } else { EPOCHS }, tally);
            }
        }
    }
    if operator == OpName::RingAttention {
        test_hidden_values(subject, seed, tally);
    }
}

/// Attention where hidden keys and values are NaN, in heads of every engine.
fn test_hidden_values(subject: &Subject, seed: u64, tally: &mut Tally) {
    for (gpus, dim) in [(&[1][..], 16), (&[1], 128), (&[2, 2], 72), (&[2, 2], 200)] {
        let world = World::new(gpus).expect("these worlds are sound");
        for dtype in DTYPES {
            let (mask, layout) = (Mask::Causal, Layout::ZigZag);
            let operator = RingAttention { batch: 1, heads: 1, kv_heads: 1, seq: 190, dim, mask, layout, dtype };
            test_hidden(Case { subject, world: &world, seed }, &operator, tally);
        }
    }
}

/// What cases of one world have in common.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) subject: &'a Subject,
    pub(super) world: &'a World,
    pub(super) seed: u64,
}

impl Case<'_> {
    fn test(self, operator: OpName, dtype: DType, shape: usize, epochs: u64, tally: &mut Tally) {
        let [m, n, k] = PRODUCTS[shape % PRODUCTS.len()];
        let [tokens, hidden, inner, experts, topk] = EXPERTS[shape % EXPERTS.len()];
        let partial = if self.seed.is_multiple_of(3) { Partial::F32 } else { Partial::Narrow };
        let all_reduce = if self.seed.is_multiple_of(2) { AllReduce::TwoStep } else { AllReduce::OneShot };
        match operator {
            OpName::AgGemm => test_case(self, &AgGemm { m, n, k, dtype }, epochs, tally),
            OpName::GemmRs => test_case(self, &GemmRs { m, n, k, dtype, partial }, epochs, tally),
            OpName::GemmAr => test_case(self, &GemmAr { m, n, k, dtype, partial, all_reduce }, epochs, tally),
            OpName::MoeDispatchGemm => {
                let operator = MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype };
                test_case(self, &operator, epochs, tally);
            }
            OpName::MoeFfn => {
                test_case(self, &MoeFfn { tokens, hidden, inner, experts, topk, dtype }, epochs, tally);
            }
            OpName::RingAttention => {
                let [batch, heads, kv_heads, seq, dim] = ATTENTIONS[shape];
                let mask = if shape.is_multiple_of(2) { Mask::Causal } else { Mask::None };
                let layout = if self.seed.is_multiple_of(2) { Layout::Plain } else { Layout::ZigZag };
                let operator = RingAttention { batch, heads, kv_heads, seq, dim, mask, layout, dtype };
                test_case(self, &operator, epochs, tally);
            }
        }
    }
}
