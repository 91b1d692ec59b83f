//! Which ids of a message are new.
//!
//! Servicers differ: the closing message repeats the last chunk's ids, or carries only ids that no chunk had,
//! or carries all of the answer's. The cumulative count of completion tokens tells them apart: a message that
//! brings the count from `seen` to `count` ends with the `count - seen` new ids. A repeated chunk then brings
//! nothing, and a lost one costs only its own text.

/// The ids of one choice that were taken so far.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    /// Cumulative count of completion tokens.
    seen: u64,
    /// Digest of all ids taken, in order; recognises them in a closing message that has no count.
    digest: u64,
    /// The last chunk's ids, for the same purpose.
    last: Vec<u32>,
}

impl Ids {
    /// Completion tokens so far, those of lost messages included.
    pub fn count(&self) -> u64 {
        self.seen
    }

    /// The new ids of a chunk. Without a count all of them are.
    pub fn chunk<'a>(&mut self, ids: &'a [u32], count: u32) -> &'a [u32] {
        let fresh = if count == 0 { ids } else { self.counted(ids, count) };
        self.last.clear();
        self.last.extend_from_slice(ids);
        self.take(fresh, count)
    }

    /// The new ids of the closing message. Without a count its form is told by what was taken before.
    pub fn complete<'a>(&mut self, ids: &'a [u32], count: u32) -> &'a [u32] {
        let fresh = if count == 0 { self.uncounted(ids) } else { self.counted(ids, count) };
        self.take(fresh, count)
    }

    fn counted<'a>(&self, ids: &'a [u32], count: u32) -> &'a [u32] {
        let fresh = u64::from(count).saturating_sub(self.seen).min(ids.len() as u64);
        &ids[ids.len() - fresh as usize..]
    }

    fn uncounted<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        let seen = self.seen as usize;
        if ids.len() >= seen && digest(0, &ids[..seen]) == self.digest {
            &ids[seen..]
        } else if ids == self.last {
            &[]
        } else {
            ids
        }
    }

    fn take<'a>(&mut self, fresh: &'a [u32], count: u32) -> &'a [u32] {
        self.seen = if count == 0 { self.seen + fresh.len() as u64 } else { self.seen.max(count.into()) };
        self.digest = digest(self.digest, fresh);
        fresh
    }
}

fn digest(start: u64, ids: &[u32]) -> u64 {
    ids.iter().fold(start, |sum, &id| {
        (sum ^ (u64::from(id) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chunks: &[(&[u32], u32)], complete: (&[u32], u32)) -> (Vec<u32>, u64) {
        let mut ids = Ids::default();
        let mut all = Vec::new();
        for (chunk, count) in chunks {
            all.extend_from_slice(ids.chunk(chunk, *count));
        }
        all.extend_from_slice(ids.complete(complete.0, complete.1));
        (all, ids.count())
    }

    #[test]
    fn the_three_forms_of_the_closing_message() {
        let chunks: &[(&[u32], u32)] = &[(&[1, 2], 2), (&[3], 3)];
        let whole = (vec![1, 2, 3], 3);
        assert_eq!(run(chunks, (&[3], 3)), whole, "repeats the last chunk");
        assert_eq!(run(chunks, (&[1, 2, 3], 3)), whole, "carries all");
        assert_eq!(run(chunks, (&[], 3)), whole, "carries nothing");
        assert_eq!(run(&chunks[..1], (&[3], 3)), whole, "carries the last only");
        assert_eq!(run(&chunks[..1], (&[1, 2, 3], 3)), whole, "carries all, the last among them");
        assert_eq!(run(&[], (&[1, 2, 3], 3)), whole, "not streamed");
        assert_eq!(run(&[], (&[], 0)), (vec![], 0), "nothing at all");
    }

    #[test]
    fn equal_ids_are_told_apart_by_the_count() {
        assert_eq!(run(&[(&[7], 1)], (&[7], 2)), (vec![7, 7], 2));
        assert_eq!(run(&[(&[7], 1)], (&[7], 1)), (vec![7], 1));
    }

    #[test]
    fn repeated_and_lost_chunks_double_nothing() {
        assert_eq!(run(&[(&[1, 2], 2), (&[1, 2], 2), (&[3], 3)], (&[3], 3)), (vec![1, 2, 3], 3));
        assert_eq!(run(&[(&[1], 1), (&[3], 3)], (&[3], 3)), (vec![1, 3], 3));
        assert_eq!(run(&[(&[1], 1), (&[2], 2), (&[1], 1), (&[3], 3)], (&[], 3)), (vec![1, 2, 3], 3));
        assert_eq!(run(&[(&[1], 1), (&[2], 2), (&[1], 1)], (&[1, 2, 3], 3)), (vec![1, 2, 3], 3));
        assert_eq!(run(&[(&[1], 1)], (&[1, 2, 3], 3)), (vec![1, 2, 3], 3), "the closing message has it all");
    }

    #[test]
    fn messages_without_a_count() {
        let chunks: &[(&[u32], u32)] = &[(&[1, 2], 0), (&[3], 0)];
        let whole = (vec![1, 2, 3], 3);
        assert_eq!(run(chunks, (&[3], 0)), whole);
        assert_eq!(run(chunks, (&[1, 2, 3], 0)), whole);
        assert_eq!(run(chunks, (&[], 0)), whole);
        assert_eq!(run(&chunks[..1], (&[3], 0)), whole);
        assert_eq!(run(&chunks[..1], (&[1, 2, 3], 0)), whole);
        assert_eq!(run(chunks, (&[3], 3)), whole);
        assert_eq!(run(&[(&[1, 2], 2), (&[3], 3)], (&[3], 0)), whole);
        assert_eq!(run(&[(&[1, 2], 2)], (&[4, 5, 6], 0)), (vec![1, 2, 4, 5, 6], 5));
    }
}
