//! `mkernel nics`.

use super::args::NicsArgs;
use super::usage::Stop;

#[cfg(not(feature = "rdma"))]
pub(crate) fn nics(_: &NicsArgs) -> Result<String, Stop> {
    Err(super::usage::Usage::NoRdma { what: "`mkernel nics`" }.into())
}

/// The list of NICs, and the choice.
#[cfg(feature = "rdma")]
pub(crate) fn nics(args: &NicsArgs) -> Result<String, Stop> {
    listed::list(args.local_rank).map_err(|error| Stop::Failed(error.into()))
}

#[cfg(feature = "rdma")]
mod listed {
    use std::fmt::Write;
    use std::net::Ipv6Addr;

    use mkernel_rdma::verbs::choose::best_gid;
    use mkernel_rdma::verbs::device::{Device, Gid, GidKind, Port};
    use mkernel_rdma::verbs::{VerbsError, choose, devices};

    pub(super) fn list(local: u32) -> Result<String, VerbsError> {
        let mut text = String::new();
        for device in devices()? {
            match device {
                Ok(device) => text.push_str(&device_lines(&device)?),
                Err(error) => line(&mut text, format_args!("{error}")),
            }
        }
        match choose(&[], None, local) {
            Ok(choices) => {
                for choice in choices {
                    let (name, port, gid) = (choice.device.name(), choice.port.number, choice.gid);
                    let why = best_gid(&[gid]).map_or("", |(_, why)| why);
                    let place = format!("{name} port {port} gid {} ({})", gid.index, address(&gid));
                    line(
                        &mut text,
                        format_args!("local rank {local} uses {place}: {why}, active, fastest of its kind"),
                    );
                }
            }
            Err(error) => line(&mut text, format_args!("nothing can be used: {error}")),
        }
        Ok(text)
    }

    fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
        writeln!(text, "{what}").expect("a string takes any text");
    }

    fn device_lines(device: &Device) -> Result<String, VerbsError> {
        let mut text = String::new();
        let numa = device.numa().map_or_else(|| "no NUMA node".to_owned(), |node| format!("NUMA node {node}"));
        for port in device.ports()? {
            let Port { number, is_active, speed, is_ethernet, .. } = port;
            let state = if is_active { "active" } else { "down" };
            let layer = if is_ethernet { "Ethernet" } else { "InfiniBand" };
            let speed = format!("{}.{} Gb/s", speed / 10, speed % 10);
            let head = format!("{} port {number}: {state}, {layer}, {speed}", device.name());
            line(&mut text, format_args!("{head}, MTU {}, {numa}", port.mtu_bytes()));
            for gid in &port.gids {
                line(&mut text, format_args!("  gid {}: {} {}", gid.index, address(gid), kind(gid.kind)));
            }
        }
        Ok(text)
    }

    /// An IPv4 address as such.
    fn address(gid: &Gid) -> String {
        let address = Ipv6Addr::from(gid.bytes);
        address.to_ipv4_mapped().map_or_else(|| address.to_string(), |ipv4| ipv4.to_string())
    }

    fn kind(kind: GidKind) -> &'static str {
        match kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        }
    }
}
