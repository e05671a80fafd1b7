//! How many SMs each role gets.
//!
//! A cost model of two numbers per role: the seconds that its work takes on one SM, and the most SMs that help before
//! a link is full. The split minimises the longest role by giving SMs one at a time to the role that is the longest so
//! far. For independent roles with divisible work this greedy choice is optimal: a role is only ever given an SM when
//! it bounds the whole. Roles that finish early help the next lane, so an error of one or two SMs costs little.

use mkernel_core::{Instruction, Op, Program, RoleName, Span, Stage};

use crate::operator::PlanError;
use crate::profile::Profile;

/// CTAs given to roles by the user; roles that are absent follow from the shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleCtas {
    counts: [Option<u32>; RoleName::ALL.len()],
}

impl RoleCtas {
    /// Sets the CTAs of one role.
    pub fn set(&mut self, role: RoleName, ctas: u32) {
        self.counts[role as usize] = Some(ctas);
    }

    /// The CTAs of one role, if given.
    pub fn get(&self, role: RoleName) -> Option<u32> {
        self.counts[role as usize]
    }
}

/// The modelled work of one role on one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The role.
    pub role: RoleName,
    /// Seconds on one SM; zero for a role with nothing to do.
    pub seconds: f64,
    /// The most SMs that help: beyond it a link is the bound.
    pub useful: u32,
}

impl Work {
    /// Matrix products of `flops` operations in 16-bit types.
    pub fn flops(role: RoleName, flops: f64, profile: &Profile) -> Work {
        Work { role, seconds: flops / profile.sm_flops, useful: profile.sms }
    }

    /// Copies of `bytes` to peers of the node.
    pub fn copies(role: RoleName, bytes: f64, profile: &Profile) -> Work {
        Work { role, seconds: bytes / profile.sm_copy, useful: (profile.link / profile.sm_copy).ceil() as u32 }
    }

    /// Sums that read `bytes` of this rank's memory.
    pub fn sums(role: RoleName, bytes: f64, profile: &Profile) -> Work {
        Work { role, seconds: bytes / profile.sm_copy, useful: profile.sms }
    }

    /// `tickets` handed to the proxy: one SM keeps any NIC busy.
    pub fn tickets(role: RoleName, tickets: f64, profile: &Profile) -> Work {
        Work { role, seconds: tickets * profile.ticket, useful: 1 }
    }
}

/// The modelled work of one instruction of `program` in a lane of `role`.
pub fn cost(program: &Program, instruction: &Instruction, role: RoleName, profile: &Profile) -> Work {
    let moved = |spans: &[Span]| spans.iter().map(|s| s.bytes() as f64).sum::<f64>();
    let segments = program.segments(instruction).iter().map(|s| program.reads(s));
    match instruction.op {
        Op::Gemm { input, .. } => {
            // Rows of A and C, columns of B and C, and the length summed over.
            let product = |reads: &[Span]| match reads {
                [a, b] => f64::from(a.rows) * f64::from(b.rows) * (b.row_bytes / input.bytes()) as f64,
                _ => 0.0,
            };
            Work::flops(role, 2.0 * segments.map(product).sum::<f64>(), profile)
        }
        Op::Attention { dtype, .. } => {
            let rows = program.writes(instruction).iter().map(|s| f64::from(s.rows)).sum::<f64>();
            let keys =
                |reads: &[Span]| reads.last().map_or(0.0, |v| f64::from(v.rows) * (v.row_bytes / dtype.bytes()) as f64);
            Work::flops(role, 4.0 * rows * segments.map(keys).sum::<f64>(), profile)
        }
        Op::Copy => Work::copies(role, moved(program.writes(instruction)), profile),
        Op::Reduce { .. } => Work::copies(role, segments.map(moved).sum(), profile),
        Op::Put(_) => Work::tickets(role, 1.0, profile),
        // What data decides, at most.
        Op::Expert { stage, input, output } => {
            let products = if stage == Stage::Gated { 2.0 } else { 1.0 };
            let depth = |reads: &[Span]| {
                let rows = if stage == Stage::Down { reads.get(1) } else { reads.get(2) };
                rows.map_or(0.0, |rows| (rows.row_bytes / input.bytes()) as f64)
            };
            let elements = |s: &Span| f64::from(s.rows) * (s.row_bytes / output.bytes()) as f64;
            let written: f64 = program.writes(instruction).iter().map(elements).sum();
            Work::flops(role, 2.0 * products * written * segments.map(depth).sum::<f64>(), profile)
        }
        Op::Pack { .. } | Op::Combine { .. } => Work::copies(role, moved(program.writes(instruction)), profile),
        Op::Merge { .. } => Work::copies(role, segments.map(moved).sum(), profile),
        Op::Route { .. } => Work::copies(role, segments.map(moved).sum(), profile),
        Op::Release => Work { role, seconds: 0.0, useful: 1 },
    }
}

/// Splits a rank's SMs between roles: what `given` says, and the model for the rest.
///
/// Every role in `work` gets at least one CTA unless `given` says otherwise; a role absent from `work` gets none.
///
/// # Errors
/// [`PlanError::TooManyCtas`] when `given` leaves too few SMs for the others.
pub fn split(work: &[Work], given: &RoleCtas, profile: &Profile) -> Result<RoleCtas, PlanError> {
    let mut result = RoleCtas::default();
    let mut free: Vec<(&Work, u32)> = Vec::new();
    let mut used = 0u32;
    for w in work {
        let ctas = given.get(w.role).unwrap_or(1);
        used = used.saturating_add(ctas);
        match given.get(w.role) {
            Some(ctas) => result.set(w.role, ctas),
            None => free.push((w, 1)),
        }
    }
    if used > profile.sms {
        return Err(PlanError::TooManyCtas { asked: used, sms: profile.sms });
    }
    for _ in used..profile.sms {
        let longest = free
            .iter_mut()
            .filter(|(w, ctas)| *ctas < w.useful)
            .max_by(|a, b| (a.0.seconds / f64::from(a.1)).total_cmp(&(b.0.seconds / f64::from(b.1))));
        match longest {
            Some((_, ctas)) => *ctas += 1,
            None => break,
        }
    }
    for (w, ctas) in free {
        result.set(w.role, ctas);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(compute: f64, intra: f64) -> [Work; 2] {
        let p = &Profile::H200;
        [Work::flops(RoleName::Compute, compute, p), Work::copies(RoleName::Intra, intra, p)]
    }

    #[test]
    fn more_bytes_per_flop_give_more_copying_sms() {
        let of = |intra| split(&work(1e12, intra), &RoleCtas::default(), &Profile::H200).unwrap();
        let (few, many) = (of(1e6), of(1e9));
        assert!(few.get(RoleName::Intra) < many.get(RoleName::Intra));
        for s in [few, many] {
            let sum: u32 = RoleName::ALL.iter().filter_map(|&r| s.get(r)).sum();
            assert!(sum <= Profile::H200.sms);
        }
    }

    #[test]
    fn a_given_count_stands_and_too_many_are_refused() {
        let mut given = RoleCtas::default();
        given.set(RoleName::Intra, 7);
        assert_eq!(split(&work(1e12, 1e9), &given, &Profile::H200).unwrap().get(RoleName::Intra), Some(7));
        given.set(RoleName::Intra, 132);
        assert!(matches!(split(&work(1e12, 1e9), &given, &Profile::H200), Err(PlanError::TooManyCtas { .. })));
    }
}
