//! From flags and an input file to a world and an operator.

mod axes;

use std::path::Path;

use mkernel::check::Reference;
use mkernel::ring_attention::Layout;
use mkernel::{
    AgGemm, AllReduce, GemmAr, GemmRs, Mask, MoeDispatchGemm, MoeFfn, Partial, RingAttention, Tensors, World,
};

use super::args::{LayoutName, OpName, ProblemArgs};
use super::usage::{Stop, Usage};
use axes::{Bound, Element, Form, bind};

/// What a command does with an operator, whichever it is.
pub(crate) trait Action {
    /// What comes out.
    type Output;

    /// Does it. `tensors` are those of the input file, if there is one.
    fn act<O>(self, operator: O, tensors: Option<Tensors>) -> Result<Self::Output, Stop>
    where
        O: Reference + PartialEq + Clone + 'static;
}

/// The world that --nodes and --gpus describe.
pub(crate) fn world(args: &ProblemArgs) -> Result<World, Usage> {
    let gpus = args.gpus.as_ref().map_or(&[1][..], |list| &list.0);
    let world = match (args.nodes, gpus) {
        (nodes, [gpus]) => World::uniform(nodes.unwrap_or(1), *gpus),
        (None, list) => World::new(list),
        (Some(nodes), list) if nodes as usize == list.len() => World::new(list),
        (Some(nodes), list) => return Err(Usage::NodeCount { nodes, listed: list.len() }),
    };
    world.map_err(|problem| Usage::World { problem })
}

/// Makes the operator that the flags, or the input file and the flags that agree with it, describe, and acts on it.
pub(crate) fn with_operator<A: Action>(args: &ProblemArgs, input: Option<&Path>, action: A) -> Result<A::Output, Stop> {
    check_options(args)?;
    let partial = args.partial.map_or(Partial::default(), Partial::from);
    let all_reduce = args.all_reduce.map_or(AllReduce::default(), AllReduce::from);
    match args.op {
        OpName::AgGemm => {
            let ([m, n, k], Bound { dtype, tensors, .. }) = product(args, input)?;
            action.act(AgGemm { m, n, k, dtype }, tensors)
        }
        OpName::GemmRs => {
            let ([m, n, k], Bound { dtype, tensors, .. }) = product(args, input)?;
            action.act(GemmRs { m, n, k, dtype, partial }, tensors)
        }
        OpName::GemmAr => {
            let ([m, n, k], Bound { dtype, tensors, .. }) = product(args, input)?;
            action.act(GemmAr { m, n, k, dtype, partial, all_reduce }, tensors)
        }
        OpName::RingAttention => {
            let bound = bind(args, &ATTENTION, input)?;
            let [batch, heads, kv_heads] = ["--batch", "--heads", "--kv-heads"].map(|axis| bound.axis(axis));
            let (seq, dim, dtype) = (bound.axis("--seq"), bound.axis("--dim"), bound.dtype);
            let mask = if args.causal { Mask::Causal } else { Mask::None };
            let layout = match args.layout {
                Some(LayoutName::Plain) => Layout::Plain,
                Some(LayoutName::ZigZag) | None => Layout::ZigZag,
            };
            let operator = RingAttention { batch, heads, kv_heads, seq, dim, mask, layout, dtype };
            action.act(operator, bound.tensors)
        }
        OpName::MoeDispatchGemm => {
            let bound = bind(args, &DISPATCH, input)?;
            let [tokens, hidden, inner, experts, topk] = EXPERT_AXES.map(|axis| bound.axis(axis));
            let operator = MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype: bound.dtype };
            action.act(operator, bound.tensors)
        }
        OpName::MoeFfn => {
            let bound = bind(args, &LAYER, input)?;
            let [tokens, hidden, inner, experts, topk] = EXPERT_AXES.map(|axis| bound.axis(axis));
            action.act(MoeFfn { tokens, hidden, inner, experts, topk, dtype: bound.dtype }, bound.tensors)
        }
    }
}

/// Sizes and inputs of a product of two matrices.
fn product(args: &ProblemArgs, input: Option<&Path>) -> Result<([u64; 3], Bound), Usage> {
    let bound = bind(args, &MATRICES, input)?;
    Ok((["--m", "--n", "--k"].map(|axis| bound.axis(axis)), bound))
}

/// Flags of one operator are wrong for another.
fn check_options(args: &ProblemArgs) -> Result<(), Usage> {
    let has_partials = matches!(args.op, OpName::GemmRs | OpName::GemmAr);
    if args.partial.is_some() && !has_partials {
        return Err(Usage::ForeignOption { flag: "--partial", operators: "gemm-rs and gemm-ar" });
    }
    let is_attention = matches!(args.op, OpName::RingAttention);
    for (flag, is_given) in [("--causal", args.causal), ("--layout", args.layout.is_some())] {
        if is_given && !is_attention {
            return Err(Usage::ForeignOption { flag, operators: "ring-attention" });
        }
    }
    if args.all_reduce.is_some() && !matches!(args.op, OpName::GemmAr) {
        return Err(Usage::ForeignOption { flag: "--all-reduce", operators: "gemm-ar" });
    }
    Ok(())
}

/// Queries over keys and values.
const ATTENTION: [Form; 3] = [
    Form { name: "q", axes: &["--batch", "--heads", "--seq", "--dim"], element: Element::Float },
    Form { name: "k", axes: &["--batch", "--kv-heads", "--seq", "--dim"], element: Element::Float },
    Form { name: "v", axes: &["--batch", "--kv-heads", "--seq", "--dim"], element: Element::Float },
];

/// A product of two matrices.
const MATRICES: [Form; 2] = [
    Form { name: "a", axes: &["--m", "--k"], element: Element::Float },
    Form { name: "b", axes: &["--k", "--n"], element: Element::Float },
];

/// Sizes of the mixture of experts.
const EXPERT_AXES: [&str; 5] = ["--tokens", "--hidden", "--inner", "--experts", "--topk"];

const X: Form = Form { name: "x", axes: &["--tokens", "--hidden"], element: Element::Float };
const IDS: Form = Form { name: "topk_ids", axes: &["--tokens", "--topk"], element: Element::Ids };

/// An expert's weights from tokens.
const fn up(name: &'static str) -> Form {
    Form { name, axes: &["--experts", "--hidden", "--inner"], element: Element::Float }
}

/// Tokens, their experts, and one weight.
const DISPATCH: [Form; 3] = [X, IDS, up("w1")];

/// Tokens, their experts with weights, and three weights.
const LAYER: [Form; 6] = [
    X,
    IDS,
    Form { name: "topk_weights", axes: &["--tokens", "--topk"], element: Element::Single },
    up("w_gate"),
    up("w_up"),
    Form { name: "w_down", axes: &["--experts", "--inner", "--hidden"], element: Element::Float },
];
