//! What ranks tell each other before they connect: plain data and its bytes.

use mkernel_core::Rank;

/// One rail of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOffer {
    /// The address.
    pub gid: [u8; 16],
    /// The InfiniBand address.
    pub lid: u16,
    /// The MTU by code.
    pub mtu: u32,
    /// The remote key of the memory.
    pub key: u32,
}

/// How to connect with a rank and reach its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Address of the memory's first byte.
    pub address: u64,
    /// Its rails.
    pub rails: Vec<RailOffer>,
    /// Numbers of the queue pairs to each peer, by rank.
    pub queues: Vec<(u32, Vec<u32>)>,
}

impl Offer {
    /// The numbers of the queue pairs that lead to `rank`.
    pub fn toward(&self, rank: Rank) -> Option<&[u32]> {
        self.queues.iter().find(|(peer, _)| *peer == rank.0).map(|(_, numbers)| numbers.as_slice())
    }

    /// Remote keys of the memory, one for each rail.
    pub fn keys(&self) -> Vec<u32> {
        self.rails.iter().map(|r| r.key).collect()
    }

    /// The offer as bytes, little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.address.to_le_bytes().to_vec();
        let mut put = |value: u32| out.extend(value.to_le_bytes());
        put(self.rails.len() as u32);
        for rail in &self.rails {
            rail.gid.as_chunks::<4>().0.iter().for_each(|part| put(u32::from_le_bytes(*part)));
            [rail.lid.into(), rail.mtu, rail.key].into_iter().for_each(&mut put);
        }
        put(self.queues.len() as u32);
        for (peer, numbers) in &self.queues {
            put(*peer);
            put(numbers.len() as u32);
            numbers.iter().copied().for_each(&mut put);
        }
        out
    }

    /// The offer of these bytes; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Offer> {
        let (address, rest) = bytes.split_first_chunk::<8>()?;
        let (words, []) = rest.as_chunks::<4>() else { return None };
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let mut rails = Vec::new();
        for _ in 0..words.next()? {
            let mut gid = [0; 16];
            for part in gid.as_chunks_mut::<4>().0 {
                *part = words.next()?.to_le_bytes();
            }
            rails.push(RailOffer { gid, lid: words.next()?.try_into().ok()?, mtu: words.next()?, key: words.next()? });
        }
        let mut queues = Vec::new();
        for _ in 0..words.next()? {
            let (peer, count) = (words.next()?, words.next()?);
            let numbers: Vec<u32> = words.by_ref().take(count as usize).collect();
            queues.push((peer, numbers));
            if queues.last().is_some_and(|(_, numbers)| numbers.len() != count as usize) {
                return None;
            }
        }
        words.next().is_none().then_some(Offer { address: u64::from_le_bytes(*address), rails, queues })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_survives_its_bytes_and_no_part_of_them_is_one() {
        let rail = RailOffer { gid: std::array::from_fn(|i| i as u8), lid: 7, mtu: 5, key: 0xdead_beef };
        let offer =
            Offer { address: 1 << 40, rails: vec![rail, rail], queues: vec![(3, vec![17, 18]), (9, Vec::new())] };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(&bytes), Some(offer));
        assert!((0..bytes.len()).all(|end| Offer::decode(&bytes[..end]).is_none()));
        assert_eq!(Offer::decode(&[bytes, vec![0; 4]].concat()), None);
    }
}
