//! Where rank 0 listens: no wider than it must, and wherever the others may look for it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use super::error::Error;

/// Listens at the first port that is free.
pub(crate) fn listen(host: &str, ports: &[u16]) -> Result<Vec<TcpListener>, Error> {
    let mut last = io::Error::from(ErrorKind::InvalidInput);
    for port in ports {
        match listen_at(host, *port) {
            Ok(listeners) => return Ok(listeners),
            Err(error) => {
                let is_taken = error.kind() == ErrorKind::AddrInUse;
                last = error;
                if !is_taken {
                    break;
                }
            }
        }
    }
    Err(Error::Listen { host: host.to_owned(), ports: ports.to_vec(), source: last })
}

fn listen_at(host: &str, port: u16) -> io::Result<Vec<TcpListener>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return listen_at_address(address, port);
    }
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    if addresses.iter().all(|address| address.ip().is_loopback()) {
        // One host: stay invisible to others.
        listen_at_all(&addresses)
    } else {
        // A name may stand for another address on this host than on its peers.
        listen_at_all(&[(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()])
    }
}

fn listen_at_address(address: IpAddr, port: u16) -> io::Result<Vec<TcpListener>> {
    let any = match address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    match bind((address, port).into()) {
        // The address is translated on the way to this host.
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => listen_at_all(&[(any, port).into()]),
        bound => Ok(vec![bound?]),
    }
}

/// Listens at each address that this host has; at least one.
fn listen_at_all(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match bind(*address) {
            Ok(listener) => listeners.push(listener),
            // One listener may serve both families, and a name may list an address twice: then the first has it.
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_served(&listeners, *address) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
            // The host lacks a family of addresses.
            Err(error) => last = error,
        }
    }
    if listeners.is_empty() { Err(last) } else { Ok(listeners) }
}

fn is_served(listeners: &[TcpListener], address: SocketAddr) -> bool {
    let serves = |bound: SocketAddr| bound == address || bound.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED);
    listeners.iter().any(|listener| listener.local_addr().is_ok_and(serves))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// A port that nothing holds on any address, below those that the system hands out; each test has a slot.
    fn free_port(slot: u16) -> u16 {
        let first = 22_500 + slot * 100;
        let is_free = |port: &u16| {
            let any = [(Ipv6Addr::UNSPECIFIED, *port).into(), (Ipv4Addr::UNSPECIFIED, *port).into()];
            listen_at_all(&any).is_ok()
        };
        (first..first + 100).cycle().skip(std::process::id() as usize % 100).take(100).find(is_free).unwrap()
    }

    fn reaches(host: &str, port: u16) -> bool {
        TcpStream::connect((host, port)).is_ok()
    }

    #[test]
    fn a_loopback_name_is_heard_on_loopback_only() {
        let listeners = listen_at("localhost", free_port(0)).unwrap();
        assert!(listeners.iter().all(|listener| listener.local_addr().unwrap().ip().is_loopback()));
    }

    #[test]
    fn both_families_are_heard_where_the_name_is_not_loopback() {
        let port = free_port(1);
        let both = [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
        let _listeners = listen_at_all(&both).unwrap();
        assert!(reaches("127.0.0.1", port));
        assert!(reaches("::1", port) || TcpListener::bind("[::1]:0").is_err());
    }

    #[test]
    fn an_address_that_is_not_of_this_host_is_heard_on_all_of_its_family() {
        // Reserved for documentation.
        let port = free_port(2);
        let listeners = listen_at("203.0.113.1", port).unwrap();
        assert_eq!(listeners[0].local_addr().unwrap(), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        assert!(reaches("127.0.0.1", port));
    }

    #[test]
    fn a_port_in_use_on_one_address_is_in_use() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        assert_eq!(listen_at("localhost", port).unwrap_err().kind(), ErrorKind::AddrInUse);
        let both = [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
        assert_eq!(listen_at_all(&both).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
