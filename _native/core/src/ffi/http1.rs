//! The heads of requests: that part of the C ABI, under the conventions of [`super`].

use std::ops::Range;

use super::*;
use crate::http1::{Bounds, MOST_HEADERS, plain_head};

/// Headers of a head at most.
pub const WR_MOST_HEADERS: usize = 64;
const _: () = assert!(WR_MOST_HEADERS == MOST_HEADERS);

/// A part of the data that a head was read from.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct WrPart {
    pub start: u32,
    pub len: u32,
}

/// A header; its name as it was sent.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct WrHeader {
    pub name: WrPart,
    pub value: WrPart,
}

/// The plain head of a request, see `http1::Head`.
#[repr(C)]
pub struct WrHead {
    pub method: WrPart,
    pub target: WrPart,
    pub path: WrPart,
    pub query: WrPart,
    /// Where the body begins.
    pub end: u32,
    pub close: bool,
    pub content_length: u64,
    pub header_count: u32,
    pub headers: [WrHeader; WR_MOST_HEADERS],
}

/// The server's bounds, see `http1::Bounds`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WrBounds {
    pub line: u32,
    pub headers: u32,
    pub header: u32,
}

fn part(range: &Range<usize>) -> WrPart {
    WrPart { start: range.start as u32, len: range.len() as u32 }
}

/// Reads the head that `data` begins with; 1 if it is whole and plain, else 0, and `out` is untouched.
///
/// # Safety
/// See the module's conventions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_plain_head(
    data: *const u8,
    len: usize,
    bounds: WrBounds,
    out: *mut WrHead,
) -> i32 {
    let mut plain = 0;
    guard(std::ptr::null_mut(), || {
        let (line, headers, header) = (bounds.line as usize, bounds.headers as usize, bounds.header as usize);
        let mut found = [const { (0..0, 0..0) }; MOST_HEADERS];
        let data = unsafe { input(data, len.min(u32::MAX as usize)) };
        let Some(head) = plain_head(data, Bounds { line, headers, header }, &mut found) else {
            return Ok(());
        };
        let mut headers = [WrHeader::default(); WR_MOST_HEADERS];
        for (slot, (name, value)) in headers.iter_mut().zip(head.headers) {
            *slot = WrHeader { name: part(name), value: part(value) };
        }
        let filled = WrHead {
            method: part(&(0..head.method.len())),
            target: part(&head.target),
            path: part(&head.path),
            query: part(&head.query),
            end: head.end as u32,
            close: head.close,
            content_length: head.content_length,
            header_count: head.headers.len() as u32,
            headers,
        };
        unsafe { give(out, filled) }?;
        plain = 1;
        Ok(())
    });
    plain
}
