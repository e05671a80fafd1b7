//! Traces in the Chrome format, which Perfetto (<https://ui.perfetto.dev>) opens: a process per rank, a row per CTA.

use mkernel_core::Program;
use mkernel_core::executor::{Activity, TraceEvent};
use serde::Serialize;

/// Collects the traces of launches, one after the other on one time axis.
#[derive(Debug, Default)]
pub struct Trace {
    events: Vec<Event>,
    epochs: u64,
    start_us: f64,
}

/// The file.
#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: &'a [Event],
}

/// One event: `ph` is `X` for a stretch of time and `M` for a name.
#[derive(Debug, Serialize)]
struct Event {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ph: char,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: Args,
}

/// What is said about an event.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Args {
    Name { name: String },
    Task { role: &'static str, lane: u16, instruction: u32, epoch: u64 },
}

impl Trace {
    /// Adds one launch of `programs` that took `time_us`. Waits and work are events of their own.
    pub fn add(&mut self, programs: &[Program], events: &[TraceEvent], time_us: f64) {
        if self.epochs == 0 {
            self.name_rows(programs);
        }
        for event in events {
            let Some(program) = programs.iter().find(|p| p.rank == event.rank) else { continue };
            let lane = &program.lanes[usize::from(event.lane.0)];
            let (name, category) = match event.what {
                Activity::Wait => ("wait", "wait"),
                Activity::Work => (lane.instructions[event.instruction as usize].op.name(), "work"),
            };
            self.events.push(Event {
                name,
                cat: Some(category),
                ph: 'X',
                pid: event.rank.0,
                tid: event.cta,
                ts: Some(self.start_us + event.start_us),
                dur: Some(event.duration_us),
                args: Args::Task {
                    role: lane.role.name(),
                    lane: event.lane.0,
                    instruction: event.instruction,
                    epoch: self.epochs,
                },
            });
        }
        self.epochs += 1;
        self.start_us += time_us;
    }

    /// Names each rank and each CTA, with its home role. CTAs of a rank are numbered lane by lane.
    fn name_rows(&mut self, programs: &[Program]) {
        let row = |name, pid, tid, label| {
            let args = Args::Name { name: label };
            Event { name, cat: None, ph: 'M', pid, tid, ts: None, dur: None, args }
        };
        for program in programs {
            let rank = program.rank.0;
            self.events.push(row("process_name", rank, 0, program.rank.to_string()));
            let homes = program.lanes.iter().flat_map(|lane| (0..lane.ctas).map(|_| lane.role));
            for (cta, role) in (0..).zip(homes) {
                self.events.push(row("thread_name", rank, cta, format!("CTA {cta} ({role})")));
            }
        }
    }

    /// The file's bytes.
    pub fn to_json(&self) -> Vec<u8> {
        let file = File { unit: "ms", events: &self.events };
        serde_json::to_vec(&file).expect("events are plain numbers and strings, which JSON holds")
    }
}
