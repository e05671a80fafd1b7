//! Mixture of experts over global tensors, with oracles that know nothing of plans.

use std::sync::Arc;

use half::{bf16, f16};
use mkernel_core::{DType, Executor, Program, Span, Verified, World, validate};
use mkernel_kernels::{MoeDispatchGemm, MoeFfn, Operator, Profile, RoleCtas};

/// Tiles and chunks so small that small shapes have many of them.
pub const SMALL: Profile = Profile { sms: 8, tile_m: 3, tile_n: 4, ..Profile::HOST };

/// The shape of either operator.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tokens.
    pub tokens: u64,
    /// Columns of tokens.
    pub hidden: u64,
    /// Columns of the first products.
    pub inner: u64,
    /// Experts.
    pub experts: u64,
    /// Slots of a token.
    pub topk: u64,
    /// Element type.
    pub dtype: DType,
}

impl Shape {
    /// The dispatch and one product.
    pub fn dispatch(&self) -> MoeDispatchGemm {
        let Shape { tokens, hidden, inner, experts, topk, dtype } = *self;
        MoeDispatchGemm { tokens, hidden, inner, experts, topk, dtype }
    }

    /// The whole layer.
    pub fn ffn(&self) -> MoeFfn {
        let Shape { tokens, hidden, inner, experts, topk, dtype } = *self;
        MoeFfn { tokens, hidden, inner, experts, topk, dtype }
    }
}

/// How tokens choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Any expert, repeated ones too, some slots dropped.
    Any,
    /// Distinct experts, none dropped.
    Distinct,
    /// Everybody chooses one expert in every slot.
    One,
    /// Every slot is dropped.
    Nothing,
    /// All choose among the experts of few ranks; whole tokens are dropped.
    Skewed,
}

impl Choice {
    /// All of them.
    pub const ALL: [Choice; 5] = [Choice::Any, Choice::Distinct, Choice::One, Choice::Nothing, Choice::Skewed];
}

/// Values of one epoch; only the tensors of the operator are used.
#[derive(Clone, Debug)]
pub struct Values {
    /// The table.
    pub ids: Vec<i32>,
    /// Its weights.
    pub weights: Vec<f32>,
    /// Tokens.
    pub x: Vec<f32>,
    /// `w1`, or `w_gate`.
    pub gate: Vec<f32>,
    /// `w_up`.
    pub up: Vec<f32>,
    /// `w_down`.
    pub down: Vec<f32>,
}

/// A table of `tokens * topk` slots.
pub fn table(shape: &Shape, choice: Choice, random: &mut fastrand::Rng) -> Vec<i32> {
    let (experts, topk) = (shape.experts as i32, shape.topk as usize);
    let one = random.i32(0..experts);
    let few = random.i32(1..=experts);
    let mut ids = Vec::new();
    for _ in 0..shape.tokens {
        match choice {
            Choice::Any => ids.extend((0..topk).map(|_| random.i32(-1..experts))),
            Choice::Distinct => ids.extend(random.choose_multiple(0..experts, topk)),
            Choice::One => ids.extend(std::iter::repeat_n(one, topk)),
            Choice::Nothing => ids.extend(std::iter::repeat_n(-1, topk)),
            Choice::Skewed if random.bool() => ids.extend(std::iter::repeat_n(-1, topk)),
            Choice::Skewed => ids.extend((0..topk).map(|_| random.i32(0..few))),
        }
    }
    ids
}

