//! What the planner believes of the hardware: rates for the cost model and tile sizes.

/// What a tile of this width costs one SM, in clock cycles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileCost {
    /// Columns of the tile.
    pub columns: u32,
    /// A block of 64 of K.
    pub block: f64,
    /// What no other tile's products hide: the first loads and the last stores.
    pub tail: f64,
}

/// A hardware profile. Rates are of one rank (GPU) unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Name in reports.
    pub name: &'static str,
    /// Streaming multiprocessors: the CTAs that are resident at once.
    pub sms: u32,
    /// Floating-point operations per second of one SM in 16-bit matrix products.
    pub sm_flops: f64,
    /// Bytes per second that one SM copies to a peer of its node.
    pub sm_copy: f64,
    /// Bytes per second out of one GPU to peers of its node, all SMs together.
    pub link: f64,
    /// Bytes per second out of one GPU over its NIC.
    pub nic: f64,
    /// Seconds from a ticket to the signal at a rank of another node, for a small message.
    pub hop: f64,
    /// Seconds that an SM spends to hand one ticket to the proxy.
    pub ticket: f64,
    /// Rows of a tile of a matrix product.
    pub tile_m: u32,
    /// Columns of a tile.
    pub tile_n: u32,
    /// Widths that products choose from; empty: `tile_n` always.
    pub widths: &'static [TileCost],
}

impl Profile {
    /// One H200: 132 SMs, some 700 TFLOP/s in bf16 products (measured with cuBLAS), 450 GB/s of NVLink each way
    /// (datasheet of the 18-link HGX board), a ConnectX-7 at 50 GB/s. A hop of the
    /// NIC is an assumption. The copy rate of one SM is the measured device copy
    /// rate (4.15 TB/s read and written) spread over the SMs.
    pub const H200: Profile = Profile {
        name: "h200",
        sms: 132,
        sm_flops: 700e12 / 132.0,
        sm_copy: 4.15e12 / 2.0 / 132.0,
        link: 450e9,
        nic: 50e9,
        hop: 8e-6,
        ticket: 0.1e-6,
        tile_m: 128,
        tile_n: 256,
        widths: &[
            TileCost { columns: 256, block: 1060.0, tail: 1000.0 },
            TileCost { columns: 128, block: 550.0, tail: 400.0 },
        ],
    };

    /// A virtual rank on the host: a few threads each, so that a world of many ranks stays light.
    pub const HOST: Profile = Profile {
        name: "host",
        sms: 4,
        sm_flops: 10e9,
        sm_copy: 5e9,
        link: 10e9,
        nic: 5e9,
        hop: 20e-6,
        ticket: 0.2e-6,
        tile_m: 256,
        tile_n: 256,
        widths: &[],
    };

    /// Rows of tiles that take turns column by column. A wave of tiles then covers about as many rows of A as columns of B,
    /// a tile being twice as wide as high, and so reads the least.
    pub fn strip(&self) -> u64 {
        u64::from(2 * self.sms).isqrt().max(1)
    }

    /// This profile with the width of tile that an `m x n x k` product on one rank's SMs takes: the one of least waves
    /// times cycles of a tile. The constants order the widths as measured (`docs/performance.md`); they model no chip.
    pub fn for_product(&self, m: u64, n: u64, k: u64) -> Profile {
        let cycles = |cost: &TileCost| {
            let tiles = m.div_ceil(u64::from(self.tile_m)).saturating_mul(n.div_ceil(u64::from(cost.columns)));
            tiles.div_ceil(u64::from(self.sms.max(1))) as f64 * (k.div_ceil(64) as f64 * cost.block + cost.tail)
        };
        let best = self.widths.iter().min_by(|a, b| cycles(a).total_cmp(&cycles(b)));
        Profile { tile_n: best.map_or(self.tile_n, |cost| cost.columns), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_take_narrow_tiles_and_large_ones_wide_ones() {
        let width = |m, n, k| Profile::H200.for_product(m, n, k).tile_n;
        assert_eq!((width(2048, 2048, 128), width(8192, 8192, 8192)), (128, 256));
        assert_eq!(Profile::HOST.for_product(8192, 8192, 8192).tile_n, Profile::HOST.tile_n);
    }
}
