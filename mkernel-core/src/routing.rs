//! Routing of tokens to experts: what every rank works out alike from the table of chosen experts.
//!
//! The **table** holds, for each token, `topk` expert numbers; a negative one is a dropped slot. An expert multiplies a
//! token once, however many of the token's slots name it: the unit of work is a **pair** of a token and an expert.
//!
//! Experts of a rank are consecutive, and so are those of a node, so that "has an expert there" is a range of numbers:
//! [`Experts`]. Rows of tokens that pass such a range travel **packed**, in token order. So anyone who has the table
//! knows who is at which place, and no place ever travels.
//!
//! The **index** of a rank says where its pairs are and where their results go. Its three tables are plain u32 words:
//!
//! - `tiles`: for each tile slot of the rank, a [`Tile`]; slots in use come first, in the order in which their last rows
//!   arrive, and the others have no rows;
//! - `rows`: for each pair, expert by expert and in order of arrival within an expert, the row of the gathered tokens;
//! - `places`: for each token and slot of the table, the row of the results, or [`NOWHERE`] if the expert is another
//!   rank's or the slot is dropped. Row `r` of tile slot `s` is row `s * tile + r` of the results.
//!
//! Counting pairs per run of tokens and expert, prefix sums over the counts and filling the tables are three passes
//! that divide by runs of tokens.

use std::ops::Range;

/// The row of a slot without a result on this rank.
pub const NOWHERE: u32 = u32::MAX;

/// The experts `first..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Experts {
    /// The first.
    pub first: u32,
    /// One past the last.
    pub end: u32,
}

impl Experts {
    /// How many there are.
    pub const fn len(&self) -> u32 {
        self.end - self.first
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// The place of expert `id` among these, if it is one of them.
    pub fn position(&self, id: i32) -> Option<u32> {
        let id = u32::try_from(id).ok()?;
        (self.first..self.end).contains(&id).then(|| id - self.first)
    }

    /// Whether a token with these slots has one of the experts.
    pub fn wants(&self, slots: &[i32]) -> bool {
        slots.iter().any(|&id| self.position(id).is_some())
    }
}

/// A slot of the flat list of tiles of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The expert, counted from the rank's first.
    pub expert: u32,
    /// The tile's first pair in `rows`.
    pub first: u32,
    /// Its pairs; zero for a slot that is not in use.
    pub rows: u32,
    /// The runs of tokens that land on the rank, numbered by arrival, that hold the tile's rows.
    pub landings: Range<u32>,
}

impl Tile {
    /// Words of one entry.
    pub const WORDS: usize = 5;

    /// The entry.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.expert, self.first, self.rows, self.landings.start, self.landings.end]
    }

    /// The tile of an entry.
    pub fn of(words: [u32; Self::WORDS]) -> Tile {
        let [expert, first, rows, start, end] = words;
        Tile { expert, first, rows, landings: start..end }
    }
}

/// The most pairs that `experts` experts can have of `tokens` tokens with `topk` slots each.
pub fn most_pairs(tokens: u64, topk: u64, experts: u64) -> u64 {
    tokens.saturating_mul(topk.min(experts))
}

/// The most tiles of `tile` rows that those pairs can fill: no slot more than some table uses.
///
/// An expert with a pair fills a tile with it, and another with every `tile` more.
pub fn most_tiles(tokens: u64, topk: u64, experts: u64, tile: u64) -> u64 {
    let pairs = most_pairs(tokens, topk, experts);
    let used = experts.min(pairs);
    used.saturating_add((pairs - used) / tile).min(used.saturating_mul(tokens.div_ceil(tile)))
}

/// One pair of an expert.
#[derive(Clone, Copy, Debug)]
struct Pair {
    row: u32,
    run: u32,
}

/// Works out the index of one rank, run of tokens after run of tokens.
#[derive(Debug)]
pub struct Router {
    experts: Experts,
    topk: usize,
    runs: u32,
    pairs: Vec<Vec<Pair>>,
    /// Token, slot, expert and number within the expert of every slot that has a result here.
    slots: Vec<(u32, u32, u32, u32)>,
}

/// The index of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The tiles in use, in order.
    pub tiles: Vec<Tile>,
    /// The row of every pair.
    pub rows: Vec<u32>,
    /// The result of every slot, token after token.
    pub places: Vec<u32>,
}

/// Where the rows of a run of tokens lie on the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// All of them, each in its own place.
    Own,
    /// Those with an expert on the rank, packed from the place of the run's first token.
    Landed,
}

impl Router {
    /// A router for the rank that has `experts`, of a table with `topk` slots a token.
    pub fn new(experts: Experts, topk: usize) -> Router {
        let pairs = vec![Vec::new(); experts.len() as usize];
        Router { experts, topk, runs: 0, pairs, slots: Vec::new() }
    }