impl Values {
    /// Small integers whose sums are exact in every order. Gates are so large that `silu(g)` is `g`, or so small that it is 0.
    pub fn exact(shape: &Shape, choice: Choice, random: &mut fastrand::Rng) -> Values {
        let ids = table(shape, choice, random);
        let Shape { tokens, hidden, inner, experts, topk, .. } = *shape;
        let mut small = |len: u64| -> Vec<f32> { (0..len).map(|_| f32::from(random.i8(-1..=1))).collect() };
        let (mut x, up, down) =
            (small(tokens * hidden), small(experts * hidden * inner), small(experts * inner * hidden));
        let weights = (0..tokens * topk).map(|_| [1.0, 2.0, -1.0, 0.0][random.usize(0..4)]).collect();
        x.chunks_exact_mut(hidden as usize).for_each(|row| row[0] = 1.0);
        let mut gate = vec![0.0; up.len()];
        for expert in gate.chunks_exact_mut((hidden * inner) as usize) {
            expert[..inner as usize].iter_mut().for_each(|g| *g = if random.bool() { 32.0 } else { -256.0 });
        }
        Values { ids, weights, x, gate, up, down }
    }

    /// Reals in [-1, 1), rounded to the element type.
    pub fn real(shape: &Shape, choice: Choice, random: &mut fastrand::Rng) -> Values {
        let ids = table(shape, choice, random);
        let Shape { tokens, hidden, inner, experts, topk, dtype } = *shape;
        let mut values = |len: u64| -> Vec<f32> {
            (0..len).map(|_| round(dtype, f64::from(random.f32() * 2.0 - 1.0)) as f32).collect()
        };
        let x = values(tokens * hidden);
        let (gate, up) = (values(experts * hidden * inner), values(experts * hidden * inner));
        let down = values(experts * inner * hidden);
        let weights = (0..tokens * topk).map(|_| random.f32()).collect();
        Values { ids, weights, x, gate, up, down }
    }

    fn tensor(&self, name: &str) -> &[f32] {
        match name {
            "x" => &self.x,
            "topk_weights" => &self.weights,
            "w1" | "w_up" => &self.up,
            "w_gate" => &self.gate,
            "w_down" => &self.down,
            _ => panic!("no tensor {name}"),
        }
    }
}

/// Plans and proves every rank.
///
/// # Panics
/// If the problem cannot be planned or the plan is unsound.
pub fn verified(operator: &dyn Operator, world: &World, roles: &RoleCtas) -> Arc<Verified> {
    let plan = |rank| operator.plan(world, rank, &SMALL, roles).expect("a test problem can be planned");
    let programs: Vec<Program> = world.ranks().map(plan).collect();
    Arc::new(validate(programs).unwrap_or_else(|violation| panic!("{} on {world}: {violation}", operator.name())))
}

/// Writes the inputs of every rank.
pub fn write(operator: &dyn Operator, executor: &mut dyn Executor, verified: &Verified, values: &Values) {
    let specs = operator.tensors();
    for placement in verified.programs().iter().flat_map(|p| &p.inputs) {
        let spec = specs.iter().find(|s| s.name == placement.tensor).expect("a tensor of the operator");
        let (columns, width) = (spec.matrix().1, placement.span.row_bytes / spec.dtype.bytes());
        let mut bytes = Vec::new();
        for row in placement.row..placement.row + u64::from(placement.span.rows) {
            let start = (row * columns + placement.column) as usize;
            let range = start..start + width as usize;
            match spec.dtype {
                DType::I32 => values.ids[range].iter().for_each(|id| bytes.extend(id.to_le_bytes())),
                dtype => values.tensor(spec.name)[range].iter().for_each(|&v| encode(dtype, v, &mut bytes)),
            }
        }
        executor.write(&placement.span, &bytes);
    }
}

