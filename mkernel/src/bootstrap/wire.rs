//! Little-endian bytes with bounds: every read returns `None` where bytes are missing or a length passes its limit.

/// A cursor over the payload of one frame.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.bytes.split_at_checked(count)?;
        self.bytes = tail;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A length and that many bytes.
    pub(crate) fn bytes(&mut self, limit: usize) -> Option<&'a [u8]> {
        let count = usize::try_from(self.u32()?).ok()?;
        if count > limit { None } else { self.take(count) }
    }

    pub(crate) fn text(&mut self, limit: usize) -> Option<String> {
        std::str::from_utf8(self.bytes(limit)?).ok().map(str::to_owned)
    }

    /// A count and that many `u32`. The count is checked against the bytes at hand before anything is allocated.
    pub(crate) fn list(&mut self, limit: usize) -> Option<Vec<u32>> {
        let count = usize::try_from(self.u32()?).ok()?;
        if count > limit {
            return None;
        }
        let (words, _) = self.take(count.checked_mul(4)?)?.as_chunks::<4>();
        Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// `Some` if every byte was read.
    pub(crate) fn end(&self) -> Option<()> {
        self.bytes.is_empty().then_some(())
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, u32::try_from(bytes.len()).expect("callers bound lengths far below u32::MAX"));
    out.extend_from_slice(bytes);
}

pub(crate) fn put_list(out: &mut Vec<u8>, words: &[u32]) {
    put_u32(out, u32::try_from(words.len()).expect("callers bound lengths far below u32::MAX"));
    words.iter().for_each(|word| put_u32(out, *word));
}
