//! What one worker has in its cache, by its own events; keeps its column of the table.
//!
//! The events name blocks by the engine's own hashes, and a removal has nothing else: so for each of the engine's
//! blocks the chain at its end is kept, and the marks within it.

use std::collections::HashMap;

use prost::Message;

use super::Chain;
use super::events::{Batch, Block, Data, REMOTE, Removed, Stored};
use super::table::Table;
use crate::error::{Code, Error, Result};

/// Blocks of an engine that are kept in mind, 50 bytes each; what it has beyond them is not known.
pub(crate) const MOST_BLOCKS: usize = 1 << 20;
/// Bits of all of a block's places.
const ANYWHERE: u8 = !0;

/// A block that the engine has.
struct Held {
    /// At the block's end.
    chain: Chain,
    /// Marks before its end, where it has more than one.
    within: Box<[u64]>,
    /// A bit for each tier that has it.
    tiers: u8,
}

impl Held {
    fn marks(&self) -> impl Iterator<Item = u64> {
        self.within.iter().copied().chain(self.chain.mark())
    }
}

/// What a message has led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Number of the last batch that was taken in, 0 before the first.
    pub sequence: u64,
    /// The engine's blocks that are known.
    pub blocks: usize,
    /// All that the worker has is known.
    pub whole: bool,
    /// Batches are missing: this one was not taken in, and those from `sequence` + 1 on are to be asked for.
    pub gap: bool,
}

/// Where a batch stands among the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Next,
    /// It has nothing that is not known: was there before, or has a load alone.
    Seen,
    /// After others that are missing.
    Later,
}

/// Follows one subscription, or several where each begins after the one before.
pub struct Follower {
    column: usize,
    blocks: HashMap<i64, Held>,
    /// Marks that are in several blocks, and in how many more than one: pages that are larger than ours may begin
    /// alike.
    shared: HashMap<u64, u32>,
    sequence: u64,
    rank: Option<i32>,
    whole: bool,
    most: usize,
}

impl Follower {
    /// Nothing is known of the worker any more but what it was sent.
    pub fn new(table: &Table, column: usize) -> Self {
        table.set_fed(column, false);
        let (blocks, shared) = (HashMap::new(), HashMap::new());
        Self { column, blocks, shared, sequence: 0, rank: None, whole: false, most: MOST_BLOCKS }
    }

    /// Takes a batch in. Errors: `Worker`, if it cannot be read, or is of another data parallel rank than those before:
    /// each has a cache of its own, and a request finds one of them.
    pub fn apply(&mut self, table: &Table, message: &[u8], now: u32) -> Result<Followed> {
        let batch = Batch::decode(message)
            .map_err(|error| Error::new(Code::Worker, format!("a batch of KV events: {error}")))?;
        let rank = batch.dp_rank.unwrap_or(0);
        if *self.rank.get_or_insert(rank) != rank {
            return Err(Error::new(Code::Worker, "KV events of several data parallel ranks"));
        }
        let place = self.place(table, &batch);
        if place == Place::Next {
            for event in batch.events {
                match event.data {
                    Some(Data::Stored(stored)) => self.store(table, stored, now),
                    Some(Data::Removed(removed)) => self.remove(table, &removed),
                    Some(Data::Cleared(_)) => self.clear(table),
                    None => {}
                }
            }
        }
        table.set_fed(self.column, self.whole);
        let Self { sequence, whole, .. } = *self;
        Ok(Followed { sequence, blocks: self.blocks.len(), whole, gap: place == Place::Later })
    }

    /// The worker's events are not heard any more.
    pub fn end(&self, table: &Table) {
        table.set_fed(self.column, false);
    }

    /// Where the batch stands; notes its number if it comes next.
    fn place(&mut self, table: &Table, batch: &Batch) -> Place {
        let number = batch.sequence_number;
        if let Some(snapshot) = &batch.snapshot {
            if snapshot.index == 0 {
                self.clear(table);
            }
            self.whole = snapshot.unknown_before == 0;
        } else if batch.events.is_empty() {
            // A load alone has the last batch's number, 0 before the first.
            let later = self.sequence != 0 && number > self.sequence;
            return if later { Place::Later } else { Place::Seen };
        } else if number == 1 {
            // The worker's first: nothing was there before it, in this life of its.
            self.clear(table);
            self.whole = true;
        } else if self.sequence != 0 && number <= self.sequence {
            return Place::Seen;
        } else if self.sequence != 0 && number != self.sequence + 1 {
            self.whole = false;
            return Place::Later;
        }
        self.sequence = number;
        Place::Next
    }