/// The global output; what no rank holds stays NaN, or zero where data placed it.
pub fn read(operator: &dyn Operator, executor: &dyn Executor, verified: &Verified) -> Vec<f64> {
    let specs = operator.tensors();
    let spec = specs.last().expect("outputs come last");
    let (rows, columns) = spec.matrix();
    let element = spec.dtype.bytes();
    let get = |span: &Span| {
        let mut bytes = vec![0; span.bytes() as usize];
        executor.read(span, &mut bytes);
        bytes
    };
    let is_routed = verified.programs().iter().any(|p| !p.routed.is_empty());
    let mut y = vec![if is_routed { 0.0 } else { f64::NAN }; (rows * columns) as usize];
    let mut put = |row: u64, column: u64, bytes: &[u8]| {
        let start = (row * columns + column) as usize;
        let values = bytes.chunks_exact(element as usize).map(|raw| decode(spec.dtype, raw));
        y[start..].iter_mut().zip(values).for_each(|(y, v)| *y = v);
    };
    for program in verified.programs() {
        for placement in &program.outputs {
            let bytes = get(&placement.span);
            for (row, bytes) in (placement.row..).zip(bytes.chunks_exact(placement.span.row_bytes as usize)) {
                put(row, placement.column, bytes);
            }
        }
        for routed in &program.routed {
            let (bytes, places, width) = (get(&routed.span), get(&routed.rows), routed.span.row_bytes as usize);
            for (row, place) in (0..).zip(places.chunks_exact(4)) {
                let place = u32::from_le_bytes([place[0], place[1], place[2], place[3]]);
                if place != u32::MAX {
                    put(row, 0, &bytes[place as usize * width..][..width]);
                }
            }
        }
    }
    y
}

/// Bytes that each rank must send over the NIC: its tokens once to every other node with one of their experts, and sums
/// back the same way. Computed from the table and the GPUs of each node alone: shares are ceil, then floor; a token comes to
/// the rank whose index on its node is that of the source, modulo what the node has.
pub fn nic_bytes(shape: &Shape, gpus: &[u32], ids: &[i32], returns: bool) -> Vec<u64> {
    let ranks: Vec<(usize, usize)> =
        gpus.iter().enumerate().flat_map(|(node, &g)| (0..g as usize).map(move |index| (node, index))).collect();
    let owners = |count: u64| -> Vec<usize> {
        let (each, more) = (count as usize / ranks.len(), count as usize % ranks.len());
        (0..ranks.len()).flat_map(|r| std::iter::repeat_n(r, each + usize::from(r < more))).collect()
    };
    let (sources, experts) = (owners(shape.tokens), owners(shape.experts));
    let mut bytes = vec![0; ranks.len()];
    let row = shape.hidden * shape.dtype.bytes();
    for (&source, slots) in sources.iter().zip(ids.chunks_exact(shape.topk as usize)) {
        let (home, index) = ranks[source];
        for (node, &count) in gpus.iter().enumerate().filter(|&(node, _)| node != home) {
            if !slots.iter().any(|&id| usize::try_from(id).is_ok_and(|id| ranks[experts[id]].0 == node)) {
                continue;
            }
            bytes[source] += row;
            if returns {
                let rail = ranks.iter().position(|&r| r == (node, index % count as usize));
                bytes[rail.expect("a node has that rank")] += row;
            }
        }
    }
    bytes
}

/// `a[row] b` for one expert's `b` of `[k, n]`, with the sum of magnitudes.
fn product(a: &[f64], b: &[f32], n: usize) -> Vec<(f64, f64)> {
    let term = |column: usize| {
        a.iter().enumerate().fold((0.0, 0.0), |(sum, size), (k, a)| {
            let product = a * f64::from(b[k * n + column]);
            (sum + product, size + product.abs())
        })
    };
    (0..n).map(term).collect()
}

/// Every element of the dispatched products with its error bound; zero where products are exact.
pub fn dispatch_oracle(shape: &Shape, values: &Values) -> Vec<(f64, f64)> {
    let (h, n, k) = (shape.hidden as usize, shape.inner as usize, shape.topk as usize);
    let mut y = Vec::new();
    for (slot, &id) in values.ids.iter().enumerate() {
        let token: Vec<f64> = values.x[slot / k * h..][..h].iter().map(|&v| v.into()).collect();
        match usize::try_from(id) {
            Err(_) => y.extend(std::iter::repeat_n((0.0, 0.0), n)),
            Ok(id) => y.extend(product(&token, &values.up[id * h * n..][..h * n], n).into_iter().map(|(sum, size)| {
                let error = (h as f64 + 1.0) * UNIT * size;
                (sum, error + shape.dtype.unit_roundoff() * (sum.abs() + error))
            })),
        }
    }
    y
}

