//! The flags.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use mkernel::{AllReduce, DType, Partial, Path, RoleCtas, RoleName};

/// Runs a dense operator and the communication around it as one persistent kernel per GPU.
#[derive(Debug, Parser)]
#[command(name = "mkernel", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an operator on tensors and check the result.
    Run(RunArgs),
    /// Plan and prove an operator without data, for worlds and shapes of any size.
    Plan(PlanArgs),
    /// List RDMA NICs, their ports and addresses, and which would be used and why.
    Nics(NicsArgs),
    /// Measure how long launches of an operator take.
    Bench(BenchArgs),
    /// Test every operator on this machine: exact and real inputs, odd shapes and worlds, and on a GPU faults.
    Selftest(SelftestArgs),
    /// Ask a running rank what every CTA waits for and since when; it answers on its stderr and goes on.
    Dump(DumpArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DumpArgs {
    /// The process of a rank of `run --transport shm`.
    #[arg(value_name = "PID")]
    pub(crate) process: u32,
}

/// What both commands take.
#[derive(Debug, clap::Args)]
pub(crate) struct ProblemArgs {
    /// The operator.
    #[arg(value_enum, value_name = "OP")]
    pub(crate) op: OpName,
    /// Number of nodes [default: 1, or as many as --gpus lists]
    #[arg(long, value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(crate) nodes: Option<u32>,
    /// GPUs of each node, or a list with one number per node, such as 3,2 [default: 1]
    #[arg(long, value_parser = gpu_list, value_name = "GPUS", allow_negative_numbers = true)]
    pub(crate) gpus: Option<GpuList>,
    /// Rows of A and C.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) m: Option<u64>,
    /// Columns of B and C.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) n: Option<u64>,
    /// Columns of A, rows of B.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) k: Option<u64>,
    /// Tokens (mixture of experts).
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) tokens: Option<u64>,
    /// Elements of a token.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) hidden: Option<u64>,
    /// Columns of an expert's first product.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) inner: Option<u64>,
    /// Experts of the whole world.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) experts: Option<u64>,
    /// Experts that a token chooses, at most all.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) topk: Option<u64>,
    /// Sequences of attention.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) batch: Option<u64>,
    /// Heads of Q and O.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) heads: Option<u64>,
    /// Heads of K and V [default: as --heads]
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) kv_heads: Option<u64>,
    /// Positions of the sequence.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) seq: Option<u64>,
    /// Length of one head's vectors.
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) dim: Option<u64>,
    /// Let a position see only itself and those before it.
    #[arg(long)]
    pub(crate) causal: bool,
    /// How the sequence is divided between ranks [default: zig-zag]
    #[arg(long, value_enum)]
    pub(crate) layout: Option<LayoutName>,
    /// Element type [default: bf16, or that of --input]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<DTypeName>,
    /// How a node's partial sums cross the NIC, for gemm-rs and gemm-ar [default: narrow]
    #[arg(long, value_enum)]
    pub(crate) partial: Option<PartialName>,
    /// By which way gemm-ar reaches every rank [default: auto]
    #[arg(long, value_enum)]
    pub(crate) all_reduce: Option<AllReduceName>,
    /// CTAs of each role, such as compute=2,intra=1; roles left out follow from the shape.
    #[arg(long, value_parser = roles, value_name = "ROLE=CTAS,..")]
    pub(crate) roles: Option<RoleCtas>,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Log what is done on stderr.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// The flags that [`ProblemArgs::axis`] knows.
pub(crate) const AXES: [&str; 13] = [
    "--m",
    "--n",
    "--k",
    "--tokens",
    "--hidden",
    "--inner",
    "--experts",
    "--topk",
    "--batch",
    "--heads",
    "--kv-heads",
    "--seq",
    "--dim",
];