    /// Takes the next run in order of arrival: its first token and its part of the table. Runs that land are numbered
    /// from zero; the rank's own tokens come first.
    ///
    /// # Panics
    /// If the part of the table is not whole tokens.
    pub fn run(&mut self, run: Run, first: u32, table: &[i32]) {
        assert!(table.len().is_multiple_of(self.topk), "{} slots are not whole tokens", table.len());
        let number = if run == Run::Own { 0 } else { self.runs + 1 };
        self.runs = number;
        let mut packed = first;
        for (token, slots) in (first..).zip(table.chunks_exact(self.topk)) {
            let row = if run == Run::Own { token } else { packed };
            packed += u32::from(self.experts.wants(slots));
            for (slot, &id) in slots.iter().enumerate() {
                let Some(expert) = self.experts.position(id) else { continue };
                let pairs = &mut self.pairs[expert as usize];
                if pairs.last().is_none_or(|p| (p.row, p.run) != (row, number)) {
                    pairs.push(Pair { row, run: number });
                }
                self.slots.push((token, slot as u32, expert, pairs.len() as u32 - 1));
            }
        }
    }

    /// The index, for tiles of `tile` rows and a table of `tokens` tokens.
    pub fn finish(self, tile: u32, tokens: u64) -> Index {
        let mut order: Vec<(u32, u32, u32)> = Vec::new();
        for (expert, pairs) in self.pairs.iter().enumerate() {
            let blocks = pairs.chunks(tile as usize).enumerate();
            order.extend(blocks.map(|(block, pairs)| (pairs[pairs.len() - 1].run, expert as u32, block as u32)));
        }
        order.sort_unstable();
        let mut starts = Vec::with_capacity(self.pairs.len());
        let mut rows = Vec::new();
        for pairs in &self.pairs {
            starts.push(rows.len() as u32);
            rows.extend(pairs.iter().map(|p| p.row));
        }
        let mut slot_of: Vec<Vec<u32>> = self.pairs.iter().map(|p| vec![0; p.len().div_ceil(tile as usize)]).collect();
        let mut tiles = Vec::with_capacity(order.len());
        for (slot, &(last, expert, block)) in order.iter().enumerate() {
            slot_of[expert as usize][block as usize] = slot as u32;
            let pairs = &self.pairs[expert as usize][(block * tile) as usize..];
            let count = pairs.len().min(tile as usize) as u32;
            // Run 0 is the rank's own, so landing l is run l + 1.
            let landings = pairs[0].run.saturating_sub(1)..last;
            tiles.push(Tile { expert, first: starts[expert as usize] + block * tile, rows: count, landings });
        }
        let mut places = vec![NOWHERE; tokens as usize * self.topk];
        for (token, slot, expert, pair) in self.slots {
            let at = token as usize * self.topk + slot as usize;
            places[at] = slot_of[expert as usize][(pair / tile) as usize] * tile + pair % tile;
        }
        Index { tiles, rows, places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_come_in_order_of_arrival_and_repeated_slots_share_a_pair() {
        let mut router = Router::new(Experts { first: 2, end: 4 }, 2);
        router.run(Run::Own, 4, &[2, 2, -1, 0]);
        router.run(Run::Landed, 0, &[0, 1, 3, 2, 2, 3]);
        let index = router.finish(2, 6);
        assert_eq!(index.rows, [4, 0, 1, 0, 1]);
        let tile = |expert, first, rows, landings| Tile { expert, first, rows, landings };
        assert_eq!(index.tiles, [tile(0, 0, 2, 0..1), tile(0, 2, 1, 0..1), tile(1, 3, 2, 0..1)]);
        let x = NOWHERE;
        assert_eq!(index.places, [x, x, 4, 1, 2, 5, x, x, 0, 0, x, x]);
    }

    #[test]
    fn the_most_tiles_are_those_of_the_worst_table() {
        for (tokens, experts, topk, tile) in
            [(1u64, 1u32, 1usize, 1u32), (3, 2, 1, 2), (4, 3, 2, 2), (3, 3, 3, 2), (5, 2, 2, 4)]
        {
            // Every table, token after token as digits in base `experts + 1`.
            let slots = tokens as usize * topk;
            let tables = (experts as usize + 1).pow(slots as u32);
            let worst = (0..tables).map(|number| {
                let digit =
                    |at: usize| (number / (experts as usize + 1).pow(at as u32) % (experts as usize + 1)) as i32 - 1;
                let mut router = Router::new(Experts { first: 0, end: experts }, topk);
                router.run(Run::Own, 0, &(0..slots).map(digit).collect::<Vec<_>>());
                router.finish(tile, tokens).tiles.len() as u64
            });
            let most = most_tiles(tokens, topk as u64, experts.into(), tile.into());
            assert_eq!(worst.max(), Some(most), "{tokens} tokens, {experts} experts, top {topk}, tiles of {tile}");
        }
    }

    #[test]
    fn a_tile_of_own_tokens_waits_for_nothing() {
        let mut router = Router::new(Experts { first: 0, end: 1 }, 1);
        router.run(Run::Own, 0, &[0, 0, 0]);
        router.run(Run::Landed, 3, &[-1]);
        router.run(Run::Landed, 4, &[0]);
        let landings: Vec<_> = router.finish(2, 5).tiles.into_iter().map(|t| t.landings).collect();
        assert_eq!(landings, [0..0, 0..2]);
    }
}
