//! What one launch did, or several together.

use mkernel_core::executor::TraceEvent;
use mkernel_core::{RoleName, Run};

/// What one launch did on all hosted ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Wall time of the launch, in microseconds.
    pub time_us: f64,
    /// What each role did, all ranks together, in the order of [`RoleName::ALL`]; roles that had nothing to do are
    /// absent.
    pub roles: Vec<RoleReport>,
    /// Payload bytes that each rank wrote to peers of its node.
    pub intra_out: Vec<u64>,
    /// Payload bytes that each rank sent over the NIC.
    pub inter_out: Vec<u64>,
    /// What the operator's formula says that each rank sends over the NIC.
    pub inter_law: Vec<u64>,
    /// What every CTA did, if the session traces.
    pub trace: Vec<TraceEvent>,
}

/// What one role did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleReport {
    /// The role.
    pub role: RoleName,
    /// Home CTAs on one rank: the most of any rank.
    pub ctas: u32,
    /// Instructions retired, over all ranks.
    pub tasks: u64,
    /// Time spent working, over all CTAs of all ranks, in microseconds.
    pub busy_us: f64,
    /// Time spent waiting for signals, over all CTAs of all ranks, in microseconds.
    pub wait_us: f64,
}

impl Report {
    pub(crate) fn new(run: Run, inter_law: Vec<u64>) -> Report {
        let Run { time_us, lanes, intra_out, inter_out, trace } = run;
        let role = |role| {
            let mut sum = RoleReport { role, ctas: 0, tasks: 0, busy_us: 0.0, wait_us: 0.0 };
            for lane in lanes.iter().filter(|l| l.role == role) {
                sum.ctas = sum.ctas.max(lane.ctas);
                sum.tasks += lane.tasks;
                sum.busy_us += lane.busy_us;
                sum.wait_us += lane.wait_us;
            }
            sum
        };
        let roles = RoleName::ALL.map(role).into_iter().filter(|r| r.ctas > 0).collect();
        Report { time_us, roles, intra_out, inter_out, inter_law, trace }
    }
}

/// Several launches of one instance together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    times: Vec<f64>,
    roles: Vec<RoleReport>,
}

impl Summary {
    /// Adds a launch.
    pub fn add(&mut self, report: &Report) {
        self.times.push(report.time_us);
        if self.roles.is_empty() {
            self.roles.clone_from(&report.roles);
            return;
        }
        for (sum, role) in self.roles.iter_mut().zip(&report.roles) {
            debug_assert_eq!(sum.role, role.role, "launches of one instance have the same lanes");
            sum.tasks += role.tasks;
            sum.busy_us += role.busy_us;
            sum.wait_us += role.wait_us;
        }
    }

    /// The median time of a launch, in microseconds.
    pub fn time_us(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        match times.len() {
            0 => 0.0,
            n if n % 2 == 1 => times[n / 2],
            n => (times[n / 2 - 1] + times[n / 2]) / 2.0,
        }
    }

    /// What each role did, over all launches.
    pub fn roles(&self) -> &[RoleReport] {
        &self.roles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(time_us: f64, tasks: u64) -> Report {
        let role = RoleReport { role: RoleName::Compute, ctas: 2, tasks, busy_us: 1.0, wait_us: 0.5 };
        let none = Vec::new;
        Report { time_us, roles: vec![role], intra_out: none(), inter_out: none(), inter_law: none(), trace: vec![] }
    }

    #[test]
    fn a_summary_takes_the_median_time_and_sums_the_work() {
        let mut summary = Summary::default();
        for time in [9.0, 1.0, 3.0] {
            summary.add(&report(time, 4));
        }
        assert_eq!(summary.time_us(), 3.0);
        assert_eq!((summary.roles()[0].ctas, summary.roles()[0].tasks), (2, 12));
        summary.add(&report(5.0, 4));
        assert_eq!(summary.time_us(), 4.0);
    }
}
