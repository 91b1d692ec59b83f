//! A lossy table of (mark, worker's column) in memory that the processes of a server share.
//!
//! No locks: a slot is one word, read and written in one go, and whatever a race may lose is a hint that is made
//! again. Sets of eight slots, a cache line; where one is full, what was used longest ago goes.
//!
//! A slot is there for each block of each worker, found by both: a system prompt that all workers have fills no
//! set. A worker's blocks are closed under "before" (an engine drops a block before the one it stands on), so its
//! longest match is found by halving, and costs a few cache lines a worker, however long the prompt is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::fold;

/// Words before the slots: the seed, then each column's count of blocks, then whether it is fed by events.
pub(crate) const HEADER: usize = 2048;
/// Workers' columns.
pub(crate) const COLUMNS: usize = 512;
const COUNTS: usize = 512;
const FED: usize = 1024;

const WAYS: usize = 8;
/// How long a block is believed to come that a fed worker was sent but has not told of, in seconds: the time that
/// a prompt may wait for its turn.
const EXPECTED: u16 = 60;

// A slot: 38 bits of the key (never 0), 9 of the column, told by an event or only expected, second of last use.
const STAMP: u64 = 0xffff;
const TOLD: u64 = 1 << 16;
const COLUMN_SHIFT: u32 = 17;
const NAME: u64 = !0 << COLUMN_SHIFT;
const COLUMN_KEY: u64 = 0xd6e8_feb8_6659_fd93;

/// What is known of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Blocks of the prompt, from its beginning, that it has.
    pub matched: usize,
    /// Blocks that it has in all.
    pub held: u64,
    /// Its own events say so; else they are what it was sent.
    pub fed: bool,
}

/// A view of the memory; zeros are an empty table.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    words: &'a [AtomicU64],
    slots: &'a [AtomicU64],
}

/// Where a block is looked for, and under which name.
struct Place<'a> {
    set: &'a [AtomicU64],
    name: u64,
}

impl Place<'_> {
    fn find(&self) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let slots = self.set.iter().map(|slot| (slot, slot.load(Relaxed)));
        slots.filter(|(_, value)| value & NAME == self.name)
    }
}

impl<'a> Table<'a> {
    /// None if the memory is too small for a set.
    pub fn new(words: &'a [AtomicU64]) -> Option<Self> {
        let slots = words.get(HEADER..)?;
        let slots = &slots[..slots.len() / WAYS * WAYS];
        (!slots.is_empty()).then_some(Self { words, slots })
    }

    pub fn seed(&self) -> u64 {
        self.words[0].load(Relaxed)
    }

    pub fn is_fed(&self, column: usize) -> bool {
        self.words[FED + column].load(Relaxed) != 0
    }

    /// Whether the column is known by the worker's own events, and whole.
    pub fn set_fed(&self, column: usize, fed: bool) {
        self.words[FED + column].store(u64::from(fed), Relaxed);
    }

    pub fn held(&self, column: usize) -> u64 {
        // Races may have counted it below zero.
        self.count(column).load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// What a worker has of a prompt. `now`: seconds of any clock, the same for all calls.
    pub fn known(&self, marks: &[u64], column: usize, now: u32) -> Known {
        let fed = self.is_fed(column);
        let has = |index: usize| self.has(marks[index], column, fed, now as u16);
        let matched = match marks.len() {
            0 => 0,
            _ if !has(0) => 0,
            count if has(count - 1) => count,
            count => {
                // The first is there, the last is not.
                let (mut there, mut missing) = (0, count - 1);
                while missing - there > 1 {
                    let middle = there.midpoint(missing);
                    if has(middle) { there = middle } else { missing = middle }
                }
                missing
            }
        };
        Known { matched, held: self.held(column), fed }
    }

    /// A worker is sent a prompt: its blocks are expected there, and count as used.
    pub fn note(&self, marks: &[u64], column: usize, now: u32) {
        for &mark in marks {
            self.put(mark, column, 0, now as u16);
        }
    }

    /// A worker has told that it has a block. Whether it was known to have told so before.
    pub fn tell(&self, mark: u64, column: usize, now: u32) -> bool {
        self.put(mark, column, TOLD, now as u16) & TOLD != 0
    }

    pub fn remove(&self, mark: u64, column: usize) {
        for (slot, _) in self.place(mark, column).find() {
            slot.store(0, Relaxed);
            self.count(column).fetch_sub(1, Relaxed);
        }
    }

    /// Forgets a column. Reads the whole table, milliseconds, unless the column is empty.
    pub fn clear(&self, column: usize) {
        if self.count(column).load(Relaxed) == 0 {
            return;
        }
        for slot in self.slots {
            let value = slot.load(Relaxed);
            if value != 0 && column_of(value) == column {
                slot.store(0, Relaxed);
            }
        }
        self.count(column).store(0, Relaxed);
    }

    fn count(&self, column: usize) -> &AtomicU64 {
        &self.words[COUNTS + column]
    }

    fn has(&self, mark: u64, column: usize, fed: bool, now: u16) -> bool {
        let counts = |value: u64| !fed || value & TOLD != 0 || now.wrapping_sub(value as u16) <= EXPECTED;
        self.place(mark, column).find().any(|(_, value)| counts(value))
    }

    /// Returns what stood there for the block, 0 if nothing.
    fn put(&self, mark: u64, column: usize, told: u64, now: u16) -> u64 {
        let place = self.place(mark, column);
        let stamp = u64::from(now);
        if let Some((slot, value)) = place.find().next() {
            let fresh = value & !STAMP | told | stamp;
            if fresh != value {
                slot.store(fresh, Relaxed);
            }
            return value;
        }
        let age = |slot: &AtomicU64| match slot.load(Relaxed) {
            0 => u32::MAX,
            value => u32::from(now.wrapping_sub(value as u16)),
        };
        // Of many that came in one second it is not always the same one that goes.
        let (after, before) = place.set.split_at((mark % WAYS as u64) as usize);
        let Some(victim) = before.iter().chain(after).max_by_key(|slot| age(slot)) else { return 0 };
        let lost = victim.swap(place.name | told | stamp, Relaxed);
        if lost != 0 {
            self.count(column_of(lost)).fetch_sub(1, Relaxed);
        }
        self.count(column).fetch_add(1, Relaxed);
        0
    }

    fn place(&self, mark: u64, column: usize) -> Place<'a> {
        let key = fold(mark ^ (column as u64 + 1).wrapping_mul(COLUMN_KEY), COLUMN_KEY);
        let sets = self.slots.len() / WAYS;
        let set = (((key & 0xffff_ffff) * sets as u64) >> 32) as usize;
        let tag = (key >> 26).max(1) << 26;
        Place { set: &self.slots[set * WAYS..(set + 1) * WAYS], name: tag | (column as u64) << COLUMN_SHIFT }
    }
}

