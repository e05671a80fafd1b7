//! Named values that must be the same on every rank, and the words for where they are not.

use std::fmt;

use super::fault::Ranks;
use super::frame::MAX_BLOB;
use super::wire::{Reader, put_bytes, put_u32};

/// Names and values in the order they were added, such as the hash of a plan and the settings it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String)>);

/// A field on which ranks differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Name of the field.
    pub field: String,
    /// Each value with the ranks that have it, by lowest rank; `None` for ranks without the field.
    pub values: Vec<(Option<String>, Vec<u32>)>,
}

impl Fields {
    /// Adds a field. A name that is added twice counts with its first value.
    pub fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The fields as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u32(&mut out, u32::try_from(self.0.len()).expect("a list in memory of pairs of strings is below u32::MAX"));
        for (name, value) in &self.0 {
            put_bytes(&mut out, name.as_bytes());
            put_bytes(&mut out, value.as_bytes());
        }
        out
    }

    /// The fields that were encoded; `None` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let count = reader.u32()?;
        let mut fields = Vec::new();
        for _ in 0..count {
            fields.push((reader.text(MAX_BLOB)?, reader.text(MAX_BLOB)?));
        }
        reader.end().map(|()| Self(fields))
    }
}

/// Checks that all ranks have the same fields; `ranks[r]` are those of rank r.
///
/// # Errors
/// The first field, in the order of the lowest rank that has it, on which ranks differ.
pub(crate) fn compare(ranks: &[Fields]) -> Result<(), Divergence> {
    // Equal lists are the rule and cost one comparison a rank.
    if ranks.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    for (name, _) in ranks.iter().flat_map(|fields| &fields.0) {
        let mut values: Vec<(Option<String>, Vec<u32>)> = Vec::new();
        for (rank, fields) in (0..).zip(ranks) {
            let value = fields.value(name);
            match values.iter_mut().find(|(known, _)| known.as_deref() == value) {
                Some((_, having)) => having.push(rank),
                None => values.push((value.map(str::to_owned), vec![rank])),
            }
        }
        if values.len() > 1 {
            return Err(Divergence { field: name.clone(), values });
        }
    }
    Ok(())
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ranks differ in `{}`:", self.field)?;
        for (index, (value, ranks)) in self.values.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let verb = if ranks.len() == 1 { "has" } else { "have" };
            match value {
                Some(value) => write!(f, "{comma} {} {verb} `{value}`", Ranks(ranks))?,
                None => write!(f, "{comma} {} {verb} none", Ranks(ranks))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::default();
        pairs.iter().for_each(|(name, value)| fields.add(*name, *value));
        fields
    }

    #[test]
    fn a_divergence_names_the_field_and_the_ranks_on_each_side() {
        let same = fields(&[("plan", "ab"), ("m", "64")]);
        let other = fields(&[("plan", "ab"), ("m", "65")]);
        let found = compare(&[same.clone(), same.clone(), other, same]).unwrap_err();
        assert_eq!(found.to_string(), "ranks differ in `m`: ranks 0-1, 3 have `64`, rank 2 has `65`");
    }

    #[test]
    fn a_field_that_one_rank_lacks_is_a_divergence() {
        let found = compare(&[fields(&[]), fields(&[("seed", "1")])]).unwrap_err();
        assert_eq!(found.to_string(), "ranks differ in `seed`: rank 0 has none, rank 1 has `1`");
    }

    #[test]
    fn the_same_fields_in_another_order_agree() {
        assert_eq!(compare(&[fields(&[("a", "1"), ("b", "2")]), fields(&[("b", "2"), ("a", "1")])]), Ok(()));
    }

    #[test]
    fn fields_survive_the_wire_and_bytes_that_lie_do_not() {
        let sent = fields(&[("plan", "ab"), ("", "")]);
        assert_eq!(Fields::decode(&sent.encode()), Some(sent.clone()));
        assert_eq!(Fields::decode(&u32::MAX.to_le_bytes()), None);
        assert_eq!(Fields::decode(&sent.encode()[1..]), None);
        let mut longer = sent.encode();
        longer.push(0);
        assert_eq!(Fields::decode(&longer), None);
    }
}
