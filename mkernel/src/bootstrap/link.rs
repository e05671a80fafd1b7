//! One connection: bytes out of a queue, bytes in, never blocking unless asked to wait.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of one read.
pub(crate) const READ_BYTES: usize = 32 * 1024;

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(usize),
    Nothing,
    /// The peer closed, or the connection broke.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    queue: VecDeque<Arc<[u8]>>,
    /// Bytes of the first queue entry that are sent.
    sent: usize,
    is_shut: bool,
}

impl Link {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, queue: VecDeque::new(), sent: 0, is_shut: false })
    }

    pub(crate) fn queue(&mut self, bytes: Arc<[u8]>) {
        self.queue.push_back(bytes);
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends what the socket takes. `false` if the connection broke.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(first) = self.queue.front() {
            match self.stream.write(&first[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    if self.sent == first.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => {
                    tracing::debug!(%error, "send failed");
                    self.queue.clear();
                    return false;
                }
            }
        }
        true
    }

    /// Tells the peer that nothing follows. It still reads what was sent: closing now, with bytes of the peer unread,
    /// would reset the connection and destroy them.
    pub(crate) fn shut(&mut self) {
        if !self.is_shut {
            self.is_shut = true;
            if let Err(error) = self.stream.shutdown(Shutdown::Write) {
                tracing::debug!(%error, "shutdown failed");
            }
        }
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        match self.stream.read(buffer) {
            Ok(0) => Received::Closed,
            Ok(count) => Received::Bytes(count),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Received::Nothing,
            Err(error) => {
                tracing::debug!(%error, "receive failed");
                Received::Closed
            }
        }
    }

    /// As [`Link::receive`], but waits for bytes up to `wait`.
    pub(crate) fn receive_within(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<Received> {
        let received = self.receive(buffer);
        if received != Received::Nothing || wait.is_zero() {
            return Ok(received);
        }
        self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        self.stream.set_nonblocking(false)?;
        let received = self.receive(buffer);
        self.stream.set_nonblocking(true)?;
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_shut_link_ends_for_its_peer_after_what_was_sent_and_still_hears_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = Link::new(listener.accept().unwrap().0).unwrap();
        link.queue((*b"last words").into());
        assert!(link.flush() && link.is_flushed());
        link.shut();
        let mut heard = Vec::new();
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        peer.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"last words");
        peer.write_all(b"reply").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(link.receive_within(&mut buffer, Duration::from_secs(60)).unwrap(), Received::Bytes(5));
        assert_eq!(link.receive_within(&mut buffer, Duration::from_millis(1)).unwrap(), Received::Nothing);
        drop(peer);
        assert_eq!(link.receive_within(&mut buffer, Duration::from_secs(60)).unwrap(), Received::Closed);
    }
}
