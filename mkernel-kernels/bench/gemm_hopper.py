#!/usr/bin/env python3
"""Checks and times the Hopper GEMM engine beside cuBLAS, in one run on one Hopper GPU. Needs PyTorch with CUDA.

    python3 gemm_hopper.py check [--quick]   right on exact and random inputs, odd shapes, every variant; exit status
    python3 gemm_hopper.py bench [--all]     time of the chosen variant (--all: every candidate) beside cuBLAS

Times are medians over interleaved rounds; a round replays a CUDA graph of several launches of one contender, so host
overhead is in neither column. Inputs are random. With --json a line of JSON a result.
"""
import argparse
import json
import sys

from choice import NARROW, PAIR_K, WIDE, blocks_fit, candidates, chosen
from engine import Engine, Variant, build_all, name

SHAPES = (  # (M, N, K): one rank's share at the published shapes, square ones, and ones that divide by nothing
    [(m, m // 16, m) for m in (4096, 8192, 16384, 32768)]
    + [(m, m, m // 16) for m in (2048, 4096, 8192, 16384, 32768)]
    + [(8192, 8192, 8192), (4096, 4096, 4096), (1000, 520, 16384), (2048, 1024, 8192), (8191, 4104, 4096)]
)
CHECKED = [
    WIDE, WIDE._replace(cluster_m=2), Variant(128, 256, 4, 2), WIDE._replace(splits=2), WIDE._replace(splits=4),
    NARROW, NARROW._replace(cluster_m=2), NARROW._replace(cluster_m=2, splits=3), Variant(128, 128, 4, 1),
    PAIR_K, PAIR_K._replace(cluster_m=2), PAIR_K._replace(splits=4), Variant(128, 128, 2, 3),
    Variant(64, 256, 4, 2), Variant(64, 256, 4, 2, 2, splits=3), Variant(64, 256, 4, 2, 1, 2), Variant(64, 128, 6, 3),
    WIDE._replace(kind="f16"), WIDE._replace(kind="f32"), Variant(64, 256, 4, 2, kind="f32"),
    Variant(64, 256, 4, 2, 2, 2, kind="f32"),
]  # fmt: skip
GATED = CHECKED[:3]
CHECK_SHAPES = [(1, 8, 8), (63, 136, 64), (127, 264, 72), (257, 256, 200), (1000, 520, 1032), (1025, 2056, 384)]
CHECK_SHAPES += [(4096, 256, 4096), (2048, 2048, 128)]
LIMIT = {"bf16": 4e-3, "f16": 6e-4, "f32": 1e-5}  # of a tile's relative error: one rounding of the output, and f32 sums


def worst_tile(out, expected):
    """The largest relative error of any 128x128 tile, in the Frobenius norm; NaN counts as infinite."""
    worst = 0.0
    for top in range(0, out.shape[0], 128):
        for left in range(0, out.shape[1], 128):
            o, e = (t[top : top + 128, left : left + 128].double() for t in (out, expected))
            error = ((o - e).norm() / e.norm().clamp_min(1e-30)).item()
            worst = max(worst, error if error == error else float("inf"))
    return worst


def check_one(torch, engine, shape, exact, segments, clip, seed):
    """One variant, launched twice on fresh inputs into poisoned output; returns an error text or None."""
    (m, n, k), kind = shape, engine.variant.kind
    types = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    a, b = (torch.empty(*s, device="cuda", dtype=types["f16" if kind == "f16" else "bf16"]) for s in ((m, k), (k, n)))
    tall = torch.empty(m + 200, n, device="cuda", dtype=types[kind])
    rows = m if clip else None
    launch = engine.prepare(torch, a, b, tall if clip else tall[:m], 3, segments, rows, counted=True)
    for epoch in range(2):
        torch.manual_seed(seed + epoch)
        for t in (a, b):
            t.copy_(torch.randint(-2, 3, t.shape, device="cuda") if exact else torch.randn(t.shape, device="cuda"))
        tall.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        got, expected = tall[:m], a.double() @ b.double()
        if not torch.isnan(tall[m:]).all():
            return "wrote below C"
        if exact and not torch.equal(got, expected.float().to(types[kind])):
            return f"not exact: off by {(got.double() - expected).abs().max().item()} at most"
        error = 0.0 if exact else worst_tile(got, expected)
        if error > LIMIT[kind]:
            return f"worst tile off by {error:.2e}"
        if launch.stored.item() != launch.tiles * (epoch + 1):
            return f"{launch.stored.item()} tiles raised, {launch.tiles * (epoch + 1)} wanted"
    return None


def check_gates(torch, engine, seed):
    """K segments that arrive while the kernel runs are read only after their signal; returns an error text or None."""
    m, n, k, segments = 2048, 2048, 2048, 4  # 128 CTAs: the copies find multiprocessors free
    torch.manual_seed(seed)
    source, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    a, out = torch.empty_like(source), torch.empty(m, n, device="cuda").bfloat16()
    gates, expected = torch.zeros(segments, device="cuda", dtype=torch.int64), source.double() @ b.double()
    launch = engine.prepare(torch, a, b, out, segments=segments, gates=gates)
    side, width = torch.cuda.Stream(), k // segments

    def feed():
        for i in range(segments):
            a[:, i * width : (i + 1) * width].copy_(source[:, i * width : (i + 1) * width])
            gates[i].fill_(1)

    feed()  # loads the copy kernels: no module may be loaded once the waiting kernel runs
    a.fill_(float("nan"))
    gates.zero_()
    torch.cuda.synchronize()
    launch()
    with torch.cuda.stream(side):
        feed()
    torch.cuda.synchronize()
    error = worst_tile(out, expected)
    return f"gated segments: worst tile off by {error:.2e}" if error > LIMIT["bf16"] else None


def check(seed, quick, spin_limit):
    """Checks every variant, or with `quick` (for compute-sanitizer) a few on small shapes; returns the failures."""
    variants = CHECKED[:2] + [PAIR_K, WIDE._replace(splits=2)] if quick else CHECKED
    built = build_all(variants, spin_limit)
    import torch  # after the compiler's processes: they must not inherit CUDA

    torch.empty(1, device="cuda")
    failed = 0
    for variant in variants:
        engine, errors, count = Engine(variant, built[variant][0]), [], 0
        for shape in (s for s in CHECK_SHAPES[: 4 if quick else None] if blocks_fit(variant, s)):
            for exact, segments, clip in ((True, 1, False), (False, 3, False), (True, 2, True)):
                error, count = check_one(torch, engine, shape, exact, segments, clip, seed), count + 1
                errors += [f"{shape} exact={exact} segments={segments} clip={clip}: {error}"] if error else []
        if variant in GATED and not quick:
            error, count = check_gates(torch, engine, seed), count + 1
            errors += [error] if error else []
        failed += len(errors)
        verdict = "FAILED" if errors else "ok"
        print(f"{name(variant):44} {verdict} {count} cases, seed {seed}", *errors, sep="\n    ", flush=True)
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
    """Times cuBLAS, a launch that does nothing if that counts, and the contenders; returns {label: median us}."""
    m, n, k = shape
    a, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
    out, theirs = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    launches = max(1, min(100, int(1e12 / (2 * m * n * k))))  # some 1.5 ms a round
    kept = []  # a graph holds the pointers of what its launches use, not the tensors
    graphs = {"cublas": graph_of(torch, lambda: torch.matmul(a, b, out=theirs), launches)}
    if launches > 20:  # else the replay's own overhead is what it would show
        kept.append(engines[contenders[0][0]].prepare(torch, a, b, out, idle=True))
        graphs["idle"] = graph_of(torch, kept[0], launches)
    for variant, group in contenders:
        run = engines[variant].prepare(torch, a, b, out, group)
        kept.append(run)
        out.fill_(float("nan"))
        graphs[(variant, group)] = graph_of(torch, run, launches)
        error = ((out.float() - theirs.float()).norm() / theirs.float().norm()).item()
        if not error < LIMIT["bf16"]:
            raise SystemExit(f"wrong result of {name(variant)} at {shape}: off by {error:.2e}")
    times = {label: [] for label in graphs}
    for _ in range(rounds):
        for label, graph in graphs.items():
            times[label].append(timed_round(torch, graph, launches))
    return {label: sorted(t)[len(t) // 2] for label, t in times.items()}


def bench(every, as_json, rounds):
    plan = {shape: candidates(shape) if every else [(chosen(shape), 16)] for shape in SHAPES}
    built = build_all(variant for contenders in plan.values() for variant, _ in contenders)
    import torch

    torch.empty(1, device="cuda")
    engines = {variant: Engine(variant, cubin) for variant, (cubin, _) in built.items()}
    for shape, contenders in plan.items():
        medians = bench_shape(torch, engines, shape, contenders, rounds)
        base, idle, flops = medians.pop("cublas"), medians.pop("idle", None), 2 * shape[0] * shape[1] * shape[2]
        note = f"   idle launch {idle:.2f} us" if idle else ""
        size = "x".join(map(str, shape))
        print(f"{size:18} cublas {base:9.2f} us {flops / base / 1e6:6.0f} TFLOP/s{note}", flush=True)
        for (variant, group), us in sorted(medians.items(), key=lambda item: item[1]):
            label = ("*" if variant == chosen(shape) and group == 16 else " ") + f"{name(variant)} group{group}"
            print(f"   {label:47} {us:9.2f} us {flops / us / 1e6:6.0f} TFLOP/s  ratio {base / us:.3f}", flush=True)
            if as_json:
                print(json.dumps({"shape": shape, "variant": label[1:], "us": us, "cublas_us": base, "idle_us": idle}))
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "bench"))
    parser.add_argument("--all", action="store_true", help="bench: every candidate, not the chosen variant only")
    parser.add_argument("--quick", action="store_true", help="check: few and small, for compute-sanitizer")
    parser.add_argument("--spin-limit", type=int, help="check: debug build, whose waits trap after so many tries")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seed", type=int, default=20261201)
    options = parser.parse_args()
    if options.what == "check":
        sys.exit(1 if check(options.seed, options.quick, options.spin_limit) else 0)
    bench(options.all, options.json, options.rounds)


if __name__ == "__main__":
    main()
