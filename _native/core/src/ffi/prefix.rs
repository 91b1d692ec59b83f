//! Which worker has which prefix: that part of the C ABI, under the conventions of [`super`].
//!
//! The table lies in memory of the caller's: `words` words of eight bytes, zero but for the first, the seed. It may
//! be shared by processes and threads, all of which call these functions at once. A `WrFollower` is used by one
//! thread at a time. `now`: seconds, of the same clock everywhere.

use super::*;
use crate::prefix::follower::Follower;
use crate::prefix::table::{COLUMNS, Known, Table};
use crate::prefix::{BLOCK, marks};

/// Tokens that a mark stands for, beyond the one before it.
pub const WR_PREFIX_BLOCK: u32 = 16;
const _: () = assert!(WR_PREFIX_BLOCK as usize == BLOCK);

pub(super) static LIVE: AtomicU64 = AtomicU64::new(0);

/// What a worker is known to have.
#[repr(C)]
pub struct WrKnown {
    /// Blocks of the prompt, from its beginning.
    pub matched: u32,
    /// 1 if the worker's own events say so, 0 if it is what it was sent.
    pub fed: u32,
    /// Blocks in all.
    pub held: u64,
}

/// What a batch of events has led to; see `prefix::follower::Followed`.
#[repr(C)]
pub struct WrFollowed {
    pub sequence: u64,
    pub blocks: u64,
    pub whole: bool,
    pub gap: bool,
}

/// Follows one worker's events. Its table outlives it.
pub struct WrFollower {
    table: Table<'static>,
    follower: Follower,
}

/// # Safety
/// `memory` points to `words` words that live for `'a` and are changed by nothing but this module.
unsafe fn table<'a>(memory: *const u64, words: usize) -> Result<Table<'a>> {
    // An AtomicU64 has the layout of a u64.
    Table::new(unsafe { input(memory.cast(), words) }).ok_or_else(|| null("table"))
}

fn column(column: u32) -> Result<usize> {
    let column = column as usize;
    if column < COLUMNS { Ok(column) } else { Err(Error::new(Code::Internal, "there is no such column")) }
}

/// Writes the marks of a prompt's whole blocks to `out`, which has room for `len` / `WR_PREFIX_BLOCK` of them.
/// `adapter` names the prompt's LoRA adapter, or is empty.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prefix_marks(
    memory: *const u64,
    words: usize,
    adapter: *const u8,
    adapter_len: usize,
    ids: *const u32,
    len: usize,
    out: *mut u64,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let seed = unsafe { table(memory, words) }?.seed();
        let (adapter, ids) = unsafe { (text(adapter, adapter_len)?, input(ids, len)) };
        for (index, mark) in marks(seed, adapter, ids).enumerate() {
            unsafe { give(out.wrapping_add(index), mark) }?;
        }
        Ok(())
    })
}

/// For each of `count` columns what it has of the prompt with these marks; `out` has room for `count`.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prefix_match(
    memory: *const u64,
    words: usize,
    marks: *const u64,
    len: usize,
    columns: *const u32,
    count: usize,
    now: u32,
    out: *mut WrKnown,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let table = unsafe { table(memory, words) }?;
        let (marks, columns) = unsafe { (input(marks, len), input(columns, count)) };
        for (index, &one) in columns.iter().enumerate() {
            let Known { matched, held, fed } = table.known(marks, column(one)?, now);
            let known = WrKnown { matched: matched as u32, fed: u32::from(fed), held };
            unsafe { give(out.wrapping_add(index), known) }?;
        }
        Ok(())
    })
}

/// The worker of a column is sent the prompt with these marks.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prefix_note(
    memory: *const u64,
    words: usize,
    marks: *const u64,
    len: usize,
    at: u32,
    now: u32,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        unsafe { table(memory, words) }?.note(unsafe { input(marks, len) }, column(at)?, now);
        Ok(())
    })
}

/// Forgets what is known of a column.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_prefix_clear(
    memory: *const u64,
    words: usize,
    at: u32,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        unsafe { table(memory, words) }?.clear(column(at)?);
        Ok(())
    })
}

