"""Loads a specialised Hopper GEMM through the CUDA driver and launches it on PyTorch tensors and streams."""
import ctypes
import os
from collections import namedtuple
from multiprocessing import get_context

import nvrtc

SOURCE = os.path.join(nvrtc.HERE, "gemm_hopper.cu")
# Compiled-in constants; `skew` in stages, `kind` one of bf16, f16, f32 (bf16 in, f32 out).
Variant = namedtuple("Variant", "tile_m tile_n stages cluster_m cluster_n cluster_k splits boxes kind", defaults=(1, 1, 2, "bf16"))
DRIVER = None


def name(variant):
    v = variant
    text = f"{v.tile_m}x{v.tile_n}x{v.stages} c{v.cluster_m}x{v.cluster_n}x{v.cluster_k}"
    return text + (f" split{v.splits}" if v.splits > 1 else "") + (f" boxes{v.boxes}" if v.boxes != 2 else "") + ("" if v.kind == "bf16" else f" {v.kind}")


def build(variant):
    """The cubin of a variant; the compile log must show no spills."""
    keys = "TILE_M TILE_N STAGES CLUSTER_M CLUSTER_N CLUSTER_K SPLITS BOXES".split()
    defines = dict(zip(keys, variant))
    defines.update({"f16": {"MK_F16": None}, "f32": {"OUT_F32": None}}.get(variant.kind, {}))
    if os.environ.get("MK_SPIN_LIMIT"):
        defines["MK_SPIN_LIMIT"] = os.environ["MK_SPIN_LIMIT"]
    return nvrtc.compile_cubin(SOURCE, defines=defines)


def build_all(variants):
    """Compiles in parallel, in processes without CUDA; returns {variant: cubin}."""
    variants = list(dict.fromkeys(variants))
    with get_context("fork").Pool(min(16, os.cpu_count())) as pool:
        return {v: cubin for v, (cubin, _) in zip(variants, pool.map(build, variants))}


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
    _fields_ = (
        [(n, TensorMap) for n in "abc"]
        + [(n, ctypes.c_int32) for n in "m n k rows columns group segments clip".split()]
        + [(n, ctypes.c_uint64) for n in "out partials cells exits stored gates".split()]
    )


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_uint32) for n in "grid_x grid_y grid_z block_x block_y block_z shared".split()]
        + [("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint32)]
    )


def tensor_map(pointer, code, size, rows, columns, box_columns, box_rows):
    """A 2-D row-major tensor with 128-byte swizzled boxes; out of bounds reads zero and is not written."""
    storage = ctypes.create_string_buffer(128 + 64)
    at = (ctypes.addressof(storage) + 63) // 64 * 64
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    check(
        driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(at), code, 2, ctypes.c_void_p(pointer), (u64 * 2)(columns, rows), (u64 * 1)(columns * size),
            (u32 * 2)(box_columns, box_rows), (u32 * 2)(1, 1), 0, 3, 3, 0,
        ),
        "cuTensorMapEncodeTiled",
    )
    return TensorMap.from_buffer_copy(ctypes.string_at(at, 128))


class Engine:
    """One loaded variant."""

    def __init__(self, variant, cubin):
        self.variant, self.module, self.function = variant, ctypes.c_void_p(), ctypes.c_void_p()
        v = variant
        check(driver().cuModuleLoadData(ctypes.byref(self.module), cubin), "cuModuleLoadData")
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, b"gemm"), "cuModuleGetFunction")
        self.shared = v.stages * (v.tile_m + v.tile_n) * 128 + 2 * v.boxes * 8192 + 8 * (2 * v.stages + 4 * v.boxes + 4)
        self.shared += v.tile_m * v.tile_n * 2 if v.cluster_k > 1 else 0
        check(driver().cuFuncSetAttribute(self.function, 8, self.shared), "dynamic shared memory")  # 8: its maximum

    def clusters(self, size):
        """How many clusters of this size are resident at once."""
        attribute = (ctypes.c_uint32 * 18)(4, 0, size, 1, 1)  # 4: cluster dimension
        config = LaunchConfig(size * 132, 1, 1, 384, 1, 1, self.shared, None, ctypes.addressof(attribute), 1)
        count = ctypes.c_int()
        check(driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self.function, ctypes.byref(config)), "cuOccupancyMaxActiveClusters")
        return count.value

    def prepare(self, torch, a, b, c, group=8, segments=1, rows=None, counted=False, gates=None, idle=False):
        """Encodes one problem; `rows` stores only so many rows of a taller C, row by row at its edge; `counted`
        counts stored tiles; `gates` are the cells that the K segments wait for. `idle`
        launches as many CTAs with nothing to do. Returns launch()."""
        v, m, (k, n) = self.variant, rows or c.shape[0], b.shape
        cluster = v.cluster_m * v.cluster_n * v.cluster_k
        high, wide = -(-m // (v.tile_m * v.cluster_m)), -(-n // (v.tile_n * v.cluster_n))
        tiles = high * wide
        units = tiles * v.splits
        assert -(-k // 64) >= v.splits * v.cluster_k, "every split has at least one block of K"
        grid = min(units, self.clusters(cluster)) * cluster
        code = {"bf16": 9, "f16": 6, "f32": 9}[v.kind]
        partials = torch.empty(max(1, (v.splits - 1) * tiles * cluster * v.tile_m * v.tile_n), device="cuda", dtype=torch.float32)
        words = torch.zeros(2 * tiles * cluster + 2, device="cuda", dtype=torch.int64)
        problem = Problem(
            tensor_map(a.data_ptr(), code, 2, a.shape[0], k, 64, v.tile_m // v.cluster_n),
            tensor_map(b.data_ptr(), code, 2, k, n, 64, 64),
            tensor_map(c.data_ptr(), 7 if v.kind == "f32" else code, c.element_size(), c.shape[0], n, 128 // c.element_size(), 64),
            m, n, k, 0 if idle else high, wide, group, segments, int(rows is not None), c.data_ptr(), partials.data_ptr(), words.data_ptr(),
            words.data_ptr() + 16 * tiles * cluster, words.data_ptr() + 16 * tiles * cluster + 8 if counted else 0,
            gates.data_ptr() if gates is not None else 0,
        )
        storage = ctypes.create_string_buffer(ctypes.sizeof(Problem) + 64)
        at = (ctypes.addressof(storage) + 63) // 64 * 64
        ctypes.memmove(at, ctypes.addressof(problem), ctypes.sizeof(Problem))
        arguments = (ctypes.c_void_p * 1)(at)

        def launch(keep=(storage, partials, words, a, b, c, gates)):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            check(driver().cuLaunchKernel(self.function, grid, 1, 1, 384, 1, 1, self.shared, stream, arguments, None), "cuLaunchKernel")

        launch.tiles, launch.stored = tiles * cluster, words[-1:]
        return launch
