//! From flags and an input file to a world and an operator.

mod axes;

use std::path::Path;

use mkernel::check::Reference;
use mkernel::ring_attention::Layout;
use mkernel::{AgGemm, Mask, RingAttention, Tensors, World};

use super::args::{LayoutName, OpName, ProblemArgs};
use super::usage::{Stop, Usage};
use axes::{Element, Form, bind, own_flags};

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
    match args.op {
        OpName::AgGemm => {
            own_flags(args, "ag-gemm", &MATRICES, &[("--causal", args.causal)])?;
            let bound = bind(args, &MATRICES, input)?;
            let [m, n, k] = ["--m", "--n", "--k"].map(|axis| bound.axis(axis));
            action.act(AgGemm { m, n, k, dtype: bound.dtype }, bound.tensors)
        }
        OpName::RingAttention => {
            own_flags(args, "ring-attention", &ATTENTION, &[])?;
            let bound = bind(args, &ATTENTION, input)?;
            let [batch, heads, kv_heads] = ["--batch", "--heads", "--kv-heads"].map(|axis| bound.axis(axis));
            let (seq, dim, dtype) = (bound.axis("--seq"), bound.axis("--dim"), bound.dtype);
            let mask = if args.causal { Mask::Causal } else { Mask::None };
            let layout = match args.layout {
                LayoutName::Plain => Layout::Plain,
                LayoutName::ZigZag => Layout::ZigZag,
            };
            let operator = RingAttention { batch, heads, kv_heads, seq, dim, mask, layout, dtype };
            action.act(operator, bound.tensors)
        }
    }
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
