//! What has happened to each atom of memory.

use mkernel_core::Span;

use super::clock::Clock;
use super::party::{Party, Race};

/// How an event touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    /// A write that leaves bytes undefined.
    Release,
}

/// The last write of every atom, and the reads since.
#[derive(Debug)]
pub(super) struct Shadow {
    atoms: Vec<History>,
}

#[derive(Clone, Debug, Default)]
struct History {
    write: Option<Written>,
    /// Reads since the write; those that come before a later one of them are dropped, since whatever comes after the
    /// later one comes after them.
    reads: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    event: u32,
    epoch: u32,
    is_released: bool,
}

/// An access that must not be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clash {
    With(u32),
    Undefined(Option<u32>),
}

impl Clash {
    /// The report of a clash of `party` over `span`.
    pub(super) fn name(self, party: Party, span: &Span, parties: &[Party]) -> Race {
        match self {
            Clash::With(first) => Race::Unordered { first: parties[first as usize], second: party, span: *span },
            Clash::Undefined(last) => {
                Race::Undefined { reader: party, last: last.map(|event| parties[event as usize]), span: *span }
            }
        }
    }
}

impl Shadow {
    pub(super) fn new(atoms: usize) -> Shadow {
        Shadow { atoms: vec![History::default(); atoms] }
    }

    /// Enters an access of `event`; `before` is all that happens before it.
    pub(super) fn touch(
        &mut self,
        atom: u32,
        event: u32,
        epoch: u32,
        access: Access,
        before: &Clock,
    ) -> Result<(), Clash> {
        let history = &mut self.atoms[atom as usize];
        if let Some(written) = history.write.filter(|w| w.event != event && !before.has(w.event)) {
            return Err(Clash::With(written.event));
        }
        if access == Access::Read {
            match history.write {
                Some(w) if !w.is_released && w.epoch == epoch => {}
                last => return Err(Clash::Undefined(last.map(|w| w.event))),
            }
            history.reads.retain(|&read| !before.has(read));
            history.reads.push(event);
            return Ok(());
        }
        if let Some(&read) = history.reads.iter().find(|&&read| !before.has(read)) {
            return Err(Clash::With(read));
        }
        history.reads.clear();
        history.write = Some(Written { event, epoch, is_released: access == Access::Release });
        Ok(())
    }
}
