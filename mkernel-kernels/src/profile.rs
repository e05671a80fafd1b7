//! What the planner believes of the hardware: rates for the cost model and tile sizes.

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
    };
}