/// Unit roundoff of f32.
const UNIT: f64 = 1.0 / 16_777_216.0;

/// Every element of the layer's output with its error bound.
///
/// Per slot, an error in the gate and in the second product moves the activation by at most their sum of
/// `|silu'| <= 1.1` times the one and `|silu(g)|` times the other; it is rounded once. The product with `w_down` carries
/// those errors and adds its own; then come one rounding per node, one of the output, and sums in f32.
pub fn ffn_oracle(shape: &Shape, values: &Values) -> Vec<(f64, f64)> {
    let (h, n, k) = (shape.hidden as usize, shape.inner as usize, shape.topk as usize);
    let unit = shape.dtype.unit_roundoff();
    let mut y = vec![(0.0, 0.0); shape.tokens as usize * h];
    for (slot, (&id, &weight)) in values.ids.iter().zip(&values.weights).enumerate() {
        let Ok(id) = usize::try_from(id) else { continue };
        let token: Vec<f64> = values.x[slot / k * h..][..h].iter().map(|&v| v.into()).collect();
        let gates = product(&token, &values.gate[id * h * n..][..h * n], n);
        let ups = product(&token, &values.up[id * h * n..][..h * n], n);
        let gamma = (h as f64 + 4.0) * UNIT;
        let activation = |((g, gs), (u, us)): ((f64, f64), (f64, f64))| {
            let silu = g / (1.0 + (-g).exp());
            let error = 1.1 * (gamma * gs) * (u.abs() + gamma * us) + silu.abs() * (gamma * us + 8.0 * UNIT * u.abs());
            let value = silu * u;
            (value, error + unit * (value.abs() + error))
        };
        let activations: Vec<(f64, f64)> = gates.into_iter().zip(ups).map(activation).collect();
        let down = &values.down[id * n * h..][..n * h];
        let weight = f64::from(weight);
        for (column, y) in y[slot / k * h..][..h].iter_mut().enumerate() {
            let (mut sum, mut error) = (0.0, 0.0);
            for (i, &(a, e)) in activations.iter().enumerate() {
                let w = f64::from(down[i * h + column]);
                sum += a * w;
                error += e * w.abs() + (n as f64 + 4.0) * UNIT * (a.abs() + e) * w.abs();
            }
            // What is rounded later is at most the sum of magnitudes: f32 sums, one partial per node, the output.
            let size = weight.abs() * (sum.abs() + error);
            y.0 += weight * sum;
            y.1 += weight.abs() * error + size * (2.0 * unit + (k as f64 + 8.0) * UNIT) * 1.01;
        }
    }
    y
}

/// A value rounded once to `dtype`; integers below 2^24 are exact in f32.
pub fn round(dtype: DType, value: f64) -> f64 {
    let mut bytes = Vec::new();
    encode(dtype, value as f32, &mut bytes);
    decode(dtype, &bytes)
}

fn encode(dtype: DType, value: f32, bytes: &mut Vec<u8>) {
    match dtype {
        DType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        DType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
        DType::F32 => bytes.extend(value.to_le_bytes()),
        DType::I32 => panic!("the table is written as integers"),
    }
}

fn decode(dtype: DType, raw: &[u8]) -> f64 {
    match dtype {
        DType::Bf16 => bf16::from_le_bytes([raw[0], raw[1]]).to_f64(),
        DType::F16 => f16::from_le_bytes([raw[0], raw[1]]).to_f64(),
        DType::F32 => f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]).into(),
        DType::I32 => panic!("no output holds integers"),
    }
}
