//! One operator of one shape, ready to run.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use mkernel_core::routing::NOWHERE;
use mkernel_core::{Executor, Op, Placement, Program, Rank, RoleName, Routed, Run, Span, Verified};
use mkernel_kernels::{Operator, PlanError, RoleCtas, TensorKind, TensorSpec};

use crate::check::{Failure, Tile};
use crate::error::Error;
use crate::planning::check_roles;
use crate::report::Report;
use crate::tensor::{Tensor, Tensors};

/// An operator with its own regions, cells and epoch; instances share nothing.
pub struct Instance<O> {
    operator: O,
    sequence: u64,
    programs: Arc<Verified>,
    executor: Box<dyn Executor>,
    /// The one rank hosted here, or `None` for all.
    hosted: Option<Rank>,
    launches: u64,
    /// NIC bytes per rank that one epoch needs with the inputs in memory.
    law: Vec<u64>,
}

impl<O: Operator> Instance<O> {
    pub(crate) fn new(
        operator: O,
        sequence: u64,
        programs: Arc<Verified>,
        executor: Box<dyn Executor>,
        hosted: Option<Rank>,
    ) -> Instance<O> {
        let law = programs.programs().iter().map(|p| p.law.inter_out).collect();
        Instance { operator, sequence, programs, executor, hosted, launches: 0, law }
    }

    /// The operator and its shape.
    pub fn operator(&self) -> &O {
        &self.operator
    }

    /// The place of this instance in the order in which the session made its instances.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// The proved programs that it runs.
    pub fn programs(&self) -> &Verified {
        &self.programs
    }

    /// Gives roles other numbers of CTAs from the next launch on; roles left open keep theirs. Results do not change.
    ///
    /// # Errors
    /// [`Error::Plan`] for a role that the operator lacks or that has work and no CTA, [`Error::Split`] for more CTAs than can run at once. Roles before the
    /// refused one have their new numbers then.
    pub fn set_roles(&mut self, roles: &RoleCtas) -> Result<(), Error> {
        check_roles(&self.operator, roles)?;
        for role in RoleName::ALL {
            let has_work = self.programs.programs().iter().flat_map(|p| &p.lanes).any(|lane| lane.role == role);
            match roles.get(role).map(NonZeroU32::new) {
                None => {}
                Some(None) if has_work => return Err(PlanError::Starved { role }.into()),
                Some(None) => {}
                Some(Some(ctas)) => self.executor.set_ctas(role, ctas)?,
            }
        }
        Ok(())
    }

    /// Runs one epoch on global tensors: scatters the inputs, launches, gathers the outputs.
    ///
    /// # Errors
    /// [`Error::Tensor`] before anything is touched, [`Error::Fault`] if the launch fails, [`Error::Check`] if ranks disagree.
    pub fn run(&mut self, inputs: &Tensors) -> Result<(Tensors, Report), Error> {
        self.scatter(inputs)?;
        let report = self.launch()?;
        Ok((self.gather()?, report))
    }

    /// Writes the global input tensors into the memory of the ranks that this process hosts.
    ///
    /// # Errors
    /// [`Error::Tensor`] if one is missing or not of the operator's shape and type; nothing is written then.
    pub fn scatter(&mut self, inputs: &Tensors) -> Result<(), Error> {
        let specs = self.operator.tensors();
        for spec in specs.iter().filter(|s| s.kind != TensorKind::Output) {
            inputs.expect(spec)?;
        }
        for spec in specs.iter().filter(|s| matches!(s.kind, TensorKind::Ids { .. })) {
            let ids = inputs.expect(spec)?.to_i32();
            if let Some(law) = self.operator.routed_law(self.programs.world(), &ids) {
                self.law = law;
            }
        }
        let mut packed = Vec::new();
        let is_here = |p: &&Program| self.hosted.is_none_or(|rank| p.rank == rank);
        for placement in self.programs.programs().iter().filter(is_here).flat_map(|p| &p.inputs) {
            let spec = spec_of(&specs, placement);
            let tensor = inputs.expect(spec)?;
            packed.clear();
            for row in rows(spec, placement) {
                packed.extend_from_slice(&tensor.bytes()[row]);
            }
            self.executor.write(&placement.span, &packed);
        }
        Ok(())
    }

