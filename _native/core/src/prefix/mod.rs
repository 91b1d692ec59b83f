//! Which worker has which prompts' beginnings in its KV cache.
//!
//! A prompt is a chain of blocks of [`BLOCK`] tokens; a block's [mark](marks) stands for all tokens up to its end.
//! - [`table`]: marks by worker, in memory that the processes share
//! - [`follower`]: keeps a worker's part of it by the events of the worker's own cache
//! - [`events`]: those events, as they are sent

pub mod events;
pub mod follower;
pub mod table;

/// Tokens in a block. A worker that caches pages of another size is followed all the same: of smaller ones what is
/// known is rounded down to blocks; of a larger one a part is taken for the whole.
pub(crate) const BLOCK: usize = 16;

const TOKEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Sets an adapter's name apart from tokens.
const NAME: u64 = 1 << 40;

/// A product's two halves, one upon the other: a few cycles, and each bit of `a` changes half of the result.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Stands for the tokens so far; one step a token, so that blocks of any size lead to the same marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    state: u64,
    /// Tokens since the last mark.
    past: u8,
}

impl Chain {
    /// Before the first token. `seed` is the server's own, so that nobody can choose tokens that collide; KV of
    /// an adapter is none of the model's own.
    pub fn new(seed: u64, adapter: &str) -> Self {
        let state = adapter.bytes().fold(seed, |state, byte| fold(state ^ NAME ^ u64::from(byte), TOKEN));
        Self { state, past: 0 }
    }

    /// Takes a token in; the block's mark, if it ends here.
    pub fn push(&mut self, token: u32) -> Option<u64> {
        self.state = fold(self.state ^ u64::from(token), TOKEN);
        self.past = (self.past + 1) % BLOCK as u8;
        self.mark()
    }

    /// The mark that ends here, if one does.
    pub fn mark(&self) -> Option<u64> {
        (self.past == 0).then_some(self.state)
    }
}

/// The marks of a prompt's whole blocks.
pub fn marks(seed: u64, adapter: &str, ids: &[u32]) -> impl Iterator<Item = u64> {
    let mut chain = Chain::new(seed, adapter);
    ids.iter().filter_map(move |&id| chain.push(id))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn of(seed: u64, adapter: &str, ids: &[u32]) -> Vec<u64> {
        marks(seed, adapter, ids).collect()
    }

    #[test]
    fn a_mark_stands_for_all_tokens_before_it() {
        let ids: Vec<u32> = (0..100).collect();
        let whole = of(7, "", &ids);
        assert_eq!(whole.len(), 6);
        assert_eq!(of(7, "", &ids[..50]), whole[..3]);
        assert!(of(7, "", &ids[..15]).is_empty());
        let mut other = ids.clone();
        other[20] += 1;
        let changed = of(7, "", &other);
        assert_eq!(changed[0], whole[0]);
        assert!(changed[1..].iter().zip(&whole[1..]).all(|(a, b)| a != b));
        let all: HashSet<_> = whole.iter().chain(&changed).collect();
        assert_eq!(all.len(), 11);
    }

    #[test]
    fn another_seed_or_adapter_has_other_marks() {
        let ids = [0; 16];
        let all: HashSet<_> =
            [of(7, "", &ids), of(8, "", &ids), of(7, "a", &ids), of(7, "b", &ids), of(7, "aa", &ids)]
                .into_iter()
                .collect();
        assert_eq!(all.len(), 5);
    }
}