impl ProblemArgs {
    /// The size that a flag gives to an axis.
    pub(crate) fn axis(&self, flag: &str) -> Option<u64> {
        match flag {
            "--m" => self.m,
            "--n" => self.n,
            "--k" => self.k,
            "--tokens" => self.tokens,
            "--hidden" => self.hidden,
            "--inner" => self.inner,
            "--experts" => self.experts,
            "--topk" => self.topk,
            "--batch" => self.batch,
            "--heads" => self.heads,
            "--kv-heads" => self.kv_heads,
            "--seq" => self.seq,
            "--dim" => self.dim,
            _ => None,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    /// Global input tensors; shapes and type come from the file. Without it inputs follow from --seed.
    #[arg(long, value_name = "F.safetensors")]
    pub(crate) input: Option<PathBuf>,
    /// Where the outputs of the last epoch go.
    #[arg(long, value_name = "F.safetensors")]
    pub(crate) output: Option<PathBuf>,
    /// Where inputs, samples of the check and the seeded schedule start from.
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Launches, each with new inputs unless they come from a file.
    #[arg(long, default_value_t = 1, value_parser = positive, allow_negative_numbers = true)]
    pub(crate) epochs: u64,
    /// What carries bytes between nodes.
    #[arg(long, value_enum, default_value_t = TransportName::Loopback)]
    pub(crate) transport: TransportName,
    /// NICs of --transport verbs, one for each rail, such as mlx5_0,mlx5_1 [default: the best one]
    #[arg(long, value_delimiter = ',', value_name = "NIC,..")]
    pub(crate) nic: Vec<String>,
    /// Queue pairs of --transport verbs to each peer on each NIC [default: 2]
    #[arg(long, value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(crate) queues: Option<u32>,
    /// How signals of --transport verbs travel [default: write]
    #[arg(long, value_enum)]
    pub(crate) signals: Option<SignalsName>,
    /// How ranks of one node reach each other; proxied makes every rank a node of its own.
    #[arg(long, value_enum, default_value_t = PathName::Direct)]
    pub(crate) path: PathName,
    /// One thread per CTA, or one thread that picks every step from --seed.
    #[arg(long, value_enum, default_value_t = ScheduleName::Threads)]
    pub(crate) schedule: ScheduleName,
    /// The longest that any wait may last, in milliseconds.
    #[arg(long, default_value_t = 30_000, value_parser = positive, allow_negative_numbers = true)]
    pub(crate) deadline_ms: u64,
    /// How long all ranks of --transport shm and verbs have to arrive, and to leave, in milliseconds [default: 120000, or
    /// MKERNEL_START_DEADLINE_MS]
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    pub(crate) start_deadline_ms: Option<u64>,
    /// Where a Chrome/Perfetto trace goes.
    #[arg(long, value_name = "F.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Skip the check against the f64 reference.
    #[arg(long)]
    pub(crate) no_check: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NicsArgs {
    /// The index of a rank on its node: ranks take equal NICs in turn.
    #[arg(long, default_value_t = 0, value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub(crate) local_rank: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    /// What carries bytes between nodes: loopback, or cuda for all ranks on one GPU.
    #[arg(long, value_enum, default_value_t = TransportName::Loopback)]
    pub(crate) transport: TransportName,
    /// Launches that are not measured.
    #[arg(long, default_value_t = 3, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) warm_up: u64,
    /// Launches that are measured, on the same inputs.
    #[arg(long, default_value_t = 21, value_parser = positive, allow_negative_numbers = true)]
    pub(crate) launches: u64,
    /// Where inputs start from.
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// The most that the hardware does, in TFLOP/s, as measured otherwise [default: that of the profile]
    #[arg(long, value_name = "TFLOPS")]
    pub(crate) ceiling_tflops: Option<f64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SelftestArgs {
    /// What is tested: loopback, or cuda for all ranks on one GPU.
    #[arg(long, value_enum, default_value_t = TransportName::Loopback)]
    pub(crate) transport: TransportName,
    /// Where inputs start from.
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// A third of the cases.
    #[arg(long)]
    pub(crate) quick: bool,
    /// This operator alone.
    #[arg(long, value_enum, value_name = "OP")]
    pub(crate) only: Option<OpName>,
    /// Log what is done on stderr.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    /// The hardware to plan for.
    #[arg(long, value_enum, default_value_t = ProfileName::H200)]
    pub(crate) profile: ProfileName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpName {
    /// C = A B, with A sharded by rows, B and C by columns.
    AgGemm,
    /// C = A B, with K split over the ranks and C sharded by rows.
    GemmRs,
    /// C = A B, with K split over the ranks and C on every rank.
    GemmAr,
    /// Each token times the weights of each expert that it chose.
    MoeDispatchGemm,
    /// A whole layer of experts: gate, up, down, and the weighted sum per token.
    MoeFfn,
    /// O = softmax(Q K^T) V, with all four sharded along the sequence.
    RingAttention,
}

impl OpName {
    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LayoutName {
    /// One run of positions per rank.
    Plain,
    /// Two runs per rank, one from each end: equal work under a causal mask.
    ZigZag,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DTypeName {
    Bf16,
    F16,
    F32,
}

impl From<DTypeName> for DType {
    fn from(name: DTypeName) -> DType {
        match name {
            DTypeName::Bf16 => DType::Bf16,
            DTypeName::F16 => DType::F16,
            DTypeName::F32 => DType::F32,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PartialName {
    /// Rounded once to the element type.
    Narrow,
    /// In f32.
    F32,
}

impl From<PartialName> for Partial {
    fn from(name: PartialName) -> Partial {
        match name {
            PartialName::Narrow => Partial::Narrow,
            PartialName::F32 => Partial::F32,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AllReduceName {
    /// The faster one by the cost model.
    Auto,
    /// Reduce-scatter, then all-gather.
    TwoStep,
    /// Every node's partials to every other node.
    OneShot,
}

impl From<AllReduceName> for AllReduce {
    fn from(name: AllReduceName) -> AllReduce {
        match name {
            AllReduceName::Auto => AllReduce::Auto,
            AllReduceName::TwoStep => AllReduce::TwoStep,
            AllReduceName::OneShot => AllReduce::OneShot,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// In this process.
    Loopback,
    /// Between processes of one machine, one per rank, started by a launcher; nodes are as the launcher says.
    Shm,
    /// As shm within a node, and over RDMA NICs between nodes.
    Verbs,
    /// All ranks on one GPU, over its copy engines between nodes.
    Cuda,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SignalsName {
    /// A write after the bytes.
    Write,
    /// With each message; the receiving side counts.
    Immediate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PathName {
    /// CTAs load and store there themselves.
    Direct,
    /// By puts through the proxy, as between nodes.
    Proxied,
}

impl From<PathName> for Path {
    fn from(name: PathName) -> Path {
        match name {
            PathName::Direct => Path::Direct,
            PathName::Proxied => Path::Proxied,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ScheduleName {
    /// One thread per CTA.
    Threads,
    /// One thread that picks every step from --seed.
    Seeded,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ProfileName {
    /// One H200 per rank.
    H200,
    /// A few threads per rank, as `run` plans for the host.
    Host,
}

/// GPUs per node: one number for all nodes, or one per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuList(pub(crate) Vec<u32>);

/// What is wrong with the value of a flag; clap puts the flag's name before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("it must be a whole number")]
    Whole,
    #[error("it must be a whole number of at least 1")]
    Positive,
    #[error("it must be a number of GPUs, or one number per node, such as 3,2")]
    Gpus,
    #[error("each entry must be ROLE=CTAS, such as compute=2")]
    Entry,
    #[error("unknown role; roles are compute, intra, send and reduce")]
    Role,
    #[error("a role is named twice; name it once")]
    Twice,
}

fn whole<T: std::str::FromStr>(text: &str) -> Result<T, ValueError> {
    text.parse().map_err(|_| ValueError::Whole)
}

fn positive(text: &str) -> Result<u64, ValueError> {
    text.parse().ok().filter(|&value| value > 0).ok_or(ValueError::Positive)
}

fn gpu_list(text: &str) -> Result<GpuList, ValueError> {
    text.split(',').map(|g| g.trim().parse()).collect::<Result<_, _>>().map(GpuList).map_err(|_| ValueError::Gpus)
}

fn roles(text: &str) -> Result<RoleCtas, ValueError> {
    let mut ctas = RoleCtas::default();
    for entry in text.split(',') {
        let (name, count) = entry.split_once('=').ok_or(ValueError::Entry)?;
        let role = RoleName::ALL.into_iter().find(|r| r.name() == name.trim()).ok_or(ValueError::Role)?;
        if ctas.get(role).is_some() {
            return Err(ValueError::Twice);
        }
        ctas.set(role, count.trim().parse().map_err(|_| ValueError::Entry)?);
    }
    Ok(ctas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_gpu_lists_are_read_and_nonsense_is_named() {
        let given = roles("compute=2, intra=0").unwrap();
        assert_eq!((given.get(RoleName::Compute), given.get(RoleName::Intra)), (Some(2), Some(0)));
        assert_eq!(given.get(RoleName::Send), None);
        assert_eq!(roles("compute"), Err(ValueError::Entry));
        assert_eq!(roles("compute=-1"), Err(ValueError::Entry));
        assert_eq!(roles("walk=1"), Err(ValueError::Role));
        assert_eq!(roles("send=1,send=2"), Err(ValueError::Twice));
        assert_eq!(gpu_list("3,2"), Ok(GpuList(vec![3, 2])));
        assert_eq!(gpu_list("3,,2"), Err(ValueError::Gpus));
    }
}
