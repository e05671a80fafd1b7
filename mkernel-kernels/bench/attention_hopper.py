#!/usr/bin/env python3
"""Checks and times the Hopper attention engine beside cuDNN, in one run on one Hopper GPU. Needs PyTorch with CUDA.

    python3 attention_hopper.py check [--quick]   right on exact, random and poisoned inputs, every variant; exit status
    python3 attention_hopper.py bench [--all]     time of the chosen variant (--all: every candidate) beside cuDNN

Times are medians over interleaved rounds; a round replays a CUDA graph of several launches of one contender, so host
overhead is in neither column. Inputs are random. With --json a line of JSON a result.
"""
import argparse
import json
import sys
from collections import namedtuple

from attention_engine import Engine, Segment, Variant, build_all, name
from gemm_hopper import graph_of, timed_round

CANDIDATES = {  # by head dimension, the chosen one first
    64: [Variant(64, 192, 3, 2), Variant(64, 128, 4, 2)],
    128: [Variant(128, 176, 2, 1), Variant(128, 160, 2, 2), Variant(128, 128, 2, 2)],
    256: [Variant(256, 64, 2, 2)],
}
CHECKED = [v for candidates in CANDIDATES.values() for v in candidates] + [
    Variant(128, 176, 2, 1, kind="f16"), Variant(64, 128, 2, 1, kind="f16"), Variant(256, 64, 2, 1, kind="f16"),
]  # fmt: skip
# Batch 4, 16 heads: a sixteenth of the sequence's queries, all keys; then causal squares.
SEQUENCES, CAUSAL, HEADS = (12288, 24576, 49152, 98304, 196608), (4096, 8192, 16384), 64
LIMIT = {"bf16": 4e-3, "f16": 6e-4}  # of a tile's relative error: one rounding of the output, one of the weights

# `inputs`: random; mean (all weights alike: exact); pick (one key has all the weight: exact); large (scores of some
# thousand); nan (a key and its values are NaN) and infinite (one value is).
Case = namedtuple("Case", "heads kv_heads q_rows kv_rows segments causal query inputs")


def cut(*bounds, shuffled=False):
    """Segments that meet at `bounds`, positions as rows; `shuffled`: the last comes first."""
    segments = [Segment(a, b - a, a) for a, b in zip(bounds, bounds[1:])]
    return segments[::-1] if shuffled else segments


def cases(quick):
    gaps = [Segment(3, 1, 0), Segment(10, 300, 1), Segment(400, 129, 301), Segment(600, 0, 430), Segment(700, 64, 430)]
    late = cut(0, 400, 800, shuffled=True)
    found = [
        Case(2, 2, 128, 256, cut(0, 256), False, 0, "random"),
        Case(3, 1, 1, 1, cut(0, 1), False, 0, "random"),
        Case(6, 2, 200, 777, cut(0, 777), False, 0, "mean"),
        Case(2, 2, 200, 777, gaps, False, 0, "random"),
        Case(2, 1, 300, 777, gaps, True, 100, "random"),
        Case(4, 4, 300, 800, late, True, 500, "mean"),
        Case(2, 2, 300, 800, [Segment(0, 800, 150)], True, 0, "random"),
        Case(2, 2, 300, 500, cut(0, 500), True, 100, "nan"),
        Case(2, 2, 300, 500, cut(0, 500), True, 100, "infinite"),
    ]
    if not quick:
        found += [
            Case(4, 4, 1000, 1000, cut(0, 1000), True, 0, "random"),
            Case(150, 50, 257, 640, cut(0, 128, 640), False, 0, "random"),
            Case(8, 8, 512, 4096, cut(*range(0, 4097, 256)), False, 0, "random"),
            Case(8, 2, 1024, 2048, cut(0, 1100, 2048, shuffled=True), True, 1024, "random"),
            Case(4, 4, 300, 1500, cut(0, 700, 1500), False, 0, "pick"),
            Case(4, 4, 300, 1500, cut(0, 700, 1500), False, 0, "large"),
            Case(4, 4, 300, 1500, cut(0, 700, 1500, shuffled=True), True, 900, "large"),
            Case(4, 2, 640, 900, cut(0, 300, 900, shuffled=True), True, 260, "nan"),
            Case(4, 4, 2000, 2048, cut(0, 2048), True, 48, "mean"),
        ]
    return found


