"""Compiles the device sources with NVRTC through ctypes; needs no GPU. Used by the benchmark and by the SASS test."""
import ctypes
import glob
import os
import site
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = os.path.normpath(os.path.join(HERE, "..", "src", "device"))


def library():
    """Loads libnvrtc from PyPI's nvidia-cuda-nvrtc (PyTorch brings it too) or from the toolkit."""
    names = []
    for root in site.getsitepackages() + [p for p in sys.path if p.endswith("site-packages")]:
        names += sorted(glob.glob(os.path.join(root, "nvidia", "*", "lib", "libnvrtc.so.*")))
        names += sorted(glob.glob(os.path.join(root, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*")))
    names += ["libnvrtc.so.13", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"]
    for name in names:
        try:
            # The compiler opens its builtins by bare name: load them from beside it first.
            for builtins in glob.glob(os.path.join(os.path.dirname(name), "libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SystemExit("libnvrtc not found: pip install 'nvidia-cuda-nvrtc==13.0.*'")


def compile_cubin(source, arch="sm_90a", defines=None):
    """Compiles a source file for `arch` with `defines` ({name: value or None}); returns (cubin bytes, log text)."""
    nvrtc = library()
    with open(source, "rb") as file:
        text = file.read()
    options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={DEVICE}", "--ptxas-options=-v"]
    options += [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in (defines or {}).items()]
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, os.path.basename(source).encode(), 0, None, None)
    if status:
        raise SystemExit(f"nvrtcCreateProgram: {status}")
    arguments = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
    log = read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode()
    if status:
        raise SystemExit(f"NVRTC failed on {source}:\n{log}")
    return read(nvrtc, program, "CUBIN"), log


def read(nvrtc, program, what):
    size = ctypes.c_size_t()
    if getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
        raise SystemExit(f"nvrtcGet{what}Size failed")
    buffer = ctypes.create_string_buffer(size.value)
    if getattr(nvrtc, f"nvrtcGet{what}")(program, buffer):
        raise SystemExit(f"nvrtcGet{what} failed")
    return buffer.raw[: size.value]
