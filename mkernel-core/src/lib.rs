//! The eight concepts of mkernel as plain data, and the proof that a program is sound.
//!
//! A fused operator is planned on the host as a [`Program`] per rank: which CTA does what, which bytes it reads and
//! writes, which signals it waits for and raises. [`fn@validate`] turns programs into [`Verified`], the only thing that
//! executors accept.
//!
//! `roles -> plan -> validate -> Verified -> executor -> FIFO -> proxy -> transport -> signal`
//!
//! | concept | module |
//! |---|---|
//! | world, rank, node | [`world`] |
//! | region | [`region`] |
//! | put, signal, wait | [`signal`], [`program`] |
//! | epoch | [`signal`] |
//! | program | [`program`], built by [`builder`], proved by [`mod@validate`] |
//! | role | [`role`] |
//! | routing, what data decides | [`routing`] |
//! | transport | [`transport`], fed by [`proxy`], which [`route`]s to what a [`nic`] offers |
//! | executor | [`executor`], ends in a [`fault`] at worst |
#![deny(unsafe_code)]

pub mod abi;
pub mod address;
pub mod builder;
pub mod dtype;
pub mod executor;
pub mod fault;
pub mod fifo;
mod floors;
pub mod nic;
pub mod program;
pub mod proxy;
pub mod region;
pub mod role;
pub mod route;
pub mod routing;
pub mod signal;
pub mod ticket;
mod toward;
pub mod transport;
pub mod validate;
pub mod world;

pub use address::{Addresses, RankAddresses};
pub use builder::{LaneBuilder, ProgramBuilder};
pub use dtype::DType;
pub use executor::{Executor, Run};
pub use fault::{Fault, FaultKind};
pub use program::{Instruction, Lane, LaneId, Law, Mask, Op, Placement, Program, Put, PutId, Routed, Segment, Stage};
pub use proxy::Proxy;
pub use region::{Region, RegionId, Span};
pub use role::{Role, RoleName};
pub use routing::Experts;
pub use signal::{Born, Cell, CellId, Signal};
pub use ticket::Ticket;
pub use transport::Transport;
pub use validate::{Scope, Verified, Violation, validate, validate_rank};
pub use world::{Node, Rank, World};