fn column_of(slot: u64) -> usize {
    (slot >> COLUMN_SHIFT) as usize % COLUMNS
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::prefix::marks;

    /// Memory for so many sets.
    pub fn memory(sets: usize) -> Vec<AtomicU64> {
        let words: Vec<AtomicU64> = (0..HEADER + sets * WAYS).map(|_| AtomicU64::new(0)).collect();
        words[0].store(4711, Relaxed);
        words
    }

    fn prompt(first: u32, blocks: usize) -> Vec<u64> {
        let ids: Vec<u32> = (0..blocks as u32 * 16).map(|at| first + at).collect();
        marks(4711, "", &ids).collect()
    }

    #[test]
    fn the_longest_match_is_found_whatever_its_length() {
        let words = memory(1000);
        let table = Table::new(&words).unwrap();
        let asked = prompt(0, 40);
        assert_eq!(table.known(&asked, 3, 0), Known::default());
        for length in 0..=40 {
            table.note(&asked[..length], length, 5);
        }
        for length in 0..=40 {
            let known = table.known(&asked, length, 9);
            assert_eq!(known, Known { matched: length, held: length as u64, fed: false });
        }
        assert_eq!(table.known(&prompt(1, 40), 40, 9).matched, 0);
        assert_eq!(table.known(&[], 40, 9).matched, 0);
    }

    #[test]
    fn a_fed_column_believes_in_what_was_sent_for_a_while() {
        let words = memory(100);
        let table = Table::new(&words).unwrap();
        let asked = prompt(0, 4);
        table.tell(asked[0], 1, 10);
        table.note(&asked, 1, 10);
        assert_eq!(table.known(&asked, 1, 65_000).matched, 4);
        table.set_fed(1, true);
        assert_eq!(table.known(&asked, 1, 10 + 60), Known { matched: 4, held: 4, fed: true });
        assert_eq!(table.known(&asked, 1, 10 + 61).matched, 1);
        // The clock's 16 bits go round.
        table.note(&asked, 1, 65_530);
        assert_eq!(table.known(&asked, 1, 65_536 + 50).matched, 4);
        assert_eq!(table.known(&asked, 1, 65_536 + 60).matched, 1);
        table.tell(asked[1], 1, 0);
        assert_eq!(table.known(&asked, 1, 3000).matched, 2);
    }

    #[test]
    fn removed_and_cleared_blocks_are_gone() {
        let words = memory(100);
        let table = Table::new(&words).unwrap();
        let asked = prompt(0, 10);
        table.note(&asked, 1, 0);
        table.note(&asked, 2, 0);
        table.remove(asked[9], 1);
        table.remove(asked[8], 1);
        table.remove(asked[8], 1);
        assert_eq!(table.known(&asked, 1, 0), Known { matched: 8, held: 8, fed: false });
        table.clear(1);
        assert_eq!(table.known(&asked, 1, 0), Known::default());
        assert_eq!(table.known(&asked, 2, 0).matched, 10);
        table.clear(2);
        assert!(words[HEADER..].iter().all(|slot| slot.load(Relaxed) == 0));
        // Races may leave a count below what is there.
        table.note(&asked, 3, 0);
        table.count(3).store(u64::MAX, Relaxed);
        table.clear(3);
        assert_eq!(table.known(&asked, 3, 0).matched, 0);
    }

    #[test]
    fn a_full_set_drops_what_was_used_longest_ago() {
        let words = memory(1);
        let table = Table::new(&words).unwrap();
        let asked = prompt(0, 9);
        for (second, mark) in asked[..8].iter().enumerate() {
            table.note(&[*mark], second, second as u32);
        }
        table.note(&asked[..1], 0, 8);
        table.note(&asked[8..], 8, 9);
        let there: Vec<u64> = (0..9).map(|column| table.held(column)).collect();
        assert_eq!(there, [1, 0, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn memory_without_room_for_a_set_is_none() {
        assert!(Table::new(&memory(0)).is_none());
        assert!(Table::new(&[]).is_none());
    }
}