    /// Runs one epoch on what is in memory.
    ///
    /// # Errors
    /// [`Error::Fault`]; the instance is of no more use then.
    pub fn launch(&mut self) -> Result<Report, Error> {
        tracing::debug!(epoch = self.launches, "launch");
        let run: Run = self.executor.launch()?;
        self.launches += 1;
        Ok(Report::new(run, self.law.clone()))
    }

    /// Reads the global output tensors from the memory of all ranks. Any rank of a job may, until it launches again.
    ///
    /// # Errors
    /// [`Failure::Replica`] if ranks that hold the same elements differ in a bit, [`Failure::Place`] if memory says that a row
    /// is where no row is.
    pub fn gather(&self) -> Result<Tensors, Failure> {
        let specs = self.operator.tensors();
        let outputs = specs.iter().filter(|s| s.kind == TensorKind::Output);
        let mut gathering: Vec<Gathering<'_>> = outputs.map(Gathering::new).collect();
        let find = |name| {
            let position = specs.iter().filter(|s| s.kind == TensorKind::Output).position(|s| s.name == name);
            position.expect("programs place only tensors of their operator")
        };
        let mut packed = Vec::new();
        for placement in self.programs.programs().iter().flat_map(|p| &p.outputs) {
            packed.resize(placement.span.bytes() as usize, 0);
            self.executor.read(&placement.span, &mut packed);
            gathering[find(placement.tensor)].add(placement, &packed)?;
        }
        for routed in self.programs.programs().iter().flat_map(|p| &p.routed) {
            self.gather_routed(routed, &mut gathering[find(routed.tensor)])?;
        }
        let mut result = Tensors::new();
        for Gathering { spec, tensor, .. } in gathering {
            result.insert(spec.name, tensor);
        }
        Ok(result)
    }

    /// Copies the rows that data placed on one rank to where they belong.
    fn gather_routed(&self, routed: &Routed, gathering: &mut Gathering<'_>) -> Result<(), Failure> {
        let mut places = vec![0; routed.rows.bytes() as usize];
        self.executor.read(&routed.rows, &mut places);
        let Gathering { spec, tensor, .. } = gathering;
        let row_bytes = (spec.matrix().1 * spec.dtype.bytes()) as usize;
        let rows = tensor.bytes_mut().chunks_exact_mut(row_bytes);
        for ((row, bytes), place) in (0..).zip(rows).zip(places.as_chunks::<4>().0) {
            let (place, span) = (u32::from_le_bytes(*place), routed.span);
            if place == NOWHERE {
                continue;
            }
            if place >= span.rows {
                return Err(Failure::Place { tensor: spec.name, row, place, rank: span.rank.0 });
            }
            self.executor.read(&Span { offset: span.row(place), rows: 1, ..span }, bytes);
        }
        Ok(())
    }

    /// Where this operator's tensors live on `rank`: inputs, then outputs.
    pub fn placements(&self, rank: Rank) -> impl Iterator<Item = &Placement> {
        self.programs.program(rank).into_iter().flat_map(|p| p.inputs.iter().chain(&p.outputs))
    }

    /// Writes a rank's part of a tensor, row after row.
    ///
    /// # Panics
    /// If `bytes` is not of the placement's length.
    pub fn write(&mut self, placement: &Placement, bytes: &[u8]) {
        self.executor.write(&placement.span, bytes);
    }

    /// Reads a rank's part of a tensor, row after row.
    pub fn read(&self, placement: &Placement) -> Vec<u8> {
        let mut bytes = vec![0; placement.span.bytes() as usize];
        self.executor.read(&placement.span, &mut bytes);
        bytes
    }

    /// The rectangles of the outputs that single instructions write, on all ranks.
    pub fn tiles(&self) -> Vec<Tile> {
        let specs = self.operator.tensors();
        let placed = self.programs.programs().iter().flat_map(|p| program_tiles(p, &specs));
        let routed = self.programs.programs().iter().flat_map(|p| &p.routed).map(|r| r.tensor);
        let names: BTreeSet<&str> = routed.collect();
        let routed = specs.iter().filter(|s| names.contains(s.name)).flat_map(grid);
        placed.chain(routed).collect()
    }
}