/// Begins to follow the events of a column's worker.
///
/// # Safety
/// See the module's conventions; the memory stays until `wr_follower_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_follower_new(
    memory: *const u64,
    words: usize,
    at: u32,
    out: *mut *mut WrFollower,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let table = unsafe { table(memory, words) }?;
        let follower = Follower::new(&table, column(at)?);
        unsafe { give_handle(out, WrFollower { table, follower }, &LIVE) }
    })
}

/// Takes in a raw KvEventBatch.
///
/// # Safety
/// `handle` is live; see the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_follower_apply(
    handle: *mut WrFollower,
    message: *const u8,
    len: usize,
    now: u32,
    out: *mut WrFollowed,
    err: *mut WrError,
) -> i32 {
    guard(err, || {
        let WrFollower { table, follower } = unsafe { handle.as_mut() }.ok_or_else(|| null("follower"))?;
        let told = follower.apply(table, unsafe { input(message, len) }, now)?;
        let (sequence, blocks) = (told.sequence, told.blocks as u64);
        unsafe { give(out, WrFollowed { sequence, blocks, whole: told.whole, gap: told.gap }) }
    })
}

/// The events are not heard any more: the column stays as it is, and what its worker is sent counts from now on.
/// Not to be called in a process that did not make it.
///
/// # Safety
/// `handle` came from `wr_follower_new` and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_follower_free(handle: *mut WrFollower) {
    unsafe { free_handle(handle, &LIVE, |following| following.follower.end(&following.table)) };
}

#[cfg(test)]
mod tests {
    use super::super::tests::blank;
    use super::*;

    #[test]
    fn a_prompt_is_known_where_it_was_sent() {
        let mut memory = vec![0_u64; 4096];
        memory[0] = 9;
        let (at, words) = (memory.as_ptr(), memory.len());
        let ids: Vec<u32> = (0..100).collect();
        let mut marks = [0_u64; 6];
        let known = || WrKnown { matched: 9, fed: 9, held: 9 };
        let mut out = [known(), known()];
        unsafe {
            let made = marks.as_mut_ptr();
            let none = std::ptr::null();
            assert_eq!(wr_prefix_marks(at, words, none, 0, ids.as_ptr(), 100, made, &mut blank()), 0);
            assert_eq!(wr_prefix_note(at, words, made, 4, 511, 1, &mut blank()), 0);
            let columns = [511, 3];
            let asked = (made, 6, columns.as_ptr(), 2, 1);
            let (list, len, columns, count, now) = asked;
            let code =
                wr_prefix_match(at, words, list, len, columns, count, now, out.as_mut_ptr(), &mut blank());
            assert_eq!(code, 0);
            assert_eq!((out[0].matched, out[0].held, out[0].fed), (4, 4, 0));
            assert_eq!((out[1].matched, out[1].held), (0, 0));
            assert_eq!(wr_prefix_clear(at, words, 511, &mut blank()), 0);
            assert!(memory[1..].iter().all(|&word| word == 0));
        }
    }

    #[test]
    fn wrong_arguments_are_errors() {
        let memory = vec![0_u64; 4096];
        let internal = Code::Internal as i32;
        let null = std::ptr::null_mut();
        let mut follower = std::ptr::null_mut();
        unsafe {
            assert_eq!(wr_prefix_clear(memory.as_ptr(), 4096, 512, null), internal);
            assert_eq!(wr_prefix_clear(memory.as_ptr(), 2048, 0, null), internal);
            assert_eq!(wr_prefix_clear(std::ptr::null(), 0, 0, null), internal);
            assert_eq!(wr_follower_new(memory.as_ptr(), 4096, 600, &mut follower, null), internal);
            let applied = wr_follower_apply(follower, std::ptr::null(), 0, 0, std::ptr::null_mut(), null);
            assert_eq!(applied, internal);
            wr_follower_free(follower);
            assert_eq!(wr_follower_new(memory.as_ptr(), 4096, 5, &mut follower, null), 0);
            assert_eq!(LIVE.load(Ordering::Relaxed), 1);
            wr_follower_free(follower);
            assert_eq!(LIVE.load(Ordering::Relaxed), 0);
        }
    }
}