    fn store(&mut self, table: &Table, stored: Stored, now: u32) {
        if stored.locality == Some(REMOTE) || stored.group_idx.unwrap_or(0) != 0 {
            return;
        }
        let name = stored.lora_name.as_deref().unwrap_or("");
        let salted = stored.cache_salt.is_some_and(|salt| !salt.is_empty());
        let mut chain = match stored.parent_block_hash {
            Some(parent) => self.blocks.get(&parent).map(|parent| parent.chain),
            None => Some(Chain::new(table.seed(), name)),
        };
        for block in stored.blocks {
            // What else the KV depends on is nothing that a request of ours has, or not known by its name.
            let foreign =
                salted || !block.extra_keys.is_empty() || block.lora_id.is_some() && name.is_empty();
            if foreign || self.blocks.len() >= self.most {
                return;
            }
            let Some(before) = chain else { return };
            chain = Some(self.add(table, before, &block, tier_bit(stored.tier), now));
        }
    }

    fn add(&mut self, table: &Table, mut chain: Chain, block: &Block, tier: u8, now: u32) -> Chain {
        if let Some(held) = self.blocks.get_mut(&block.block_hash) {
            held.tiers |= tier;
            return held.chain;
        }
        let mut within: Vec<u64> = block.token_ids.iter().filter_map(|&id| chain.push(id)).collect();
        for &mark in &within {
            if table.tell(mark, self.column, now) {
                *self.shared.entry(mark).or_default() += 1;
            }
        }
        if chain.mark().is_some() {
            within.pop();
        }
        self.blocks.insert(block.block_hash, Held { chain, within: within.into(), tiers: tier });
        chain
    }

    fn remove(&mut self, table: &Table, removed: &Removed) {
        if removed.locality == Some(REMOTE) || removed.group_idx.unwrap_or(0) != 0 {
            return;
        }
        let tier = removed.tier.map_or(ANYWHERE, |tier| tier_bit(Some(tier)));
        for hash in &removed.block_hashes {
            let Some(held) = self.blocks.get_mut(hash) else { continue };
            held.tiers &= !tier;
            if held.tiers == 0
                && let Some(held) = self.blocks.remove(hash)
            {
                held.marks().for_each(|mark| self.drop_mark(table, mark));
            }
        }
    }

    fn drop_mark(&mut self, table: &Table, mark: u64) {
        match self.shared.get_mut(&mark) {
            None => table.remove(mark, self.column),
            Some(1) => {
                self.shared.remove(&mark);
            }
            Some(more) => *more -= 1,
        }
    }

    fn clear(&mut self, table: &Table) {
        (self.blocks, self.shared) = (HashMap::new(), HashMap::new());
        table.clear(self.column);
    }
}

fn tier_bit(tier: Option<i32>) -> u8 {
    1 << tier.unwrap_or(0).clamp(0, 7)
}

#[cfg(test)]
mod tests {
    use super::super::events::{Cleared, Event, ExtraKey, Snapshot};
    use super::super::marks;
    use super::super::table::tests::memory;
    use super::*;

    const COLUMN: usize = 5;

    fn block(hash: i64, ids: &[u32]) -> Block {
        Block { block_hash: hash, token_ids: ids.to_vec(), lora_id: None, extra_keys: vec![] }
    }

    fn stored(parent: Option<i64>, blocks: Vec<Block>) -> Data {
        Data::Stored(Stored { blocks, parent_block_hash: parent, ..Stored::default() })
    }

    fn removed(hashes: &[i64]) -> Data {
        Data::Removed(Removed { block_hashes: hashes.to_vec(), ..Removed::default() })
    }

    fn batch(number: u64, events: Vec<Data>) -> Vec<u8> {
        let events = events.into_iter().map(|data| Event { data: Some(data) }).collect();
        Batch { sequence_number: number, events, ..Batch::default() }.encode_to_vec()
    }

    fn ids(count: u32) -> Vec<u32> {
        (0..count).map(|at| at * 7).collect()
    }

    fn matched(table: &Table, ids: &[u32]) -> usize {
        let asked: Vec<u64> = marks(table.seed(), "", ids).collect();
        table.known(&asked, COLUMN, 0).matched
    }

    /// A prompt of 160 tokens in blocks of `size`, hashes counting up from 1.
    fn chain(size: usize) -> Data {
        let ids = ids(160);
        let parts = ids.chunks(size).enumerate();
        stored(None, parts.map(|(at, part)| block(at as i64 + 1, part)).collect())
    }

