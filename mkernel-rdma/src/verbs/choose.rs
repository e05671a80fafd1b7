//! Which NIC, which port, which address.
//!
//! Deciding is pure ([`best_gid`], [`best`]); [`choose`] asks the devices.

use std::sync::Arc;

use super::device::{Device, Gid, GidKind, Port, devices};
use super::error::VerbsError;

/// A port to use, and its address.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The device.
    pub device: Arc<Device>,
    /// The port.
    pub port: Port,
    /// The address.
    pub gid: Gid,
}

impl Choice {
    /// Whether the port has a link now.
    pub fn is_active(&self) -> bool {
        self.device.is_active(self.port.number) && self.device.has_carrier(self.port.number, self.gid.index)
    }
}

/// How good an address is; higher is better, and each has its reason.
fn grade(gid: &Gid) -> (u8, &'static str) {
    let is_link_local = gid.bytes[..2] == [0xfe, 0x80];
    let is_ipv4 = gid.bytes[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    match (gid.kind, is_link_local) {
        (GidKind::RoceV2, false) if is_ipv4 => (4, "RoCE v2 over IPv4"),
        (GidKind::RoceV2, false) => (3, "RoCE v2 over a global IPv6 address"),
        (GidKind::InfiniBand, _) => (3, "InfiniBand"),
        (GidKind::RoceV2, true) => (2, "RoCE v2 over a link-local address: it reaches one subnet only"),
        (GidKind::RoceV1, _) => (1, "RoCE v1: it reaches one subnet only"),
    }
}

/// The address of a port to use, and why: routable ones first, RoCE v2 before v1, the first of equals.
pub fn best_gid(gids: &[Gid]) -> Option<(Gid, &'static str)> {
    let best = gids.iter().rev().max_by_key(|gid| grade(gid).0)?;
    Some((*best, grade(best).1))
}

/// What counts of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Speed in units of 100 Mb/s.
    pub speed: u32,
    /// The NUMA node of its device.
    pub numa: Option<u32>,
    /// How its address is graded.
    pub grade: u8,
}

/// The port that the rank with index `local` on its node uses: the best address, then the NUMA node `near`, then the
/// fastest; ranks of a node take equals in turn.
pub fn best(candidates: &[Candidate], near: Option<u32>, local: u32) -> Option<usize> {
    let key = |c: &Candidate| (c.grade, near.is_some() && c.numa == near, c.speed);
    let top = candidates.iter().map(key).max()?;
    let equals: Vec<usize> = (0..candidates.len()).filter(|&i| key(&candidates[i]) == top).collect();
    Some(equals[local as usize % equals.len()])
}

/// The active ports of a device that have an address.
fn usable(device: &Arc<Device>) -> Result<Vec<Choice>, VerbsError> {
    let ports = device.ports()?;
    let number = ports.first().map_or(1, |p| p.number);
    let active: Vec<Port> = ports.into_iter().filter(|p| p.is_active).collect();
    if active.is_empty() {
        return Err(VerbsError::NoPort { device: device.name().to_owned() });
    }
    let choice = |port: Port| {
        let (gid, _) = best_gid(&port.gids)?;
        Some(Choice { device: Arc::clone(device), port, gid })
    };
    let found: Vec<Choice> = active.into_iter().filter_map(choice).collect();
    if found.is_empty() {
        return Err(VerbsError::NoGid { device: device.name().to_owned(), port: number });
    }
    Ok(found)
}

/// The rails of the rank with index `local` on its node: the devices named, or the one that is best.
///
/// # Errors
/// [`VerbsError`] for a machine without a device, a device that is not there or cannot be used.
pub fn choose(names: &[String], near: Option<u32>, local: u32) -> Result<Vec<Choice>, VerbsError> {
    let devices = devices()?;
    if !names.is_empty() {
        return names.iter().map(|name| named(&devices, name)).collect();
    }
    let (mut found, mut problem) = (Vec::new(), None);
    for device in devices {
        match device.and_then(|device| usable(&device)) {
            Ok(choices) => found.extend(choices),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    let candidate = |c: &Choice| Candidate { speed: c.port.speed, numa: c.device.numa(), grade: grade(&c.gid).0 };
    let candidates: Vec<Candidate> = found.iter().map(candidate).collect();
    match best(&candidates, near, local) {
        Some(index) => Ok(vec![found.swap_remove(index)]),
        None => Err(problem.unwrap_or(VerbsError::NoDevice)),
    }
}

fn named(devices: &[Result<Arc<Device>, VerbsError>], name: &str) -> Result<Choice, VerbsError> {
    let is_wanted = |d: &&Result<Arc<Device>, VerbsError>| match d {
        Ok(device) => device.name() == name,
        Err(VerbsError::Permission { device } | VerbsError::Call { device, .. }) => device == name,
        Err(_) => false,
    };
    match devices.iter().find(is_wanted) {
        Some(Ok(device)) => Ok(usable(device)?.swap_remove(0)),
        Some(Err(VerbsError::Permission { device })) => Err(VerbsError::Permission { device: device.clone() }),
        _ => {
            let names: Vec<&str> = devices.iter().filter_map(|d| d.as_ref().ok()).map(|d| d.name()).collect();
            let found = if names.is_empty() { "none that can be opened".to_owned() } else { names.join(", ") };
            Err(VerbsError::NotFound { name: name.to_owned(), found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, kind: GidKind, head: &[u8]) -> Gid {
        let mut bytes = [0; 16];
        bytes[..head.len()].copy_from_slice(head);
        Gid { index, bytes, kind }
    }

    #[test]
    fn roce_v2_that_can_be_routed_is_preferred() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];
        let table = [
            gid(0, GidKind::RoceV1, &[0xfe, 0x80]),
            gid(1, GidKind::RoceV2, &[0xfe, 0x80]),
            gid(2, GidKind::RoceV1, &ipv4),
            gid(3, GidKind::RoceV2, &ipv4),
            gid(4, GidKind::RoceV2, &ipv4),
        ];
        for (count, index) in [(5, 3), (3, 1), (1, 0)] {
            assert_eq!(best_gid(&table[..count]).map(|(g, _)| g.index), Some(index));
        }
        assert_eq!(best_gid(&[]), None);
    }

    #[test]
    fn near_beats_fast_and_equals_are_taken_in_turn() {
        let port = |speed, numa, grade| Candidate { speed, numa, grade };
        let ports = [port(1000, Some(0), 4), port(4000, Some(1), 4), port(4000, Some(1), 4), port(8000, Some(0), 1)];
        assert_eq!(best(&ports, Some(0), 0), Some(0));
        assert_eq!([0, 1, 2].map(|local| best(&ports, None, local)), [Some(1), Some(2), Some(1)]);
        assert_eq!(best(&[], None, 0), None);
    }
}
