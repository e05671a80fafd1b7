//! The trace of one rank's launch as words that other processes read.
//!
//! Invariant: a launch notes no more events than [`most`] says, so the words that were reserved always suffice: an
//! instruction ends one stretch of work, and each of its waits ends one of work and one of waiting.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mkernel_core::executor::{Activity, TraceEvent};
use mkernel_core::{LaneId, Program};

use crate::block::Words;

/// Words of an event: CTA and instruction, lane and activity, start, duration.
const EVENT: usize = 4;

/// Bytes for the number of events and the events of any launch of `program`.
pub(crate) fn bytes(program: &Program) -> u64 {
    (1 + most(program) * EVENT) as u64 * 8
}

/// The most events of one launch.
fn most(program: &Program) -> usize {
    let waits = |instruction| {
        let segments = program.segments(instruction).iter();
        segments.map(|segment| segment.waits.len() + segment.picked.len()).sum::<usize>()
    };
    program.instructions().map(|(_, _, instruction)| 1 + 2 * waits(instruction)).sum()
}

/// Writes the events of a rank; the meeting that follows lets others read them.
pub(crate) fn publish(events: &[TraceEvent], words: &Words) {
    assert!(events.len() * EVENT < words.len(), "{} events in {} words", events.len(), words.len());
    for (event, words) in events.iter().zip(words[1..].chunks_exact(EVENT)) {
        let is_wait = u64::from(event.what == Activity::Wait);
        let values = [
            u64::from(event.cta) << 32 | u64::from(event.instruction),
            u64::from(event.lane.0) << 1 | is_wait,
            event.start_us.to_bits(),
            event.duration_us.to_bits(),
        ];
        words.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
    }
    words[0].store(events.len() as u64, Release);
}

/// Appends the events of the rank of `program`, whose launch began `later_us` after the first.
pub(crate) fn collect(program: &Program, words: &Words, later_us: f64, into: &mut Vec<TraceEvent>) {
    let count = words[0].load(Acquire) as usize;
    into.extend(words[1..].chunks_exact(EVENT).take(count).map(|words| {
        let [place, what, start, duration] = [0, 1, 2, 3].map(|index: usize| words[index].load(Relaxed));
        TraceEvent {
            rank: program.rank,
            cta: (place >> 32) as u32,
            lane: LaneId((what >> 1) as u16),
            instruction: place as u32,
            what: if what & 1 == 1 { Activity::Wait } else { Activity::Work },
            start_us: f64::from_bits(start) + later_us,
            duration_us: f64::from_bits(duration),
        }
    }));
}
