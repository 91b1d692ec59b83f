//! Stop words over streamed text.
//!
//! Which word wins: the shortest prefix of the text that contains a stop word decides, and the text is cut
//! where that word begins; of two words that end at the same place the longer one wins, as it begins earlier.
//! So the text is cut at the first stop word that becomes complete, the moment it does, which is what an
//! engine does that looks for stop words after each token, and depends neither on how the text is cut into
//! tokens nor on how the tokens are cut into messages. ("ab" beats "abcd"; in "abcd" the word "bc" beats
//! "abcd", and "a" stays.)
//!
//! One Aho-Corasick automaton over bytes holds all words of a request. UTF-8 is self-synchronising, so a word
//! can begin and end only at character bounds. The state's depth is the length of the longest end of the text
//! that begins a word: exactly that much is held back. What is held back is by definition the beginning of a
//! word, so it is never stored: it is read from that word. Cost: linear in the text and in the words.

/// No node, no word: 0 is the root, which is nobody's child.
const NONE: u32 = 0;
const ROOT: u32 = 0;

#[derive(Clone, Default)]
struct Node {
    /// Where the longest proper end of this node's text that also begins a word lives.
    fail: u32,
    /// Bytes from the root.
    depth: u32,
    child: u32,
    sibling: u32,
    /// A word whose beginning this node is.
    sample: u32,
    /// 1 + the longest word that ends here, 0 if none does.
    word: u32,
    byte: u8,
}

/// The stop words of one request, compiled; shared by its choices.
pub struct StopWords {
    words: Vec<String>,
    nodes: Vec<Node>,
    /// A bit for each byte that begins a word; all others leave the root where it is.
    begins: [u64; 4],
}

/// How far one choice's text has come into a stop word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u32);

impl StopWords {
    /// Empty words are ignored.
    pub fn new(words: Vec<String>) -> Self {
        let mut this = Self { words, nodes: vec![Node::default()], begins: [0; 4] };
        for index in 0..this.words.len() {
            this.insert(index);
        }
        this.link();
        this
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    pub fn word(&self, index: usize) -> &str {
        &self.words[index]
    }

    fn insert(&mut self, index: usize) {
        let mut at = ROOT;
        for place in 0..self.words[index].len() {
            let byte = self.words[index].as_bytes()[place];
            at = match self.child(at, byte) {
                NONE => self.grow(at, byte, index as u32),
                next => next,
            };
        }
        let node = &mut self.nodes[at as usize];
        if at != ROOT && node.word == NONE {
            node.word = index as u32 + 1;
        }
    }

    fn grow(&mut self, parent: u32, byte: u8, sample: u32) -> u32 {
        let new = self.nodes.len() as u32;
        let Node { depth, child: sibling, .. } = self.nodes[parent as usize];
        self.nodes.push(Node { depth: depth + 1, sibling, sample, byte, ..Node::default() });
        self.nodes[parent as usize].child = new;
        self.begins[byte as usize / 64] |= u64::from(parent == ROOT) << (byte % 64);
        new
    }

    fn begins(&self, byte: u8) -> bool {
        self.begins[byte as usize / 64] >> (byte % 64) & 1 == 1
    }

    /// At most one child for each word, so the walk over siblings is short.
    fn child(&self, node: u32, byte: u8) -> u32 {
        let mut at = self.nodes[node as usize].child;
        while at != NONE && self.nodes[at as usize].byte != byte {
            at = self.nodes[at as usize].sibling;
        }
        at
    }

    /// Fills `fail`, level by level, and hands words down to the nodes they also end at.
    fn link(&mut self) {
        let mut queue = vec![ROOT];
        let mut next = 0;
        while let Some(&parent) = queue.get(next) {
            next += 1;
            let mut at = self.nodes[parent as usize].child;
            while at != NONE {
                let Node { byte, sibling, word, .. } = self.nodes[at as usize];
                let fail =
                    if parent == ROOT { ROOT } else { self.step(self.nodes[parent as usize].fail, byte) };
                self.nodes[at as usize].fail = fail;
                if word == NONE {
                    self.nodes[at as usize].word = self.nodes[fail as usize].word;
                }
                queue.push(at);
                at = sibling;
            }
        }
    }

    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.child(at, byte) {
                NONE if at == ROOT => return ROOT,
                NONE => at = self.nodes[at as usize].fail,
                next => return next,
            }
        }
    }

    /// Takes the next piece of the text and appends to `out` what no stop word can reach any more. Some(word):
    /// that stop word is complete, and the text ends before it (after it with `keep`); the rest of `text` is
    /// dropped.
    pub fn feed(&self, cursor: &mut Cursor, text: &str, keep: bool, out: &mut String) -> Option<usize> {
        let held = self.held(*cursor);
        let bytes = text.as_bytes();
        let mut node = cursor.0;
        let mut place = 0;
        while place < bytes.len() {
            if node == ROOT {
                match bytes[place..].iter().position(|&byte| self.begins(byte)) {
                    Some(skip) => place += skip,
                    None => break,
                }
            }
            node = self.step(node, bytes[place]);
            place += 1;
            let word = self.nodes[node as usize].word;
            if word != NONE {
                let index = word as usize - 1;
                let cut = if keep { 0 } else { self.words[index].len() };
                release(held, text, held.len() + place - cut, out);
                *cursor = Cursor::default();
                return Some(index);
            }
        }
        let depth = self.nodes[node as usize].depth as usize;
        release(held, text, held.len() + text.len() - depth, out);
        *cursor = Cursor(node);
        None
    }

    /// The text that is held back, as it may begin a stop word.
    pub fn held(&self, cursor: Cursor) -> &str {
        let node = &self.nodes[cursor.0 as usize];
        if node.depth == 0 { "" } else { &self.words[node.sample as usize][..node.depth as usize] }
    }

    /// End of the text: what was held back begins no stop word after all.
    pub fn flush(&self, cursor: &mut Cursor, out: &mut String) {
        out.push_str(self.held(*cursor));
        *cursor = Cursor::default();
    }
}

