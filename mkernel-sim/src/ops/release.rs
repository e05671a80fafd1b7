//! Release: the spans are dead from here on.

use mkernel_core::Span;

use super::{Kernel, Task, Unplanned};

/// Holds nothing: a release reads nothing.
#[derive(Debug, Default)]
pub(super) struct Release;

impl Kernel for Release {
    fn begin(&mut self, _: &Task<'_>) {}

    fn segment(&mut self, _: &Task<'_>, _: usize, _: &[Span]) -> Result<(), Unplanned> {
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        if task.host.poison {
            for span in task.writes {
                task.host.memory.poison(span);
            }
        }
    }
}
