"""Loads a specialised Hopper GEMM through the CUDA driver and launches it on PyTorch tensors and streams."""
import ctypes
import os
from collections import namedtuple
from multiprocessing import get_context

import nvrtc

SOURCE = os.path.join(nvrtc.HERE, "gemm_hopper.cu")
# The compiled-in constants; `kind` is bf16, f16 or f32 (bf16 in, f32 out).
FIELDS = "tile_m tile_n stages boxes cluster_m cluster_k splits kind"
Variant = namedtuple("Variant", FIELDS, defaults=(1, 1, 1, "bf16"))
DEFINES = "TILE_M TILE_N STAGES BOXES CLUSTER_M CLUSTER_K SPLITS".split()
KINDS = {"bf16": {}, "f16": {"MK_F16": None}, "f32": {"OUT_F32": None}}
BFLOAT16, FLOAT16, FLOAT32, SWIZZLE_128B, PROMOTE_256B = 9, 6, 7, 3, 3  # CUtensorMap enumerations
DRIVER = None


def name(variant):
    """`tile x stages` and what differs from one CTA a tile and bf16."""
    v = variant
    text = f"{v.tile_m}x{v.tile_n} stages{v.stages} boxes{v.boxes}"
    for label, count in (("pair-m", v.cluster_m), ("pair-k", v.cluster_k), (f"split{v.splits}", v.splits)):
        text += f" {label}" if count > 1 else ""
    return text + ("" if v.kind == "bf16" else f" {v.kind}")


def build(variant, spin_limit=None):
    """A variant's (cubin, compile log); with `spin_limit` the debug build, whose waits trap beyond it."""
    defines = {**dict(zip(DEFINES, variant)), **KINDS[variant.kind]}
    if spin_limit:
        defines["MK_SPIN_LIMIT"] = spin_limit
    return nvrtc.compile_cubin(SOURCE, defines=defines)


def build_all(variants, spin_limit=None):
    """Compiles in parallel, in processes without CUDA; returns {variant: (cubin, log)}."""
    variants = list(dict.fromkeys(variants))
    with get_context("fork").Pool(min(16, os.cpu_count())) as pool:
        return dict(zip(variants, pool.starmap(build, [(v, spin_limit) for v in variants])))


def check(status, what):
    if status:
        raise SystemExit(f"{what}: CUDA error {status}")


def driver():
    global DRIVER
    if DRIVER is None:
        DRIVER = ctypes.CDLL("libcuda.so.1")
        check(DRIVER.cuInit(0), "cuInit")
    return DRIVER


class TensorMap(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 16)]


class Problem(ctypes.Structure):
    """`Problem` of gemm_hopper.cu."""

    _fields_ = (
        [(n, TensorMap) for n in "abc"]
        + [(n, ctypes.c_int32) for n in "m n k rows columns group segments clip".split()]
        + [(n, ctypes.c_uint64) for n in "out partials cells exits stored gates".split()]
    )


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        [(n, ctypes.c_uint32) for n in "grid_x grid_y grid_z block_x block_y block_z shared".split()]
        + [("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint32)]
    )


def aligned(size):
    """64-byte aligned storage: (owner, address)."""
    storage = ctypes.create_string_buffer(size + 64)
    return storage, (ctypes.addressof(storage) + 63) // 64 * 64


def tensor_map(tensor, code, box_columns, box_rows):
    """A 2-D row-major tensor in 128-byte swizzled boxes; out of bounds reads zero and is not written."""
    rows, columns = tensor.shape
    storage, at = aligned(ctypes.sizeof(TensorMap))
    size, pitch = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(columns * tensor.element_size())
    box, steps = (ctypes.c_uint32 * 2)(box_columns, box_rows), (ctypes.c_uint32 * 2)(1, 1)
    pointer = ctypes.c_void_p(tensor.data_ptr())
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), code, 2, pointer, size, pitch, box, steps, 0, SWIZZLE_128B, PROMOTE_256B, 0
    )
    check(status, "cuTensorMapEncodeTiled")
    return TensorMap.from_buffer_copy(ctypes.string_at(at, ctypes.sizeof(TensorMap)))


class Engine:
    """One loaded variant."""

    def __init__(self, variant, cubin):
        v = self.variant = variant
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuModuleLoadData(ctypes.byref(self.module), cubin), "cuModuleLoadData")
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, b"gemm"), "cuModuleGetFunction")
        self.cluster = v.cluster_m * v.cluster_k
        swap = v.tile_m * v.tile_n * 2 if v.cluster_k > 1 else 0
        barriers = 2 * v.stages + 4 * v.boxes + 4
        self.shared = v.stages * (v.tile_m + v.tile_n) * 128 + 2 * v.boxes * 8192 + swap + 8 * barriers
        check(driver().cuFuncSetAttribute(self.function, 8, self.shared), "maximal dynamic shared memory")
        self.clusters = self.resident()

    def resident(self):
        """How many clusters fit the GPU at once."""
        attribute = (ctypes.c_uint32 * 18)(4, 0, self.cluster, 1, 1)  # 4: cluster dimension
        config = LaunchConfig(self.cluster * 64, 1, 1, 384, 1, 1, self.shared, None, ctypes.addressof(attribute), 1)
        count = ctypes.c_int()
        status = driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self.function, ctypes.byref(config))
        check(status, "cuOccupancyMaxActiveClusters")
        return count.value

    def prepare(self, torch, a, b, c, group=16, segments=1, rows=None, counted=False, gates=None, idle=False):
        """Encodes one problem and returns launch(), which must outlive its launches and graphs.

        `rows`: store only so many rows of a taller C, row by row at the edge. `counted`: count stored tiles. `gates`:
        the cells that the K segments wait for. `idle`: launch as many CTAs, with nothing to do.
        """
        v, m, (k, n) = self.variant, rows or c.shape[0], b.shape
        assert -(-k // 64) >= v.splits * v.cluster_k, "every share has at least one block of K"
        high, wide = -(-m // (v.tile_m * v.cluster_m)), -(-n // v.tile_n)
        ctas = high * wide * self.cluster
        grid = min(high * wide * v.splits, self.clusters) * self.cluster
        code = FLOAT16 if v.kind == "f16" else BFLOAT16
        partials = torch.empty(max(1, (v.splits - 1) * ctas * v.tile_m * v.tile_n), device="cuda", dtype=torch.float32)
        words = torch.zeros(2 * ctas + 2, device="cuda", dtype=torch.int64)
        exits = words.data_ptr() + 16 * ctas
        problem = Problem(
            tensor_map(a, code, 64, v.tile_m), tensor_map(b, code, 64, 64),
            tensor_map(c, FLOAT32 if v.kind == "f32" else code, 128 // c.element_size(), 64),
            m, n, k, 0 if idle else high, wide, group, segments, int(rows is not None),
            c.data_ptr(), partials.data_ptr(), words.data_ptr(), exits, exits + 8 if counted else 0,
            gates.data_ptr() if gates is not None else 0,
        )  # fmt: skip
        storage, at = aligned(ctypes.sizeof(Problem))
        ctypes.memmove(at, ctypes.addressof(problem), ctypes.sizeof(Problem))
        arguments = (ctypes.c_void_p * 1)(at)

        def launch(keep=(storage, partials, words, a, b, c, gates)):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            status = driver().cuLaunchKernel(self.function, grid, 1, 1, 384, 1, 1, self.shared, stream, arguments, None)
            check(status, "cuLaunchKernel")

        launch.tiles, launch.stored = ctas, words[-1:]
        return launch