/// Appends the first `count` bytes of `held` + `text`.
fn release(held: &str, text: &str, count: usize, out: &mut String) {
    match count.checked_sub(held.len()) {
        None => out.push_str(&held[..count]),
        Some(rest) => {
            out.push_str(held);
            out.push_str(&text[..rest]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::tests::fixtures::Random;

    fn words(list: &[&str]) -> StopWords {
        StopWords::new(list.iter().map(|word| word.to_string()).collect())
    }

    /// The definition, word for word: the first place where a word ends, the longest of those that end there.
    fn expected<'a>(list: &[&'a str], text: &str) -> Option<(usize, &'a str)> {
        (1..=text.len()).filter(|&end| text.is_char_boundary(end)).find_map(|end| {
            let ending = list.iter().filter(|word| !word.is_empty() && text[..end].ends_with(**word));
            ending.max_by_key(|word| word.len()).map(|word| (end, *word))
        })
    }

    fn check(list: &[&str], text: &str, cuts: &mut impl FnMut(usize) -> usize) {
        let stop = words(list);
        for keep in [false, true] {
            let (mut cursor, mut out, mut rest, mut found) = (Cursor::default(), String::new(), text, None);
            while !rest.is_empty() && found.is_none() {
                let mut cut = cuts(rest.len());
                while !rest.is_char_boundary(cut) {
                    cut += 1;
                }
                let (piece, after) = rest.split_at(cut);
                found = stop.feed(&mut cursor, piece, keep, &mut out);
                rest = after;
                if found.is_none() {
                    let seen = &text[..text.len() - rest.len()];
                    let held = stop.held(cursor);
                    assert_eq!(format!("{out}{held}"), seen, "nothing is lost or out of order");
                    let longest = (0..=seen.len()).filter(|&n| {
                        let end = &seen.as_bytes()[seen.len() - n..];
                        list.iter().any(|word| word.as_bytes().starts_with(end))
                    });
                    assert_eq!(held.len(), longest.max().unwrap_or(0), "only a real beginning is held back");
                }
            }
            match expected(list, text) {
                Some((end, word)) => {
                    assert_eq!(found.map(|index| stop.word(index)), Some(word), "{list:?} in {text:?}");
                    assert_eq!(out, text[..if keep { end } else { end - word.len() }]);
                }
                None => {
                    assert_eq!(found, None, "{list:?} in {text:?}");
                    stop.flush(&mut cursor, &mut out);
                    assert_eq!(out, text);
                }
            }
        }
    }

    #[test]
    fn the_first_word_to_become_complete_cuts_the_text() {
        let all = &mut |length| length;
        for (list, text) in [
            (&["."] as &[&str], "One. Two."),
            (&["ab", "abcd"], "xabcd"),
            (&["abcd", "bc"], "xabcd"),
            (&["xbc", "bc"], "axbc"),
            (&["aab", "ab"], "aaab"),
            (&["日本", "本"], "あ日本"),
            (&["é", "è"], "caf\u{e8} caf\u{e9}"),
            (&[""], "abc"),
            (&[], "abc"),
        ] {
            check(list, text, all);
            check(list, text, &mut |_| 1);
        }
    }

    #[test]
    fn any_words_any_text_any_cut() {
        let mut random = Random::new(7);
        for _ in 0..20_000 {
            let alphabet = ["a", "b", "ab", "é", "è", "日", "本"];
            let mut text = |limit: usize| -> String {
                (0..random.below(limit)).map(|_| alphabet[random.below(alphabet.len())]).collect()
            };
            let list: Vec<String> = (0..4).map(|_| text(5)).collect();
            let whole = text(24);
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            check(&list, &whole, &mut |left| 1 + random.below(left));
        }
    }

    #[test]
    fn hostile_text_costs_linear_time() {
        // Sixteen words that the text keeps nearly completing, and long ones: what is naive is quadratic here.
        let list: Vec<String> =
            (0..16).map(|n| format!("{}{}", "a".repeat(1 << (n + 1)), (b'b' + n as u8) as char)).collect();
        let stop = StopWords::new(list);
        let text = "a".repeat(1 << 20);
        let clock = std::time::Instant::now();
        let (mut cursor, mut out) = (Cursor::default(), String::new());
        for piece in text.as_bytes().chunks(4) {
            let piece = std::str::from_utf8(piece).unwrap();
            assert_eq!(stop.feed(&mut cursor, piece, false, &mut out), None);
        }
        assert_eq!(stop.held(cursor).len(), 1 << 16);
        stop.flush(&mut cursor, &mut out);
        assert_eq!(out, text);
        assert!(clock.elapsed().as_secs_f64() < 60.0, "{:?}", clock.elapsed());
    }
}