    #[test]
    fn blocks_of_any_size_are_followed() {
        for size in [1, 5, 16, 24, 32, 64] {
            let words = memory(1000);
            let table = Table::new(&words).unwrap();
            let mut follower = Follower::new(&table, COLUMN);
            let told = follower.apply(&table, &batch(1, vec![chain(size)]), 0).unwrap();
            let count = 160_usize.div_ceil(size);
            assert_eq!(told, Followed { sequence: 1, blocks: count, whole: true, gap: false });
            assert_eq!(matched(&table, &ids(160)), 10);
            assert!(table.is_fed(COLUMN));
            // From the end, as engines do.
            for left in (0..count).rev() {
                let number = (count - left + 1) as u64;
                follower.apply(&table, &batch(number, vec![removed(&[left as i64 + 1])]), 0).unwrap();
                assert_eq!(matched(&table, &ids(160)), left * size / 16, "{size} {left}");
            }
            assert_eq!(table.held(COLUMN), 0);
        }
    }

    #[test]
    fn branches_stand_on_what_they_have_in_common() {
        let words = memory(1000);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        let other: Vec<u32> = [&ids(32)[..], &[9; 16]].concat();
        let events = vec![chain(16), stored(Some(2), vec![block(99, &[9; 16])])];
        follower.apply(&table, &batch(1, events), 0).unwrap();
        assert_eq!((matched(&table, &ids(160)), matched(&table, &other)), (10, 3));
        follower.apply(&table, &batch(2, vec![stored(Some(4711), vec![block(5, &[1; 16])])]), 0).unwrap();
        assert_eq!(table.held(COLUMN), 11);
        follower.apply(&table, &batch(3, vec![Data::Cleared(Cleared {})]), 0).unwrap();
        assert_eq!((matched(&table, &other), table.held(COLUMN)), (0, 0));
    }

    #[test]
    fn pages_that_begin_alike_do_not_take_each_other_s_blocks_along() {
        let words = memory(1000);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        let other: Vec<u32> = [&ids(40)[..], &[9; 24]].concat();
        let third: Vec<u32> = [&ids(20)[..], &[8; 44]].concat();
        let pages = [&ids(64)[..], &other, &third].map(|ids| ids.to_vec());
        let events = pages.iter().enumerate().map(|(at, page)| stored(None, vec![block(at as i64, page)]));
        follower.apply(&table, &batch(1, events.collect()), 0).unwrap();
        let mut left = |number, hash| {
            follower.apply(&table, &batch(number, vec![removed(&[hash])]), 0).unwrap();
            pages.each_ref().map(|page| matched(&table, page))
        };
        assert_eq!(left(2, 1), [4, 2, 4]);
        assert_eq!(left(3, 0), [1, 1, 4]);
        assert_eq!(left(4, 2), [0, 0, 0]);
        assert!(follower.shared.is_empty());
    }

    #[test]
    fn a_gap_is_told_and_a_new_life_begins_at_1() {
        let words = memory(1000);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        let mut apply = |number, events| follower.apply(&table, &batch(number, events), 0).unwrap();
        let blind = apply(7, vec![chain(16)]);
        assert_eq!(blind, Followed { sequence: 7, blocks: 10, whole: false, gap: false });
        assert!(!table.is_fed(COLUMN));
        assert!(!apply(7, vec![]).gap);
        assert!(!apply(0, vec![]).gap);
        assert!(apply(9, vec![]).gap);
        let gap = apply(9, vec![removed(&[10])]);
        assert_eq!(gap, Followed { sequence: 7, blocks: 10, whole: false, gap: true });
        assert!(!apply(8, vec![removed(&[10])]).gap);
        assert_eq!(matched(&table, &ids(160)), 9);
        let anew = apply(1, vec![stored(None, vec![block(3, &ids(16))])]);
        assert_eq!(anew, Followed { sequence: 1, blocks: 1, whole: true, gap: false });
        assert_eq!((matched(&table, &ids(160)), table.is_fed(COLUMN)), (1, true));
        assert!(apply(3, vec![removed(&[3])]).gap);
        assert!(!table.is_fed(COLUMN));
    }

