//! The name in a certificate. Only certificates that the authority has issued come here; their bytes are read as if
//! anybody had.

const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The common name of a certificate's subject, without what would disturb a line of text. `None` if there is none.
pub(crate) fn of(certificate: &[u8]) -> Option<String> {
    let (whole, _) = take(certificate, SEQUENCE)?;
    let (mut signed, _) = take(whole, SEQUENCE)?;
    // Version, serial number, algorithm, issuer and validity come before the subject.
    for tag in [VERSION, INTEGER, SEQUENCE, SEQUENCE, SEQUENCE] {
        (_, signed) = take(signed, tag)?;
    }
    let (mut names, _) = take(signed, SEQUENCE)?;
    while !names.is_empty() {
        let (set, rest) = take(names, SET)?;
        let (attribute, _) = take(set, SEQUENCE)?;
        let (kind, value) = take(attribute, OBJECT)?;
        if kind == COMMON_NAME {
            let (text, _) = take(value, UTF8)?;
            let text = std::str::from_utf8(text).ok()?;
            return Some(text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect());
        }
        names = rest;
    }
    None
}

/// The content of the element that comes first, if it has this tag, and what follows it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [first, len, rest @ ..] = bytes else { return None };
    if *first != tag {
        return None;
    }
    let (len, rest) = match *len {
        len @ 0..=0x7f => (usize::from(len), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(u16::from_be_bytes(*rest.first_chunk()?)), &rest[2..]),
        // No certificate of this crate is that long.
        _ => return None,
    };
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_are_taken_whole_or_not_at_all() {
        assert_eq!(take(&[2, 1, 5, 9], INTEGER), Some((&[5][..], &[9][..])));
        assert_eq!(take(&[2, 0], INTEGER), Some((&[][..], &[][..])));
        let long = [&[0x0c, 0x82, 1, 0][..], &[7; 256]].concat();
        assert_eq!(take(&long, UTF8), Some((&[7; 256][..], &[][..])));
        for bad in
            [&[][..], &[2], &[2, 1], &[2, 2, 1], &[2, 0x81], &[2, 0x82, 1], &[2, 0x80, 1], &[2, 0x83, 0, 0, 1, 1]]
        {
            assert_eq!(take(bad, INTEGER), None, "{bad:?}");
        }
        assert_eq!(take(&[2, 1, 5], SEQUENCE), None);
    }

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = content.len() as u16;
        let head = if len < 0x80 { vec![tag, len as u8] } else { [&[tag, 0x82][..], &len.to_be_bytes()].concat() };
        [&head, content].concat()
    }

    fn certificate(name: &str) -> Vec<u8> {
        let attribute = |kind: &[u8], name: &str| {
            element(SET, &element(SEQUENCE, &[element(OBJECT, kind), element(UTF8, name.as_bytes())].concat()))
        };
        let subject = [attribute(&[0x55, 0x04, 0x0a], "other"), attribute(COMMON_NAME, name)].concat();
        let before = [element(VERSION, &element(INTEGER, &[2])), element(INTEGER, &[1])].concat();
        let empty = element(SEQUENCE, &[]).repeat(3);
        let signed = [before, empty, element(SEQUENCE, &subject), vec![1, 2, 3]].concat();
        element(SEQUENCE, &element(SEQUENCE, &signed))
    }

    proptest! {
        #[test]
        fn names_are_found_and_lines_stay_lines(name in ".{0,100}") {
            let found = of(&certificate(&name)).unwrap();
            prop_assert!(!found.chars().any(char::is_control));
            prop_assert_eq!(found.chars().count(), name.chars().count());
        }

        #[test]
        fn damage_never_panics(name in "[a-z]{0,20}", at in any::<prop::sample::Index>(), byte in any::<u8>(), end in any::<prop::sample::Index>()) {
            let mut bytes = certificate(&name);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = of(&bytes);
            let _ = of(&bytes[..end.index(bytes.len())]);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = of(&bytes);
        }
    }
}
