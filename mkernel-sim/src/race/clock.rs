//! Sets of events: a vector clock in which every event is a process of its own.

/// A set of events, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    words: Vec<u64>,
}

impl Clock {
    pub(super) fn insert(&mut self, event: u32) {
        let word = event as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (event % 64);
    }

    pub(super) fn has(&self, event: u32) -> bool {
        self.words.get(event as usize / 64).is_some_and(|word| word >> (event % 64) & 1 == 1)
    }

    pub(super) fn join(&mut self, other: &Clock) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }
}