    #[test]
    fn a_batch_that_comes_twice_is_taken_in_once() {
        let words = memory(1000);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        let mut apply = |number, events| follower.apply(&table, &batch(number, events), 0).unwrap();
        apply(1, vec![chain(16)]);
        apply(2, vec![removed(&[10])]);
        apply(3, vec![stored(Some(9), vec![block(10, &ids(160)[144..])])]);
        for number in [3, 2] {
            let again = apply(number, vec![removed(&[10])]);
            assert_eq!(again, Followed { sequence: 3, blocks: 10, whole: true, gap: false });
        }
        assert_eq!((matched(&table, &ids(160)), table.is_fed(COLUMN)), (10, true));
        assert_eq!(apply(4, vec![removed(&[10])]).sequence, 4);
    }

    #[test]
    fn a_snapshot_takes_the_place_of_what_was_known() {
        let words = memory(1000);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        follower.apply(&table, &batch(1, vec![chain(16)]), 0).unwrap();
        for index in 0..2_usize {
            let part = block(index as i64, &ids(32)[index * 16..][..16]);
            let data = Some(stored((index > 0).then_some(0), vec![part]));
            let snapshot = Some(Snapshot { index: index as u32, unknown_before: 0 });
            let batch = Batch { sequence_number: 50, events: vec![Event { data }], dp_rank: None, snapshot };
            let told = follower.apply(&table, &batch.encode_to_vec(), 0).unwrap();
            assert_eq!((told.sequence, told.whole, told.gap), (50, true, false));
            assert_eq!(matched(&table, &ids(160)), index + 1);
        }
        assert!(!follower.apply(&table, &batch(51, vec![removed(&[1])]), 0).unwrap().gap);
        assert_eq!(matched(&table, &ids(160)), 1);
    }

    #[test]
    fn a_block_is_there_until_its_last_tier_drops_it() {
        let words = memory(100);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        let at = |tier| {
            let blocks = vec![block(1, &ids(16))];
            Data::Stored(Stored { blocks, tier: Some(tier), ..Stored::default() })
        };
        let from = |tier| Data::Removed(Removed { block_hashes: vec![1], tier, ..Removed::default() });
        follower.apply(&table, &batch(1, vec![at(1), at(2), from(Some(1))]), 0).unwrap();
        assert_eq!(matched(&table, &ids(16)), 1);
        follower.apply(&table, &batch(2, vec![from(Some(2))]), 0).unwrap();
        assert_eq!(matched(&table, &ids(16)), 0);
        follower.apply(&table, &batch(3, vec![at(1), at(2), from(None)]), 0).unwrap();
        assert_eq!(matched(&table, &ids(16)), 0);
    }

    #[test]
    fn what_depends_on_more_than_tokens_is_not_taken_for_them() {
        let words = memory(100);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower::new(&table, COLUMN);
        let plain = Stored { blocks: vec![block(1, &ids(16))], ..Stored::default() };
        let image = Block { extra_keys: vec![ExtraKey {}], ..block(2, &ids(16)) };
        let unnamed = Block { lora_id: Some(3), ..block(3, &ids(16)) };
        let named = Stored { blocks: vec![unnamed.clone()], lora_name: Some("l".into()), ..plain.clone() };
        let events = vec![
            Data::Stored(Stored { cache_salt: Some("x".into()), ..plain.clone() }),
            Data::Stored(Stored { locality: Some(REMOTE), ..plain.clone() }),
            Data::Stored(Stored { group_idx: Some(1), ..plain.clone() }),
            stored(None, vec![image]),
            stored(None, vec![unnamed]),
        ];
        let told = follower.apply(&table, &batch(1, events), 0).unwrap();
        assert_eq!((told.blocks, table.held(COLUMN)), (0, 0));
        follower.apply(&table, &batch(2, vec![Data::Stored(named)]), 0).unwrap();
        let adapted: Vec<u64> = marks(table.seed(), "l", &ids(16)).collect();
        assert_eq!((table.known(&adapted, COLUMN, 0).matched, matched(&table, &ids(16))), (1, 0));
    }

    #[test]
    fn memory_is_bounded_and_garbage_is_an_error() {
        let words = memory(100);
        let table = Table::new(&words).unwrap();
        let mut follower = Follower { most: 4, ..Follower::new(&table, COLUMN) };
        let told = follower.apply(&table, &batch(1, vec![chain(16)]), 0).unwrap();
        assert_eq!((told.blocks, matched(&table, &ids(160))), (4, 4));
        let other = Batch { sequence_number: 2, dp_rank: Some(1), ..Batch::default() }.encode_to_vec();
        for message in [b"\xff", &other[..]] {
            assert_eq!(follower.apply(&table, message, 0).unwrap_err().code, Code::Worker);
        }
        follower.end(&table);
        assert!(!table.is_fed(COLUMN));
    }
}
