//! Gives every axis of an operator's inputs one size: from the flags, or from the tensors of a file.

use std::collections::BTreeMap;
use std::path::Path;

use mkernel::{DType, Tensors, file};

use crate::command::args::{AXES, ProblemArgs};
use crate::command::usage::Usage;

/// An input tensor with its axes, each named by the flag of its size.
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) axes: &'static [&'static str],
    pub(super) element: Element,
}

/// What an input may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// bf16, f16 or f32: the operator's type, one for all such inputs.
    Float,
    /// f32, whatever the operator's type.
    Single,
    /// Numbers of experts.
    Ids,
}

/// Sizes, type and data of an operator's inputs.
pub(super) struct Bound {
    sizes: BTreeMap<&'static str, u64>,
    pub(super) dtype: DType,
    pub(super) tensors: Option<Tensors>,
}

impl Bound {
    /// The size of an axis of one of the forms.
    pub(super) fn axis(&self, flag: &'static str) -> u64 {
        self.sizes[flag]
    }
}

/// Binds all axes of `forms`.
pub(super) fn bind(args: &ProblemArgs, forms: &[Form], input: Option<&Path>) -> Result<Bound, Usage> {
    own_sizes(args, forms)?;
    let Some(path) = input else { return from_flags(args, forms) };
    let names: Vec<&'static str> = forms.iter().map(|form| form.name).collect();
    let tensors = file::read_tensors(path, &names).map_err(|problem| Usage::Input { problem, needs: needs(forms) })?;
    let mut sizes: BTreeMap<&'static str, (u64, &'static str)> = BTreeMap::new();
    let mut dtype: Option<(DType, &'static str)> = None;
    for form in forms {
        let tensor = tensors.get(form.name).ok_or(Usage::MissingTensor { tensor: form.name, needs: needs(forms) })?;
        check_element(form, tensor.dtype(), &mut dtype)?;
        let shape = tensor.shape();
        if shape.len() != form.axes.len() || shape.contains(&0) {
            return Err(Usage::Shape { tensor: form.name, shape: shape.to_vec(), wanted: wanted(form) });
        }
        for (&axis, &size) in form.axes.iter().zip(shape) {
            let &mut (before, owner) = sizes.entry(axis).or_insert((size, form.name));
            if before != size {
                let (tensor, size) = (form.name, size);
                return Err(Usage::Axis { axis: letter(axis), tensor, size, owner, before });
            }
        }
    }
    for (&axis, &(found, _)) in &sizes {
        agree(axis, args.axis(axis), found)?;
    }
    let dtype = dtype.map_or(DType::Bf16, |(dtype, _)| dtype);
    agree("--dtype", args.dtype.map(DType::from), dtype)?;
    let sizes = sizes.into_iter().map(|(axis, (size, _))| (axis, size)).collect();
    Ok(Bound { sizes, dtype, tensors: Some(tensors) })
}

/// Refuses sizes that are another operator's.
fn own_sizes(args: &ProblemArgs, forms: &[Form]) -> Result<(), Usage> {
    let is_own = |flag: &str| forms.iter().any(|form| form.axes.contains(&flag));
    match AXES.into_iter().find(|&flag| args.axis(flag).is_some() && !is_own(flag)) {
        Some(flag) => Err(Usage::ForeignSize { flag, op: args.op.name(), needs: flags(forms) }),
        None => Ok(()),
    }
}

fn from_flags(args: &ProblemArgs, forms: &[Form]) -> Result<Bound, Usage> {
    let mut sizes = BTreeMap::new();
    for &axis in forms.iter().flat_map(|form| form.axes) {
        // Without grouped queries there are as many heads of keys as of queries.
        let size = args.axis(axis).or_else(|| args.axis("--heads").filter(|_| axis == "--kv-heads"));
        let size = size.ok_or_else(|| Usage::MissingShape { flag: axis, needs: flags(forms) })?;
        sizes.insert(axis, size);
    }
    Ok(Bound { sizes, dtype: args.dtype.map_or(DType::Bf16, DType::from), tensors: None })
}

/// One type for all floating inputs.
fn check_element(form: &Form, found: DType, dtype: &mut Option<(DType, &'static str)>) -> Result<(), Usage> {
    let element = |wanted| Usage::Element { tensor: form.name, found, wanted };
    match form.element {
        Element::Float if found == DType::I32 => Err(element("bf16, f16 or f32")),
        Element::Single if found != DType::F32 => Err(element("f32")),
        Element::Ids if found != DType::I32 => Err(element("i32 or i64")),
        Element::Single | Element::Ids => Ok(()),
        Element::Float => match *dtype.get_or_insert((found, form.name)) {
            (one, _) if one == found => Ok(()),
            (one, owner) => Err(Usage::Types { tensor: form.name, found, owner, one }),
        },
    }
}

fn agree<T: PartialEq + ToString>(flag: &'static str, given: Option<T>, found: T) -> Result<(), Usage> {
    match given {
        Some(given) if given != found => {
            Err(Usage::Contradiction { flag, given: given.to_string(), found: found.to_string() })
        }
        _ => Ok(()),
    }
}

/// An axis as it stands in a shape: the flag without its dashes, in capitals.
fn letter(axis: &str) -> String {
    axis.trim_start_matches('-').to_uppercase()
}

/// The shape of a form, such as `[M, K]`.
fn wanted(form: &Form) -> String {
    format!("[{}]", form.axes.iter().map(|axis| letter(axis)).collect::<Vec<_>>().join(", "))
}

/// All inputs with their shapes.
fn needs(forms: &[Form]) -> String {
    forms.iter().map(|form| format!("`{}` {}", form.name, wanted(form))).collect::<Vec<_>>().join(", ")
}

/// All flags that say a size.
fn flags(forms: &[Form]) -> String {
    let mut flags: Vec<&str> = Vec::new();
    for &axis in forms.iter().flat_map(|form| form.axes) {
        if !flags.contains(&axis) {
            flags.push(axis);
        }
    }
    flags.join(", ")
}
