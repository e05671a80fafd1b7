//! The requests of one queue pair that are posted and not known to be complete.
//!
//! # No queue ever overflows
//! A window holds at most [`Window::most`] requests, and a request enters it before it is posted and leaves it after its
//! completion, or that of a later one on a queue pair that keeps order, has been polled. So
//! - a send queue made for `most` requests always has a slot for the next one;
//! - a request leads to at most one completion, so the completions of a queue pair that wait to be polled are never more
//!   than `most`. A completion queue made for the sum of `most` over its queue pairs, and one more for each receive
//!   request that is posted, always has room.
//!
//! # Completions that come twice
//! Ids count up and are never used again. A completion of a request that has left the window says nothing new.

use std::collections::VecDeque;

use mkernel_core::transport::Ordering;

/// The requests on their way, in the order of their posts.
#[derive(Debug)]
pub struct Window {
    slots: VecDeque<Slot>,
    /// The id of the first.
    base: u64,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    token: u64,
    /// Whether it is the last of its put.
    is_last: bool,
    is_done: bool,
}

impl Window {
    /// An empty window for `most` requests, at least 1.
    pub fn new(most: u32) -> Window {
        let most = most.max(1) as usize;
        Window { slots: VecDeque::with_capacity(most), base: 0, most }
    }

    /// Most requests at once.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether no request may enter now.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.slots.len() == self.most
    }

    /// Requests on their way, or about to be.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Lets a request of the put `token` enter; answers its id.
    ///
    /// # Panics
    /// If the window is full.
    #[inline]
    pub fn enter(&mut self, token: u64, is_last: bool) -> u64 {
        assert!(!self.is_full(), "a request enters only where there is room");
        let id = self.base + self.slots.len() as u64;
        self.slots.push_back(Slot { token, is_last, is_done: false });
        id
    }

    /// The put of a request that is still on its way.
    pub fn token(&self, id: u64) -> Option<u64> {
        let index = usize::try_from(id.checked_sub(self.base)?).ok()?;
        self.slots.get(index).map(|slot| slot.token)
    }

    /// Takes note of a completion and appends the puts that are complete now, in the order of their posts.
    pub fn complete(&mut self, id: u64, ordering: Ordering, retired: &mut Vec<u64>) {
        let Some(index) = id.checked_sub(self.base).map(|index| index as usize) else { return };
        if index >= self.slots.len() {
            return;
        }
        let mut leaves = match ordering {
            Ordering::InOrder => index + 1,
            Ordering::Unordered => 0,
        };
        self.slots[index].is_done = true;
        while leaves < self.slots.len() && self.slots[leaves].is_done {
            leaves += 1;
        }
        self.base += leaves as u64;
        retired.extend(self.slots.drain(..leaves).filter(|slot| slot.is_last).map(|slot| slot.token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_completion_stands_for_all_before_it_where_order_is_kept() {
        let (mut window, mut retired) = (Window::new(4), Vec::new());
        let ids: Vec<u64> = [(7, false), (7, true), (8, true)].map(|(token, last)| window.enter(token, last)).into();
        window.complete(ids[1], Ordering::InOrder, &mut retired);
        assert_eq!((retired.as_slice(), window.token(ids[2])), (&[7][..], Some(8)));
        window.complete(ids[2], Ordering::InOrder, &mut retired);
        assert!(retired == [7, 8] && window.is_empty());
    }

    #[test]
    fn without_order_a_put_is_complete_when_all_its_requests_are() {
        let (mut window, mut retired) = (Window::new(3), Vec::new());
        let ids: Vec<u64> = [(7, false), (7, true), (8, true)].map(|(token, last)| window.enter(token, last)).into();
        window.complete(ids[2], Ordering::Unordered, &mut retired);
        window.complete(ids[1], Ordering::Unordered, &mut retired);
        assert!(retired.is_empty() && window.is_full());
        window.complete(ids[0], Ordering::Unordered, &mut retired);
        assert_eq!(retired, [7, 8]);
    }

    #[test]
    fn a_completion_that_comes_twice_or_of_no_request_changes_nothing() {
        for ordering in [Ordering::InOrder, Ordering::Unordered] {
            let (mut window, mut retired) = (Window::new(2), Vec::new());
            let id = window.enter(1, true);
            window.complete(id, ordering, &mut retired);
            let next = window.enter(2, true);
            for stale in [id, id, next + 1, u64::MAX] {
                window.complete(stale, ordering, &mut retired);
            }
            assert_eq!((retired.as_slice(), window.token(next)), (&[1][..], Some(2)));
        }
    }
}
