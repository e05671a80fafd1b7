use mkernel_core::{DType, Mask, RankAddresses, World};

use super::super::layout::OpCode;
use super::super::{Image, encode};
use super::*;
use crate::ring_attention::{Layout, RingAttention};
use crate::{AgGemm, GemmRs, Operator, Partial, Profile, RoleCtas};

/// Rank r's region i lies at `(r + 1) << 40 | i << 32`.
fn addresses(world: &World) -> Addresses {
    let mut table = Addresses::new(world.size());
    for rank in world.ranks() {
        let base = (u64::from(rank.0) + 1) << 40;
        let regions = (0..200).map(|i| base | i << 32).collect();
        table.set(rank, RankAddresses { regions, cells: base | 0xff << 32 });
    }
    table
}

/// The first byte that a map gives at a row and a column.
fn byte(image: &Image, map: u32, row: u32, column: u32) -> u64 {
    let spec = image.tiles.maps[map as usize];
    assert!(u64::from(row) < spec.rows && u64::from(column) < spec.columns, "{spec:?} has no {row}, {column}");
    spec.address + u64::from(row) * spec.pitch + u64::from(column) * bytes_of(spec.element)
}

/// Every tile names the bytes of its spans; the number of tiles.
fn check(op: &dyn Operator, world: &World) -> usize {
    let (table, roles) = (addresses(world), RoleCtas::default());
    let profile = Profile { tile_m: 128, ..Profile::H200 };
    let programs: Vec<Program> = world.ranks().map(|r| op.plan(world, r, &profile, &roles).unwrap()).collect();
    let Some(engine) = Engine::of(&programs, &table) else { return 0 };
    let mut tiles = 0;
    for program in &programs {
        let image = encode(program, &table, Some(&engine)).unwrap();
        let at = |span: &Span| table.span(span).unwrap();
        let entries = image.instructions.iter().zip(&image.tiles.tiles);
        for ((_, _, planned), (entry, tile)) in program.instructions().zip(entries) {
            if entry.op != OpCode::Tile as u32 {
                continue;
            }
            tiles += 1;
            let (c, spec) = (&program.writes(planned)[0], image.tiles.maps[tile.c_map as usize]);
            assert_eq!(byte(&image, tile.c_map, tile.row, tile.column), at(c));
            assert_eq!((tile.out, tile.pitch, tile.rows), (spec.address, spec.pitch, c.rows));
            let width = u64::from(tile.columns - tile.column);
            assert_eq!(width * bytes_of(spec.element), c.row_bytes);
            // What the engine stores past the tile's columns, the map does not have.
            assert!(width == u64::from(engine.columns()) || spec.columns == u64::from(tile.columns));
            let boxes = &image.tiles.boxes[planned.segments.start as usize..];
            for (segment, b) in program.segments(planned).iter().zip(boxes) {
                let [.., first, second] = program.reads(segment) else { panic!("two operands") };
                assert_eq!(byte(&image, b.a_map, b.a_row, b.a_column), at(first));
                assert_eq!(byte(&image, b.b_map, b.b_row, b.b_column), at(second));
                if let Engine::Gemm(_) = engine {
                    let (a_map, b_map) = (image.tiles.maps[b.a_map as usize], image.tiles.maps[b.b_map as usize]);
                    assert_eq!((a_map.columns, b_map.rows), (u64::from(second.rows), u64::from(second.rows)));
                    assert_eq!(u64::from(b.length), u64::from(second.rows).div_ceil(64));
                } else {
                    assert_eq!((b.length, b.position), (second.rows, segment.position));
                    assert_eq!(
                        byte(&image, tile.q_map, tile.q_row, tile.q_column),
                        at(&program.reads(&program.segments(planned)[0])[0])
                    );
                }
            }
        }
    }
    tiles
}

#[test]
fn tiles_name_the_bytes_of_their_spans_and_operands_end_with_their_depth() {
    let (dtype, partial) = (DType::Bf16, Partial::Narrow);
    for (gpus, ranks) in [(&[1][..], 1), (&[2, 2], 4), (&[2, 1], 3)] {
        let world = World::new(gpus).unwrap();
        for (m, n, k) in [(300, 264 * ranks, 200), (64, 8 * ranks, 1000)] {
            assert!(check(&AgGemm { m, n, k, dtype }, &world) > 0);
            assert!(check(&GemmRs { m, n, k: k * ranks, dtype, partial }, &world) > 0);
        }
        let (mask, layout) = (Mask::Causal, Layout::ZigZag);
        let op = RingAttention { batch: 2, heads: 2, kv_heads: 1, seq: 700, dim: 64, mask, layout, dtype };
        assert!(check(&op, &world) > 0);
    }
}

#[test]
fn rows_that_the_copy_engine_does_not_take_are_no_tiles() {
    let world = World::uniform(1, 2).unwrap();
    for (n, k, dtype) in [(258, 64, DType::Bf16), (256, 65, DType::Bf16), (256, 64, DType::F32)] {
        assert_eq!(check(&AgGemm { m: 100, n, k, dtype }, &world), 0);
    }
}