def fill(torch, case, q, k, v):
    """New inputs, NaN where no segment is; returns the row and head of what `inputs` spoils or favours."""
    kv = torch.full(k.shape, float("nan"), device="cuda"), torch.full(v.shape, float("nan"), device="cuda")
    dim, exact = q.shape[2], case.inputs in ("mean", "pick")
    for s in case.segments:
        shape = (k.shape[0], s.keys, dim)
        new = [torch.randn(shape, device="cuda") for _ in kv]
        if exact:
            new = [new[0].sign(), new[1].sign() * torch.randint(1, 5, shape, device="cuda")]
        for t, n in zip(kv, new):
            t[:, s.row : s.row + s.keys] = n
    k.copy_(kv[0]), v.copy_(kv[1])
    spoilt = case.segments[-1].row + case.segments[-1].keys * 2 // 3
    if case.inputs == "mean":
        q.zero_()
    elif case.inputs == "pick":
        q.copy_(k[:, spoilt : spoilt + 1].repeat_interleave(q.shape[0] // k.shape[0], 0) * 128 / dim**0.5)
    else:
        q.copy_(torch.randn(q.shape, device="cuda") * (300 if case.inputs == "large" else 1))
    return spoilt


def reference(torch, case, q, k, v):
    """In f64; NaN for a row that sees no key."""
    index = torch.tensor([r for s in case.segments for r in range(s.row, s.row + s.keys)], device="cuda")
    positions = torch.tensor([s.position + i for s in case.segments for i in range(s.keys)], device="cuda")
    share = q.shape[0] // k.shape[0]
    k, v = (t[:, index].double().repeat_interleave(share, 0) for t in (k, v))
    scores = q.double() @ k.transpose(1, 2) / q.shape[2] ** 0.5
    if case.causal:
        rows = torch.arange(q.shape[1], device="cuda") + case.query
        scores.masked_fill_(positions[None, None, :] > rows[None, :, None], float("-inf"))
    weights = (scores - scores.amax(2, keepdim=True)).exp()
    return weights @ v / weights.sum(2, keepdim=True)


def worst_tile(got, expected):
    """The largest relative error of any 128 rows of a head, in the Frobenius norm; infinite for NaN out of place."""
    wanted = expected.isnan()
    if not got.isnan().equal(wanted) or not got.isinf().equal(expected.isinf()):
        return float("inf")
    finite = ~wanted & ~expected.isinf()
    if not got[~finite & ~wanted].equal(expected[~finite & ~wanted].to(got.dtype)):
        return float("inf")
    got, expected = got.double().where(finite, 0), expected.where(finite, 0)
    worst = 0.0
    for top in range(0, got.shape[1], 128):
        o, e = got[:, top : top + 128], expected[:, top : top + 128]
        error = (o - e).norm(dim=(1, 2)) / e.norm(dim=(1, 2)).clamp_min(1e-30)
        worst = max(worst, error.max().item())
    return worst


def check_one(torch, engine, case, seed):
    """One variant and case, launched twice on fresh inputs into poisoned output; returns (text or None, error)."""
    kind, dim = engine.variant.kind, engine.variant.dim
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[kind]
    q = torch.empty(case.heads, case.q_rows, dim, device="cuda", dtype=dtype)
    k, v = (torch.empty(case.kv_heads, case.kv_rows, dim, device="cuda", dtype=dtype) for _ in range(2))
    tall = torch.empty(case.heads * case.q_rows + 200, dim, device="cuda", dtype=dtype)
    launch = engine.prepare(torch, q, k, v, tall, case.segments, case.causal, case.query, 3, counted=True)
    worst = 0.0
    for epoch in range(2):
        torch.manual_seed(seed + epoch)
        spoilt = fill(torch, case, q, k, v)
        expected = reference(torch, case, q, k, v)
        if case.inputs in ("nan", "infinite"):
            last = case.segments[-1]
            sees = torch.arange(case.q_rows, device="cuda") + case.query >= last.position + spoilt - last.row
            if case.inputs == "nan":
                k[:, spoilt] = v[:, spoilt] = float("nan")
                expected[:, sees] = float("nan")
            else:
                v[:, spoilt, 5] = float("inf")
                expected[:, sees, 5] = float("inf")
        tall.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        got = tall[: case.heads * case.q_rows].view(q.shape)
        if not torch.isnan(tall[case.heads * case.q_rows :]).all():
            return "wrote below O", worst
        if case.inputs in ("mean", "pick") and not torch.equal(got, expected.float().to(dtype)):
            return f"not exact: off by {(got.double() - expected).abs().max().item()} at most", worst
        worst = max(worst, worst_tile(got, expected))
        if worst > LIMIT[kind]:
            return f"worst tile off by {worst:.2e}", worst
        if launch.stored.item() != launch.tiles * (epoch + 1):
            return f"{launch.stored.item()} tiles raised, {launch.tiles * (epoch + 1)} wanted", worst
    return None, worst


def check_gates(torch, engine, seed):
    """Segments that arrive while the kernel runs are read only after their signal; returns an error text or None."""
    case = Case(32, 32, 384, 2048, cut(*range(0, 2049, 256), shuffled=True), False, 0, "random")  # 96 CTAs
    dtype, dim = torch.float16 if engine.variant.kind == "f16" else torch.bfloat16, engine.variant.dim
    q, out = (torch.empty(32, 384, dim, device="cuda", dtype=dtype) for _ in range(2))
    whole, here = ([torch.empty(32, 2048, dim, device="cuda", dtype=dtype) for _ in "kv"] for _ in range(2))
    torch.manual_seed(seed)
    fill(torch, case, q, *whole)
    gates, side = torch.zeros(len(case.segments), device="cuda", dtype=torch.int64), torch.cuda.Stream()
    launch = engine.prepare(torch, q, *here, out, case.segments, gates=gates)

    def feed():
        for i, s in enumerate(case.segments):
            for source, target in zip(whole, here):
                target[:, s.row : s.row + s.keys].copy_(source[:, s.row : s.row + s.keys])
            gates[i].fill_(1)

    feed()  # loads the copy kernels: no module may be loaded once the waiting kernel runs
    for t in here:
        t.fill_(float("nan"))
    gates.zero_()
    torch.cuda.synchronize()
    launch()
    with torch.cuda.stream(side):
        feed()
    torch.cuda.synchronize()
    error = worst_tile(out, reference(torch, case, q, *whole))
    return f"gated segments: worst tile off by {error:.2e}" if error > LIMIT[engine.variant.kind] else None


def check(seed, quick, spin_limit):
    """Checks every variant, or with `quick` (for compute-sanitizer) a few on small shapes; returns the failures."""
    variants = [v[0] for v in CANDIDATES.values()] if quick else CHECKED
    built = build_all(variants, spin_limit)
    import torch  # after the compiler's processes: they must not inherit CUDA

    torch.empty(1, device="cuda")
    failed = 0
    for variant in variants:
        engine, errors, worst = Engine(variant, built[variant][0]), [], 0.0
        for case in cases(quick):
            error, off = check_one(torch, engine, case, seed)
            worst = max(worst, off)
            errors += [f"{case}: {error}"] if error else []
        if not quick:
            error = check_gates(torch, engine, seed)
            errors += [error] if error else []
        failed += len(errors)
        verdict = f"FAILED {len(errors)} of" if errors else f"ok, worst tile {worst:.1e},"
        count = len(cases(quick)) + (not quick)
        print(f"{name(variant):36} {verdict} {count} cases, seed {seed}", *errors, sep="\n    ", flush=True)
    return failed


def bench_shape(torch, engines, shape, contenders, rounds):
    """Times cuDNN and the contenders (variant, heads of a group); returns {label: median us}."""
    (q_rows, kv_rows, causal, dim), segments = shape, [Segment(0, shape[1], 0)]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sizes = [(4, HEADS // 4, rows, dim) for rows in (q_rows, kv_rows, kv_rows)]
    q, k, v = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in sizes)
    out, theirs, kept = torch.empty_like(q), [], []

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            theirs[:] = [torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)]

    flat = [t.view(HEADS, -1, dim) for t in (q, k, v)]
    launches = max(1, int(1.5e12 / flops(shape)))
    graphs = {"cudnn": graph_of(torch, cudnn, launches)}
    graphs["cudnn"].replay()
    for variant, group in contenders:
        run = engines[variant].prepare(torch, *flat, out, segments, causal, 0, group)
        kept.append(run)
        out.fill_(float("nan"))
        graphs[(variant, group)] = graph_of(torch, run, launches)
        error = ((out.float() - theirs[0].float()).norm() / theirs[0].float().norm()).item()
        if not error < 2 * LIMIT["bf16"]:
            raise SystemExit(f"wrong result of {name(variant)} at {shape}: off by {error:.2e}")
    times = {label: [] for label in graphs}
    for _ in range(rounds):
        for label, graph in graphs.items():
            times[label].append(timed_round(torch, graph, launches))
    return {label: sorted(t)[len(t) // 2] for label, t in times.items()}


def flops(shape):
    q_rows, kv_rows, causal, dim = shape
    return 4 * HEADS * dim * (q_rows * (q_rows + 1) / 2 if causal else q_rows * kv_rows)


def bench(every, as_json, rounds, dims, only):
    shapes = [(s // 16, s, False, d) for d in dims for s in SEQUENCES] + [(s, s, True, d) for d in dims for s in CAUSAL]
    plan = {}
    for s in (s for s in shapes if not only or s[1] in only):
        plan[s] = [(v, 16 if s[2] else 1) for v in CANDIDATES[s[3]][: None if every else 1]]
    built = build_all(variant for contenders in plan.values() for variant, _ in contenders)
    import torch

    torch.empty(1, device="cuda")
    engines = {variant: Engine(variant, cubin) for variant, (cubin, _) in built.items()}
    for shape, contenders in plan.items():
        medians = bench_shape(torch, engines, shape, contenders, rounds)
        base, work = medians.pop("cudnn"), flops(shape)
        size = f"{shape[0]}x{shape[1]}x{shape[3]}" + (" causal" if shape[2] else "")
        print(f"{size:24} cudnn {base:10.2f} us {work / base / 1e6:6.0f} TFLOP/s", flush=True)
        for (variant, group), us in sorted(medians.items(), key=lambda item: item[1]):
            label = f"{name(variant)} group{group}"
            print(f"   {label:48} {us:10.2f} us {work / us / 1e6:6.0f} TFLOP/s  ratio {base / us:.3f}", flush=True)
            if as_json:
                print(json.dumps({"shape": shape, "variant": label, "us": us, "cudnn_us": base}))
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "bench"))
    parser.add_argument("--all", action="store_true", help="bench: every candidate, not the chosen variant only")
    parser.add_argument("--dims", type=int, nargs="*", default=[128], help="bench: head dimensions")
    parser.add_argument("--only", type=int, nargs="*", help="bench: only these numbers of keys")
    parser.add_argument("--quick", action="store_true", help="check: few and small, for compute-sanitizer")
    parser.add_argument("--spin-limit", type=int, help="check: debug build, whose waits trap after so many tries")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=20261201)
    options = parser.parse_args()
    if options.what == "check":
        sys.exit(1 if check(options.seed, options.quick, options.spin_limit) else 0)
    bench(options.all, options.json, options.rounds, options.dims, options.only)


if __name__ == "__main__":
    main()
