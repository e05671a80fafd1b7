"""Loads a specialised Hopper attention through the CUDA driver and launches it on PyTorch tensors and streams."""
import ctypes
import os
from collections import namedtuple
from multiprocessing import get_context

import nvrtc
from engine import BFLOAT16, FLOAT16, TensorMap, aligned, check, driver, tensor_map

SOURCE = os.path.join(nvrtc.HERE, "attention_hopper.cu")
# The compiled-in constants; give and take are the registers of the producer's warpgroup and of a consumer.
Variant = namedtuple("Variant", "dim keys stages boxes give take kind", defaults=(56, 224, "bf16"))
DEFINES = "DIM KEYS STAGES BOXES GIVE TAKE".split()
MAX_SEGMENTS, ROWS = 16, 128

# Keys of the sequence: rows `row` to `row + keys` of every head of K and V; the first stands at `position`.
Segment = namedtuple("Segment", "row keys position")


def name(variant):
    v = variant
    return f"dim{v.dim} keys{v.keys} stages{v.stages} boxes{v.boxes}" + ("" if v.kind == "bf16" else f" {v.kind}")


def build(variant, spin_limit=None):
    """A variant's (cubin, compile log); with `spin_limit` the debug build, whose waits trap beyond it."""
    defines = {**dict(zip(DEFINES, variant)), **({"MK_F16": None} if variant.kind == "f16" else {})}
    if spin_limit:
        defines["MK_SPIN_LIMIT"] = spin_limit
    return nvrtc.compile_cubin(SOURCE, defines=defines)


def build_all(variants, spin_limit=None):
    """Compiles in parallel, in processes without CUDA; returns {variant: (cubin, log)}."""
    variants = list(dict.fromkeys(variants))
    with get_context("fork").Pool(min(16, os.cpu_count())) as pool:
        return dict(zip(variants, pool.starmap(build, [(v, spin_limit) for v in variants])))


class Problem(ctypes.Structure):
    """`Problem` of attention_hopper.cu."""

    _fields_ = (
        [(n, TensorMap) for n in "qkvo"]
        + [(n, ctypes.c_int32) for n in "heads shared_by group q_rows kv_rows segments is_causal".split()]
        + [("rows", ctypes.c_int32 * MAX_SEGMENTS), ("keys", ctypes.c_int32 * MAX_SEGMENTS)]
        + [("positions", ctypes.c_int64 * MAX_SEGMENTS), ("query", ctypes.c_int64)]
        + [(n, ctypes.c_uint64) for n in "out counter stored gates".split()]
    )


class Engine:
    """One loaded variant."""

    def __init__(self, variant, cubin):
        v = self.variant = variant
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuModuleLoadData(ctypes.byref(self.module), cubin), "cuModuleLoadData")
        name = b"attention"
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, name), "cuModuleGetFunction")
        barriers = 4 * v.stages + 4 + 4 * v.boxes
        claims = 2 * 24  # of the harness
        self.shared = v.dim * 2 * (ROWS + 2 * v.stages * v.keys) + 2 * v.boxes * 8192 + v.stages * 16 + barriers * 8
        self.shared += claims
        check(driver().cuFuncSetAttribute(self.function, 8, self.shared), "maximal dynamic shared memory")

    def prepare(self, torch, q, k, v, o, segments, causal=False, query=0, group=1, counted=False, gates=None):
        """Encodes one problem and returns launch(), which must outlive its launches and graphs.

        `q` and `o` are [heads, rows, dim] (o may have more rows behind), `k` and `v` [fewer heads, rows, dim].
        `group`: heads whose tiles are claimed together. `counted`: count stored tiles. `gates`: the cells that the
        segments wait for.
        """
        code = FLOAT16 if self.variant.kind == "f16" else BFLOAT16
        heads, q_rows, dim = q.shape
        maps = [tensor_map(t.view(-1, dim), code, 64, r) for t, r in ((q, 64), (k, self.variant.keys))]
        maps += [tensor_map(t.view(-1, dim), code, 64, r) for t, r in ((v, self.variant.keys), (o, 64))]
        tiles = heads * -(-q_rows // ROWS)
        grid = min(tiles, torch.cuda.get_device_properties(0).multi_processor_count)
        words = torch.zeros(2, device="cuda", dtype=torch.int64)
        problem = Problem(
            *maps, heads, heads // k.shape[0], group, q_rows, k.shape[1], len(segments), int(causal),
            (ctypes.c_int32 * MAX_SEGMENTS)(*[s.row for s in segments]),
            (ctypes.c_int32 * MAX_SEGMENTS)(*[s.keys for s in segments]),
            (ctypes.c_int64 * MAX_SEGMENTS)(*[s.position for s in segments]), query,
            o.data_ptr(), words.data_ptr(), words.data_ptr() + 8 if counted else 0,
            gates.data_ptr() if gates is not None else 0,
        )  # fmt: skip
        storage, at = aligned(ctypes.sizeof(Problem))
        ctypes.memmove(at, ctypes.addressof(problem), ctypes.sizeof(Problem))
        arguments = (ctypes.c_void_p * 1)(at)

        def launch(keep=(storage, words, q, k, v, o, gates)):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            status = driver().cuLaunchKernel(self.function, grid, 1, 1, 384, 1, 1, self.shared, stream, arguments, None)
            check(status, "cuLaunchKernel")

        launch.tiles, launch.stored = tiles, words[-1:]
        return launch
