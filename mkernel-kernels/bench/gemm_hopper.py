#!/usr/bin/env python3
"""Checks and times the Hopper GEMM engine beside cuBLAS, in one run on one GPU. Needs PyTorch with CUDA on a Hopper GPU.

    python3 gemm_hopper.py check             right on exact and random inputs, odd shapes, every tile; exit status
    python3 gemm_hopper.py bench [--all]     time of the chosen variant (--all: every candidate) beside cuBLAS
    python3 gemm_hopper.py compile           compile every variant (no GPU needed)

Times are medians over interleaved rounds; each round replays a CUDA graph of several launches of one contender, so host
overhead is in neither column. Inputs are random. A line of JSON a result with --json.
"""
import argparse
import json
import sys

from engine import Engine, Variant, build_all, name

SHAPES = (  # (M, N, K): one rank's share at the published shapes, then square ones
    [(m, m // 16, m) for m in (4096, 8192, 16384, 32768)]
    + [(m, m, m // 16) for m in (2048, 4096, 8192, 16384, 32768)]
    + [(8192, 8192, 8192), (4096, 4096, 4096), (1000, 520, 16384), (2048, 1024, 8192), (8191, 4104, 4096)]
)
WIDE = Variant(128, 256, 3, 1, 1, boxes=4)
PAIR = Variant(128, 128, 5, 1, 1, 2)
CHECKED = [
    WIDE, WIDE._replace(cluster_m=2), WIDE._replace(cluster_n=2), Variant(128, 256, 4, 1, 1), WIDE._replace(splits=2), WIDE._replace(splits=4),
    Variant(128, 128, 6, 2, 1), Variant(128, 128, 4, 1, 1, boxes=1), Variant(128, 128, 6, 1, 2, splits=2),
    PAIR, PAIR._replace(cluster_n=2), PAIR._replace(splits=4), Variant(64, 256, 4, 1, 1, 2), Variant(64, 256, 4, 2, 1, 2, kind="f32"),
    Variant(256, 128, 4, 1, 2), Variant(256, 128, 4, 2, 1), Variant(64, 256, 4, 1, 1), Variant(64, 256, 4, 2, 1, splits=3),
    Variant(64, 128, 6, 1, 1, boxes=3), WIDE._replace(kind="f16"), WIDE._replace(kind="f32"), Variant(256, 128, 4, 1, 1, kind="f32"),
    Variant(64, 256, 4, 1, 1, kind="f32"),
]
GATED = CHECKED[:3]
CHECK_SHAPES = [(1, 8, 8), (63, 136, 64), (127, 264, 72), (257, 256, 200), (1000, 520, 1032), (1025, 2056, 384), (4096, 256, 4096), (2048, 2048, 128)]


def candidates(shape):
    """The variants worth timing at a shape, with their raster height."""
    m, n, k = shape
    found = [(WIDE._replace(cluster_m=c), g) for c in (1, 2) for g in (8, 16, 32)] + [chosen(shape)]
    found += [(Variant(128, 128, s, c, 1, boxes=b), 16) for s, b in ((5, 4), (6, 2)) for c in (1, 2)]
    if m <= 4096:
        found += [(PAIR, 8), (Variant(128, 128, 4, 1, 1, 2, boxes=4), 8), (Variant(64, 256, 4, 1, 1, 2), 8)]
        found += [(Variant(128, 128, 5, c, 1, splits=s), 8) for c in (1, 2) for s in (2, 3)]
        found += [(Variant(64, 256, 3, 1, 1), 8), (Variant(64, 256, 3, 1, 1, boxes=4), 8), (Variant(64, 128, 6, 1, 1, boxes=4), 8)]
    return list(dict.fromkeys((v, g) for v, g in found if -(-k // 64) >= v.splits * v.cluster_k))


def cycles(variant, shape):
    """What the rule of docs/performance.md expects of a variant at a shape, in clock cycles of one CTA."""
    v, (m, n, k) = variant, shape
    cluster = v.cluster_m * v.cluster_n * v.cluster_k
    tiles = -(-m // (v.tile_m * v.cluster_m)) * -(-n // (v.tile_n * v.cluster_n))
    waves = -(-tiles * v.splits // (132 // cluster))
    blocks = -(-k // (64 * v.splits * v.cluster_k))
    block, tail = (1060, 1000) if v.tile_n == 256 else (550, 500)
    return waves * (blocks * block + tail + (2000 if v.cluster_k > 1 else 0) + (4500 if v.splits > 1 else 0))


def chosen(shape):
    """The rule of docs/performance.md: which variant a planner takes for a shape, and its raster height."""
    m, n, k = shape
    offered = [WIDE._replace(cluster_m=1 if n % 64 == 0 else 2), Variant(128, 128, 6, 2, 1), PAIR]
    offered += [Variant(128, 128, 6, 1, 1, splits=s) for s in (2, 3, 4)]
    return min((v for v in offered if -(-k // 64) >= v.splits * v.cluster_k), key=lambda v: cycles(v, shape)), 16


def worst_tile(torch, out, expected):
    """The largest relative error of any 128x128 tile, in the Frobenius norm."""
    worst = 0.0
    for top in range(0, out.shape[0], 128):
        for left in range(0, out.shape[1], 128):
            o, e = (t[top : top + 128, left : left + 128].double() for t in (out, expected))
            error = ((o - e).norm() / e.norm().clamp_min(1e-30)).item()
            worst = max(worst, error if error == error else float("inf"))
    return worst


def check_one(torch, engine, shape, exact, segments, masked, seed):
    """One variant on fresh inputs, launched twice; returns an error text or None."""
    m, n, k = shape
    kind = engine.variant.kind
    dtype, out_dtype = (torch.float16 if kind == "f16" else torch.bfloat16), {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind]
    tall = torch.empty(m + 200, n, device="cuda", dtype=out_dtype)
    out = tall if masked else tall[:m]
    prepared = None
    for epoch in range(2):
        torch.manual_seed(seed + epoch)
        if prepared is None:
            a, b = torch.empty(m, k, device="cuda", dtype=dtype), torch.empty(k, n, device="cuda", dtype=dtype)
            prepared = engine.prepare(torch, a, b, out, group=3, segments=segments, rows=m if masked else None, counted=True)
        for t in (a, b):
            t.copy_(torch.randint(-2, 3, t.shape, device="cuda") if exact else torch.randn(t.shape, device="cuda"))
        tall.fill_(float("nan"))
        prepared()
        torch.cuda.synchronize()
        got, expected = tall[:m], a.double() @ b.double()
        if not torch.isnan(tall[m:]).all():
            return "wrote below C"
        if exact and not torch.equal(got, expected.float().to(out_dtype)):
            return f"not exact: {(got.double() - expected).abs().max().item()} at most"
        limit = {"bf16": 4e-3, "f16": 6e-4, "f32": 1e-5}[kind]
        if not exact and not worst_tile(torch, got, expected) <= limit:
            return f"worst tile off by {worst_tile(torch, got, expected):.2e}"
        if prepared.stored.item() != prepared.tiles * (epoch + 1):
            return f"{prepared.stored.item()} tiles raised, {prepared.tiles * (epoch + 1)} wanted"
    return None


def check_gates(torch, engine, seed):
    """K segments that arrive while the kernel runs: each is read only after its signal. Returns an error text or None."""
    m, n, k, segments = 2048, 2048, 2048, 4  # 128 CTAs: the copies find multiprocessors free
    torch.manual_seed(seed)
    source, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    a, out, gates = torch.full_like(source, float("nan")), torch.empty(m, n, device="cuda").bfloat16(), torch.zeros(segments, device="cuda", dtype=torch.int64)
    launch = engine.prepare(torch, a, b, out, segments=segments, gates=gates)
    side, width = torch.cuda.Stream(), k // segments

    def feed():
        for i in range(segments):
            a[:, i * width : (i + 1) * width].copy_(source[:, i * width : (i + 1) * width])
            gates[i].fill_(1)

    feed()  # loads the copy kernels: no module may be loaded once the waiting kernel runs
    a.fill_(float("nan"))
    gates.zero_()
    expected = source.double() @ b.double()
    torch.cuda.synchronize()
    launch()
    with torch.cuda.stream(side):
        feed()
    torch.cuda.synchronize()
    error = worst_tile(torch, out, expected)
    return None if error <= 4e-3 else f"gated segments: worst tile off by {error:.2e}"


def check_all(seed, quick):
    """Checks every variant, or with `quick` (for compute-sanitizer) a few on small shapes; returns the number of failures."""
    variants, shapes = (CHECKED[:2] + [PAIR, WIDE._replace(splits=2)], CHECK_SHAPES[:4]) if quick else (CHECKED, CHECK_SHAPES)
    cubins = build_all(variants)
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    failed = 0
    for variant in variants:
        engine, bad, count = Engine(variant, cubins[variant]), [], 0
        for shape in (s for s in shapes if -(-s[2] // 64) >= variant.splits * variant.cluster_k):
            for exact, segments, masked in ((True, 1, False), (False, 3, False), (True, 2, True)):
                error, count = check_one(torch, engine, shape, exact, segments, masked, seed), count + 1
                if error:
                    bad.append((shape, "exact" if exact else "random", segments, masked, error))
        if variant in GATED and not quick:
            error, count = check_gates(torch, engine, seed), count + 1
            bad += [error] if error else []
        failed += len(bad)
        print(f"{name(variant):32} {'ok' if not bad else 'FAILED'} {count} cases, seed {seed}", *bad[:4], sep="\n    " if bad else " ", flush=True)
    return failed


def graph_of(torch, run, launches):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()
    return graph


def timed_round(torch, graph, launches):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) * 1e3 / launches


def bench_shape(torch, engines, shape, contenders, rounds):
    """Times cuBLAS and the contenders in turn; returns {label: median us}."""
    m, n, k = shape
    a, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
    out, theirs = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    launches = max(1, min(20, int(2e11 / (2 * m * n * k))))  # some 0.3 ms a round
    kept = []  # a graph holds the pointers of what its launches use, not the tensors
    graphs = {"cublas": graph_of(torch, lambda: torch.matmul(a, b, out=theirs), launches)}
    for variant, group in contenders:
        run = engines[variant].prepare(torch, a, b, out, group=group)
        kept.append(run)
        out.fill_(float("nan"))
        graphs[(variant, group)] = graph_of(torch, run, launches)
        error = (out.float() - theirs.float()).norm() / theirs.float().norm()
        if not error.item() < 4e-3:
            print(f"WRONG {name(variant)} at {shape}: {error.item():.2e}", flush=True)
    if 2 * m * n * k < 1e10:
        run = engines[contenders[0][0]].prepare(torch, a, b, out, idle=True)
        kept.append(run)
        graphs["idle"] = graph_of(torch, run, launches)
    times = {label: [] for label in graphs}
    for _ in range(rounds):
        for label, graph in graphs.items():
            times[label].append(timed_round(torch, graph, launches))
    return {label: sorted(t)[len(t) // 2] for label, t in times.items()}


def bench(every, as_json, rounds):
    plan = {shape: candidates(shape) if every else [chosen(shape)] for shape in SHAPES}
    cubins = build_all(variant for contenders in plan.values() for variant, _ in contenders)
    import torch

    torch.empty(1, device="cuda")
    engines = {variant: Engine(variant, cubin) for variant, cubin in cubins.items()}
    for shape, contenders in plan.items():
        medians = bench_shape(torch, engines, shape, contenders, rounds)
        base, idle, flops = medians.pop("cublas"), medians.pop("idle", None), 2 * shape[0] * shape[1] * shape[2]
        print(f"{'x'.join(map(str, shape)):18} cublas {base:9.2f} us {flops / base / 1e6:6.0f} TFLOP/s" + (f"  (a launch that does nothing {idle:.2f} us)" if idle else ""), flush=True)
        for (variant, group), us in sorted(medians.items(), key=lambda item: item[1]):
            label = f"{name(variant)} g{group}"
            print(f"    {label:30} {us:9.2f} us {flops / us / 1e6:6.0f} TFLOP/s  ratio {base / us:.3f}", flush=True)
            if as_json:
                print(json.dumps({"shape": shape, "variant": label, "us": us, "cublas_us": base, "ratio": base / us}))
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "bench", "compile"))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--quick", action="store_true", help="check: few and small, for compute-sanitizer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=20261201)
    options = parser.parse_args()
    if options.what == "check":
        sys.exit(1 if check_all(options.seed, options.quick) else 0)
    if options.what == "compile":
        built = build_all(CHECKED + [variant for shape in SHAPES for variant, _ in candidates(shape)])
        print(f"{len(built)} variants compiled")
        return
    bench(options.all, options.json, options.rounds)


if __name__ == "__main__":
    main()
