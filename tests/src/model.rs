//! A machine that only counts: cells, claims and puts, no memory. It runs programs that nobody has proved, with any
//! number of CTAs, in an order that a seed chooses, and says whether they end.

use mkernel_core::signal::reached;
use mkernel_core::{CellId, Op, Program, PutId, Rank};

/// One CTA.
#[derive(Clone, Copy, Debug)]
struct Cta {
    lane: usize,
    /// Instruction and segment.
    at: Option<(usize, usize)>,
    is_done: bool,
}

/// One rank's launch.
struct Launch {
    epoch: u64,
    claimed: Vec<usize>,
    ctas: Vec<Cta>,
}

struct Machine<'a> {
    programs: &'a [Program],
    cells: Vec<Vec<u64>>,
    ranks: Vec<Launch>,
    flights: Vec<(usize, PutId)>,
    ctas: Vec<Vec<usize>>,
}

/// Whether `epochs` launches of all ranks end, with up to `most` CTAs on each lane.
pub fn ends(programs: &[Program], seed: u64, most: usize, epochs: u64) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let ctas: Vec<Vec<usize>> =
        programs.iter().map(|p| p.lanes.iter().map(|_| random.usize(1..=most)).collect()).collect();
    let cells = programs.iter().map(|p| p.cells.iter().map(|c| c.initial(0)).collect()).collect();
    let mut machine = Machine { programs, cells, ranks: Vec::new(), flights: Vec::new(), ctas };
    machine.ranks = (0..programs.len()).map(|rank| machine.start(rank, 0)).collect();
    loop {
        // Agents are the CTAs of all ranks, and the network.
        let mut agents: Vec<Option<(usize, usize)>> = vec![None];
        for (rank, launch) in machine.ranks.iter().enumerate().filter(|(_, l)| l.epoch < epochs) {
            agents.extend((0..launch.ctas.len()).map(|cta| Some((rank, cta))));
        }
        if agents.len() == 1 {
            return true;
        }
        random.shuffle(&mut agents);
        let moved = agents.into_iter().any(|agent| match agent {
            Some((rank, cta)) => machine.step(rank, cta),
            None => machine.deliver(&mut random),
        });
        if !moved {
            return false;
        }
    }
}

impl Machine<'_> {
    fn start(&self, rank: usize, epoch: u64) -> Launch {
        let lanes = self.ctas[rank].iter().enumerate();
        let ctas = lanes.flat_map(|(lane, &n)| (0..n).map(move |_| Cta { lane, at: None, is_done: false })).collect();
        Launch { epoch, claimed: vec![0; self.ctas[rank].len()], ctas }
    }

    fn step(&mut self, rank: usize, number: usize) -> bool {
        let program = &self.programs[rank];
        let launch = &mut self.ranks[rank];
        let cta = launch.ctas[number];
        if cta.is_done {
            return false;
        }
        let Some((index, segment)) = cta.at else {
            self.claim(rank, number);
            return true;
        };
        let instruction = &program.lanes[cta.lane].instructions[index];
        if let Some(s) = program.segments(instruction).get(segment) {
            let holds = |&c: &CellId| reached(self.cells[rank][c.0 as usize], program.cell(c).threshold(launch.epoch));
            if !program.waits(s).iter().chain(program.picked(s)).all(holds) {
                return false;
            }
            launch.ctas[number].at = Some((index, segment + 1));
            return true;
        }
        launch.ctas[number].at = None;
        for signal in program.signals(instruction) {
            self.cells[signal.rank.0 as usize][signal.cell.0 as usize] += u64::from(signal.amount);
        }
        if let Op::Put(id) = instruction.op {
            self.flights.push((rank, id));
        }
        true
    }

    /// Claims from the lane or its continuations; a rank whose CTAs all find nothing goes on to its next launch.
    fn claim(&mut self, rank: usize, number: usize) {
        let program = &self.programs[rank];
        let launch = &mut self.ranks[rank];
        let mut lane = Some(launch.ctas[number].lane);
        while let Some(current) = lane {
            if launch.claimed[current] < program.lanes[current].instructions.len() {
                launch.ctas[number] = Cta { lane: current, at: Some((launch.claimed[current], 0)), is_done: false };
                launch.claimed[current] += 1;
                return;
            }
            lane = program.lanes[current].next.map(|l| usize::from(l.0));
        }
        launch.ctas[number].is_done = true;
        if launch.ctas.iter().all(|cta| cta.is_done) {
            self.ranks[rank] = self.start(rank, self.ranks[rank].epoch + 1);
        }
    }

    fn deliver(&mut self, random: &mut fastrand::Rng) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        let (rank, id) = self.flights.swap_remove(random.usize(0..self.flights.len()));
        let put = *self.programs[rank].put(id);
        let mut raise = |rank: Rank, cell: CellId| self.cells[rank.0 as usize][cell.0 as usize] += 1;
        put.retired.into_iter().for_each(|cell| raise(Rank(rank as u32), cell));
        raise(put.target.rank, put.cell);
        true
    }
}
