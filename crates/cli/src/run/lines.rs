//! Cutting a rank's output into lines with the rank's label.

/// Lines longer than this many bytes are passed on in pieces, so that a stream without newlines takes no unbounded memory.
pub const MAX_LINE: usize = 1 << 20;

/// One output stream of one rank. Bytes go in as they are read; whole lines come out, each with the label in front.
///
/// With a label, what comes out always ends with a newline: one is added to a last line that lacks it and to each piece of
/// a line longer than [`MAX_LINE`], so that no other rank's line is glued to it. Without a label the bytes pass unchanged.
pub struct Lines {
    label: Option<Vec<u8>>,
    partial: Vec<u8>,
}

impl Lines {
    /// A stream labelled `[rank] `.
    pub fn labelled(rank: u32) -> Lines {
        Lines::with_label(format!("[{rank}] "))
    }

    /// A stream with this in front of each line.
    pub fn with_label(label: String) -> Lines {
        Lines { label: Some(label.into_bytes()), partial: Vec::new() }
    }

    /// A stream whose bytes pass unchanged, still line by line.
    pub fn plain() -> Lines {
        Lines { label: None, partial: Vec::new() }
    }

    /// Takes the next bytes and appends to `out` the lines that they complete.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.partial.len();
            let window = &bytes[..bytes.len().min(room)];
            let (taken, whole) = match window.iter().position(|&byte| byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (window.len(), window.len() == room),
            };
            self.partial.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if whole {
                self.finish(out);
            }
        }
    }

    /// Appends to `out` what is left of an unfinished last line.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        if let Some(label) = &self.label {
            out.extend_from_slice(label);
            if !self.partial.ends_with(b"\n") {
                self.partial.push(b'\n');
            }
        }
        out.extend_from_slice(&self.partial);
        // Keeps the memory of usual lines and gives back that of a huge one.
        self.partial.clear();
        self.partial.shrink_to(1 << 12);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pass(mut lines: Lines, chunks: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in chunks {
            lines.push(chunk, &mut out);
        }
        lines.finish(&mut out);
        out
    }

    #[test]
    fn every_line_is_labelled_and_the_last_is_kept() {
        assert_eq!(pass(Lines::labelled(3), &[b"one\ntw", b"o\n\nend"]), b"[3] one\n[3] two\n[3] \n[3] end\n");
        assert_eq!(pass(Lines::labelled(3), &[]), b"");
    }

    #[test]
    fn a_line_is_not_shown_before_it_is_whole() {
        let (mut lines, mut out) = (Lines::labelled(0), Vec::new());
        lines.push(b"half", &mut out);
        assert!(out.is_empty());
        lines.push(b" whole\n", &mut out);
        assert_eq!(out, b"[0] half whole\n");
    }

    #[test]
    fn an_endless_line_comes_in_pieces() {
        let long = vec![b'x'; MAX_LINE + 10];
        let out = pass(Lines::labelled(0), &[&long]);
        let pieces: Vec<usize> = out.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(pieces, [4 + MAX_LINE + 1, 4 + 10 + 1]);
        assert_eq!(pass(Lines::plain(), &[&long]), long);
    }

    #[test]
    fn a_line_of_the_longest_length_stays_whole() {
        let mut line = vec![b'x'; MAX_LINE];
        line[MAX_LINE - 1] = b'\n';
        assert_eq!(pass(Lines::labelled(0), &[&line]).len(), 4 + MAX_LINE);
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(chunks in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..40), 0..20)) {
            let pieces: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let whole = chunks.concat();
            prop_assert_eq!(pass(Lines::plain(), &pieces), whole.clone());
            let labelled = pass(Lines::labelled(7), &pieces);
            prop_assert_eq!(&labelled, &pass(Lines::labelled(7), &[&whole]));
            let mut bare = Vec::new();
            for line in labelled.split_inclusive(|&byte| byte == b'\n') {
                bare.extend_from_slice(line.strip_prefix(b"[7] ").expect("a label"));
            }
            let mut expected = whole;
            if !expected.is_empty() && expected.last() != Some(&b'\n') {
                expected.push(b'\n');
            }
            prop_assert_eq!(bare, expected);
        }
    }
}