/// An output while it is put together.
struct Gathering<'a> {
    spec: &'a TensorSpec,
    tensor: Tensor,
    /// By element: whether a rank has given it.
    is_known: Vec<bool>,
}

impl<'a> Gathering<'a> {
    fn new(spec: &'a TensorSpec) -> Gathering<'a> {
        let tensor = zeros(spec);
        let is_known = vec![false; tensor.bytes().len() / spec.dtype.bytes() as usize];
        Gathering { spec, tensor, is_known }
    }

    /// Takes what one rank holds; what another has given already must be the same bits.
    fn add(&mut self, placement: &Placement, bytes: &[u8]) -> Result<(), Failure> {
        let element = self.spec.dtype.bytes() as usize;
        let row_bytes = (placement.span.row_bytes as usize).max(1);
        for (row, (at, from)) in (placement.row..).zip(rows(self.spec, placement).zip(bytes.chunks(row_bytes))) {
            let (known, held) =
                (&mut self.is_known[at.start / element..at.end / element], &mut self.tensor.bytes_mut()[at]);
            let pairs = held.chunks_exact(element).zip(from.chunks_exact(element));
            let wrong = known.iter().zip(pairs).position(|(&is_known, (held, from))| is_known && held != from);
            if let Some(column) = wrong {
                let (tensor, column) = (placement.tensor, placement.column + column as u64);
                return Err(Failure::Replica { tensor, row, column, rank: placement.span.rank.0 });
            }
            held.copy_from_slice(from);
            known.fill(true);
        }
        Ok(())
    }
}

/// Rectangles that cover a tensor whose rows data places.
fn grid(spec: &TensorSpec) -> impl Iterator<Item = Tile> + use<> {
    const STEP: u64 = 128;
    let ((rows, columns), tensor) = (spec.matrix(), spec.name);
    (0..rows).step_by(STEP as usize).flat_map(move |row| {
        (0..columns).step_by(STEP as usize).map(move |column| {
            let (rows, columns) = ((rows - row).min(STEP), (columns - column).min(STEP));
            Tile { tensor, row, column, rows, columns }
        })
    })
}

/// An output, still empty.
fn zeros(spec: &TensorSpec) -> Tensor {
    Tensor::zeros(spec).expect("the session made sure that all tensors fit into memory")
}

fn spec_of<'a>(specs: &'a [TensorSpec], placement: &Placement) -> &'a TensorSpec {
    specs.iter().find(|s| s.name == placement.tensor).expect("programs place only tensors of their operator")
}

/// The byte ranges of the global tensor that a placement's rows cover.
fn rows(spec: &TensorSpec, placement: &Placement) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
    let (element, columns) = (spec.dtype.bytes(), spec.matrix().1);
    let Placement { row, column, span, .. } = *placement;
    (0..u64::from(span.rows)).map(move |i| {
        let start = ((row + i) * columns + column) * element;
        start as usize..(start + span.row_bytes) as usize
    })
}

fn program_tiles(program: &Program, specs: &[TensorSpec]) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (_, _, instruction) in program.instructions().filter(|(_, _, i)| i.op != Op::Release) {
        for span in program.writes(instruction).iter().filter(|s| s.rank == program.rank) {
            let tile = program.outputs.iter().find_map(|p| tile(span, p, spec_of(specs, p).dtype.bytes()));
            tiles.extend(tile);
        }
    }
    tiles
}

/// The part of a global tensor that `span` covers, if it lies within `placement`.
fn tile(span: &Span, placement: &Placement, element: u64) -> Option<Tile> {
    let home = &placement.span;
    if span.is_empty() || span.overlap(home) != span.bytes() {
        return None;
    }
    let (row, column) = match home.stride {
        0 => (0, span.offset - home.offset),
        stride => ((span.offset - home.offset) / stride, (span.offset - home.offset) % stride),
    };
    Some(Tile {
        tensor: placement.tensor,
        row: placement.row + row,
        column: placement.column + column / element,
        rows: u64::from(span.rows),
        columns: span.row_bytes / element,
    })
}
