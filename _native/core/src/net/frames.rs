//! gRPC's messages out of the bytes of DATA frames: 5 bytes of head (a flag, the length), then the message.

use bytes::{Buf, Bytes};

use super::status::{INTERNAL, RESOURCE_EXHAUSTED, Status};

const HEAD: usize = 5;
/// Room that is made for a message before its bytes have come.
const TRUSTED: usize = 64 << 10;

/// Cuts messages out. One that lies whole in what was pushed is not copied.
pub struct Frames {
    /// What was pushed and not looked at yet.
    data: Bytes,
    /// The beginning of a message, with its head, that came in an earlier push.
    begun: Vec<u8>,
    limit: usize,
}

impl Frames {
    /// `limit`: the longest message, in bytes.
    pub fn new(limit: usize) -> Self {
        Self { data: Bytes::new(), begun: Vec::new(), limit }
    }

    /// Adds what came; `cut` has told None before.
    pub fn push(&mut self, data: Bytes) {
        debug_assert!(self.data.is_empty());
        self.data = data;
    }

    /// The next whole message. Errors: it is compressed (INTERNAL) or too long (RESOURCE_EXHAUSTED).
    pub fn cut(&mut self) -> Result<Option<Bytes>, Status> {
        if !self.begun.is_empty() {
            return self.go_on();
        }
        if let Some(head) = self.data.first_chunk::<HEAD>() {
            let size = self.size(*head)?;
            if self.data.len() >= HEAD + size {
                self.data.advance(HEAD);
                return Ok(Some(self.data.split_to(size)));
            }
            self.begun.reserve(HEAD + size.min(TRUSTED));
        }
        self.take_over(usize::MAX);
        Ok(None)
    }

    /// Nothing of a message is left over.
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty() && self.data.is_empty()
    }

    /// Continues a message that has begun.
    fn go_on(&mut self) -> Result<Option<Bytes>, Status> {
        self.take_over(HEAD);
        let Some(head) = self.begun.first_chunk::<HEAD>() else { return Ok(None) };
        let size = self.size(*head)?;
        self.take_over(HEAD + size);
        if self.begun.len() < HEAD + size {
            return Ok(None);
        }
        let mut message = Bytes::from(std::mem::take(&mut self.begun));
        message.advance(HEAD);
        Ok(Some(message))
    }

    /// Moves bytes into `begun`, until that is `size` long.
    fn take_over(&mut self, size: usize) {
        let count = size.saturating_sub(self.begun.len()).min(self.data.len());
        self.begun.extend_from_slice(&self.data[..count]);
        self.data.advance(count);
    }

    fn size(&self, [flag, size @ ..]: [u8; HEAD]) -> Result<usize, Status> {
        if flag != 0 {
            return Err(Status::new(
                INTERNAL,
                "the worker sent a compressed message, which was not asked for",
            ));
        }
        let size = u32::from_be_bytes(size) as usize;
        if size > self.limit {
            let words =
                format!("the worker's message has {size} bytes, more than the {} allowed", self.limit);
            return Err(Status::new(RESOURCE_EXHAUSTED, words));
        }
        Ok(size)
    }
}

/// A message with its head in front.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = Vec::with_capacity(HEAD + message.len());
    framed.push(0);
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::fixtures::Random;

    fn all(frames: &mut Frames) -> Vec<Bytes> {
        std::iter::from_fn(|| frames.cut().unwrap()).collect()
    }

    #[test]
    fn a_whole_message_is_not_copied() {
        let mut frames = Frames::new(100);
        let data = Bytes::from([framed(b"one"), framed(b""), framed(b"three")].concat());
        frames.push(data.clone());
        let messages = all(&mut frames);
        assert_eq!(messages, ["one", "", "three"]);
        assert!(std::ptr::eq(&raw const data[5], &raw const messages[0][0]));
        assert!(frames.is_empty());
    }

    #[test]
    fn messages_come_out_the_same_however_they_are_cut() {
        let mut random = Random::new(7);
        for _ in 0..300 {
            let count = random.below(6);
            let messages: Vec<_> = (0..count).map(|at| vec![at as u8; random.below(40)]).collect();
            let mut wire =
                Bytes::from(messages.iter().flat_map(|message| framed(message)).collect::<Vec<_>>());
            let (mut frames, mut got) = (Frames::new(100), Vec::new());
            while !wire.is_empty() {
                frames.push(wire.split_to(random.below(wire.len().min(30) + 1)));
                got.extend(all(&mut frames));
            }
            assert_eq!(got, messages);
            assert!(frames.is_empty());
        }
    }

    #[test]
    fn what_must_not_come_is_an_error_at_its_head() {
        let mut frames = Frames::new(3);
        frames.push(framed(b"four"));
        assert_eq!(frames.cut().unwrap_err().code, RESOURCE_EXHAUSTED);
        let mut frames = Frames::new(3);
        frames.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(frames.cut().unwrap_err().code, INTERNAL);
        let mut frames = Frames::new(3);
        frames.push(Bytes::from_static(&[0, 0]));
        assert_eq!(frames.cut(), Ok(None));
        assert!(!frames.is_empty());
        frames.push(Bytes::from_static(&[0, 0, 4]));
        assert_eq!(frames.cut().unwrap_err().code, RESOURCE_EXHAUSTED);
    }
}
