//! GEMM + AllReduce: `C = A B` with K split over the ranks, and all of C on every rank, bit for bit the same.
//!
//! Two forms (see [`crate::split_k`] for the plan): two-step sums each rank's share of the rows once and spreads them;
//! one-shot sends each node's partials to every other node, where they are summed again. One-shot saves a hop of the
//! NIC, and costs sums and, beyond two nodes, bytes: the cost model takes it where the hop is the larger part.

use mkernel_core::{DType, Program, Rank, RoleName, World};

use crate::operator::{Operator, PlanError, TensorSpec};
use crate::profile::Profile;
use crate::split::RoleCtas;
use crate::split_k::{Form, Partial, Problem};

/// How the sum reaches every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllReduce {
    /// The faster one by the cost model.
    #[default]
    Auto,
    /// Reduce-scatter, then all-gather: `2(N-1)/N C/G` NIC bytes per GPU.
    TwoStep,
    /// Every node's partials to every other node: `(N-1) C/G` NIC bytes per GPU, one hop.
    OneShot,
}

/// GEMM + AllReduce of global shapes `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmAr {
    /// Rows of A and C.
    pub m: u64,
    /// Columns of B and C.
    pub n: u64,
    /// Columns of A, rows of B.
    pub k: u64,
    /// Element type of A, B and C: bf16, f16 or f32.
    pub dtype: DType,
    /// How partials cross the NIC.
    pub partial: Partial,
    /// By which way.
    pub all_reduce: AllReduce,
}

impl GemmAr {
    /// The form that is planned in `world`: never [`AllReduce::Auto`], and two-step on one node, where there is no other
    /// node to send to. The same on every rank.
    pub fn form(&self, world: &World, profile: &Profile) -> AllReduce {
        if world.node_count() == 1 {
            return AllReduce::TwoStep;
        }
        let seconds = |form| self.seconds(form, world, profile);
        match self.all_reduce {
            AllReduce::Auto if seconds(AllReduce::OneShot) < seconds(AllReduce::TwoStep) => AllReduce::OneShot,
            AllReduce::Auto => AllReduce::TwoStep,
            given => given,
        }
    }

    /// Modelled seconds on the NIC and in sums, on the smallest node, beyond what both forms have in common.
    fn seconds(&self, form: AllReduce, world: &World, profile: &Profile) -> f64 {
        let nodes = f64::from(world.node_count());
        let gpus = world.nodes().map(|n| world.gpus(n)).min().map_or(1.0, f64::from);
        let elements = self.m as f64 * self.n as f64 / gpus;
        let (partial, element) = (self.partial.dtype(self.dtype).bytes() as f64, self.dtype.bytes() as f64);
        let sums = profile.sm_copy * f64::from(profile.sms);
        match form {
            AllReduce::OneShot => {
                let sent = (nodes - 1.0) * elements * partial;
                profile.hop + sent / profile.nic + nodes * elements * partial / sums
            }
            AllReduce::TwoStep | AllReduce::Auto => {
                let sent = (nodes - 1.0) / nodes * elements * (partial + element);
                2.0 * profile.hop + sent / profile.nic + elements * partial / sums
            }
        }
    }

    fn problem(&self, form: Form) -> Problem {
        let GemmAr { m, n, k, dtype, partial, .. } = *self;
        Problem { name: self.name(), m, n, k, dtype, partial: partial.dtype(dtype), form }
    }
}

impl Operator for GemmAr {
    fn name(&self) -> &'static str {
        "gemm-ar"
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        self.problem(Form::TwoStep).tensors()
    }

    fn flops(&self) -> f64 {
        self.problem(Form::TwoStep).flops()
    }

    fn roles(&self) -> &'static [RoleName] {
        &RoleName::ALL
    }

    fn plan(&self, world: &World, rank: Rank, profile: &Profile, given: &RoleCtas) -> Result<Program, PlanError> {
        let form = match self.form(world, profile) {
            AllReduce::OneShot => Form::OneShot,
            AllReduce::TwoStep | AllReduce::Auto => Form::TwoStep,
        };
        self.problem(form).plan(world, rank, profile, given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(m: u64, nodes: u32) -> AllReduce {
        let all_reduce = AllReduce::Auto;
        let operator = GemmAr { m, n: m, k: 512, dtype: DType::Bf16, partial: Partial::Narrow, all_reduce };
        operator.form(&World::uniform(nodes, 8).unwrap(), &Profile::H200)
    }

    #[test]
    fn one_shot_is_for_small_messages_and_few_nodes() {
        assert_eq!(form(1024, 2), AllReduce::OneShot);
        assert_eq!(form(65536, 2), AllReduce::TwoStep);
        assert_eq!(form(8192, 16), AllReduce::TwoStep);
        assert_eq!(form(1024, 1), AllReduce::TwoStep);
    }
}
