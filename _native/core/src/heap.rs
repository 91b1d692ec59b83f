//! The heap of a process that others are about to be forked from.

/// In bytes. Larger gaps are filled by several of these, which no usual allocator gives a mapping of its own.
const LARGEST: usize = 1 << 16;
const LEAST: usize = 16;
/// So many blocks side by side lie in fresh memory: no gap that is left has room for more than two, and an
/// allocator keeps no more than a handful of freed neighbours apart.
const ENOUGH: usize = 16;
/// Bytes of one size; where more are needed, the allocator keeps blocks apart, and there are no gaps to fill.
const MOST: usize = 16 << 20;

/// Fills the gaps between what is allocated, for good: whatever a forked process put there would cost it a copy
/// of the whole page. Returns how many bytes of gaps were filled.
pub fn fill() -> usize {
    let mut size = LARGEST;
    let mut taken = 0;
    while size >= LEAST {
        taken += size * fill_gaps_of(size);
        size /= 2;
    }
    taken
}

fn fill_gaps_of(size: usize) -> usize {
    let (mut last, mut in_a_row) = (0, 0);
    for blocks in 0..MOST / size {
        if in_a_row == ENOUGH {
            return blocks - ENOUGH - 1;
        }
        let address = Vec::<u8>::with_capacity(size).leak().as_ptr().addr();
        // An allocator's header lies between them; or the rest of a page, where the system gave each of its own.
        let beside = address.abs_diff(last) <= size + size / 32 + 32;
        in_a_row = if beside { in_a_row + 1 } else { 0 };
        last = address;
    }
    MOST / size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_once() {
        let blocks: Vec<_> = (0..2000).map(|_| vec![1u8; 3000]).collect();
        let _every_other: Vec<_> = blocks.into_iter().step_by(2).collect();
        assert!(fill() >= 1_000_000);
        // Others allocate meanwhile.
        assert!(fill() < 1_000_000);
    }
}
