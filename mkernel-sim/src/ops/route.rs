//! Route: the index of one rank from the table of chosen experts.

use mkernel_core::routing::{Router, Run, Tile};
use mkernel_core::{Op, Span};

use super::table::{ids, put_words};
use super::{Kernel, Task, Unplanned};

/// The router of the instruction in progress.
#[derive(Debug, Default)]
pub(super) struct Route {
    router: Option<Router>,
}

impl Kernel for Route {
    fn begin(&mut self, task: &Task<'_>) {
        let Op::Route { experts, .. } = *task.op else { panic!("the route kernel is only looked up for route") };
        self.router = Some(Router::new(experts, (task.writes[2].row_bytes / 4) as usize));
    }

    fn segment(&mut self, task: &Task<'_>, index: usize, reads: &[Span]) -> Result<(), Unplanned> {
        let run = if index == 0 { Run::Own } else { Run::Landed };
        let first = task.segments[index].position as u32;
        let router = self.router.as_mut().expect("a segment comes after its instruction's start");
        router.run(run, first, &ids(task, &reads[0]));
        Ok(())
    }

    fn finish(&mut self, task: &Task<'_>) {
        let Op::Route { tile, .. } = *task.op else { panic!("the route kernel is only looked up for route") };
        let [tiles, rows, places] = task.writes else { panic!("validate proved that a route writes three tables") };
        let router = self.router.take().expect("an instruction ends after its start");
        let index = router.finish(tile, places.rows.into());
        let mut entries: Vec<u32> = index.tiles.iter().flat_map(Tile::words).collect();
        entries.resize(tiles.rows as usize * Tile::WORDS, 0);
        put_words(task, tiles, &entries);
        put_words(task, rows, &index.rows);
        put_words(task, places, &index.places);
    }
}
