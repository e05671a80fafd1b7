//! How much of everything there is on this rank, and what the byte law says.

use mkernel_core::{DType, Law, Rank, RoleName};

use super::Form;
use super::layout::{Collected, Layout};
use crate::split::Work;

impl Layout<'_> {
    /// What this rank collects.
    pub(super) fn own_collected(&self) -> &Collected {
        &self.collected[self.world.index_of(self.rank) as usize]
    }

    /// Whether the finished rows of a slice land on this rank from another node.
    pub(super) fn lands_blocks(&self, slice: u32) -> bool {
        let is_far = !self.is_home(self.node, slice);
        self.problem.form == Form::TwoStep && is_far && self.collector(self.node, slice) == self.rank
    }

    fn home_tiles(&self) -> u64 {
        self.home_before(self.rank, self.slices().end).tiles
    }

    /// Sums: one per tile staged on a node of several GPUs, one per tile finished here.
    pub(super) fn reduces(&self) -> u64 {
        let partial = if self.gpus() > 1 { self.own_collected().staging.tiles } else { 0 };
        partial + if self.world.size() > 1 { self.home_tiles() } else { 0 }
    }

    /// Puts of partials.
    fn partial_puts(&self) -> u64 {
        self.collects().map(|s| self.tile_count(s) * self.other_homes(s).count() as u64).sum()
    }

    /// Puts of finished rows.
    fn block_puts(&self) -> u64 {
        match self.problem.form {
            Form::TwoStep => self.block_count(self.rank.0) * (self.nodes() - 1),
            Form::Scatter | Form::OneShot => 0,
        }
    }

    /// Puts that carry bytes.
    pub(super) fn bulk_puts(&self) -> u64 {
        self.partial_puts() + self.block_puts()
    }

    /// All instructions of the send role: bulk puts, credits, and leave to put.
    pub(super) fn sends(&self) -> u64 {
        let homes = self.home_slices(self.rank).filter(|&s| self.tile_count(s) > 0).count() as u64;
        let rails = self.collects().filter(|&s| self.lands_blocks(s) && self.block_count(s) > 0).count() as u64;
        self.bulk_puts() + homes * (self.nodes() - 1) + rails
    }

    /// Copies of blocks to ranks of the node.
    pub(super) fn copies(&self) -> u64 {
        if self.is_everywhere() { self.own_collected().blocks * (self.gpus() - 1) } else { 0 }
    }

    /// NIC bytes by the formula of the operator.
    pub(super) fn law(&self) -> Law {
        let partial = self.problem.n * self.problem.partial.bytes();
        let finished = self.problem.n * self.problem.dtype.bytes();
        let homes = |s| self.world.nodes().filter(|&h| h != self.node && self.is_home(h, s)).count() as u64;
        let mut law = Law {
            inter_out: self.collects().map(|s| self.row_count(s) * homes(s) * partial).sum(),
            inter_in: self.home_slices(self.rank).map(|s| self.row_count(s) * (self.nodes() - 1) * partial).sum(),
        };
        if self.problem.form == Form::TwoStep {
            law.inter_out += self.row_count(self.rank.0) * (self.nodes() - 1) * finished;
            let landing = self.collects().filter(|&s| self.lands_blocks(s));
            law.inter_in += landing.map(|s| self.row_count(s) * finished).sum::<u64>();
        }
        law
    }

    /// The modelled work of this rank's roles.
    pub(super) fn work(&self) -> Vec<Work> {
        let (profile, n) = (self.profile, self.problem.n as f64);
        let depth = (self.depth.end - self.depth.start) as f64;
        let mut work = vec![Work::flops(RoleName::Compute, 2.0 * self.problem.m as f64 * n * depth, profile)];
        if self.reduces() > 0 {
            work.push(Work::sums(RoleName::Reduce, self.sum_rows() * n, profile));
        }
        if self.is_everywhere() && self.gpus() > 1 {
            let rows: u64 = self.collects().map(|s| self.row_count(s)).sum();
            let bytes = rows as f64 * n * self.problem.dtype.bytes() as f64 * (self.gpus() - 1) as f64;
            work.push(Work::copies(RoleName::Intra, bytes, profile));
        }
        if self.sends() > 0 {
            work.push(Work::tickets(RoleName::Send, self.sends() as f64, profile));
        }
        work
    }

    /// Bytes that the sums of this rank read, per column of C.
    fn sum_rows(&self) -> f64 {
        let slots = self.own_collected().slots.rows * self.gpus() * DType::F32.bytes();
        let home = self.home_before(self.rank, self.slices().end).rows;
        (slots + home * (self.nodes() - 1) * self.problem.partial.bytes()) as f64
    }

    /// Whether this rank has slots that `writer` of its node fills.
    pub(super) fn is_filled_by(&self, writer: Rank) -> bool {
        writer != self.rank && self.own_collected().slots.tiles > 0
    }
}
