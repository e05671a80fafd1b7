#!/usr/bin/env python3
"""Compiles every variant of the Hopper GEMM with NVRTC for sm_90a and checks its machine code; needs no GPU.

    pip install 'nvidia-cuda-nvrtc==13.0.*' nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
    python3 check_sass.py

Fails, and does not skip, where a tool is missing. Asserts of each variant: no spills and no local memory, at most 168
registers at launch (384 threads), `wgmma` and no older matrix instruction, loads and stores by the copy engine,
`setmaxnreg` at work, and no memory barrier in the main loop.
"""
import glob
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile

from choice import candidates
from engine import build_all, name
from gemm_hopper import CHECKED, SHAPES


def tool():
    """The path of cuobjdump, with nvdisasm beside it or on the PATH."""
    roots = site.getsitepackages() + [p for p in sys.path if p.endswith("site-packages")]
    found = [p for root in roots for p in glob.glob(os.path.join(root, "nvidia", "*", "bin", "cuobjdump"))]
    found += [shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"]
    for path in found:
        if os.path.exists(path):
            return path
    raise SystemExit("cuobjdump not found: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")


def disassemble(cuobjdump, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        path = os.pathsep.join([os.path.dirname(cuobjdump), os.environ.get("PATH", "")])
        command, environment = [cuobjdump, "-sass", file.name], {**os.environ, "PATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", done.stdout, re.MULTILINE)
    if done.returncode or not lines:
        raise SystemExit(f"cuobjdump failed: {done.stderr}")
    return lines


def faults(variant, log, lines):
    """What is wrong with one variant's code, as texts."""
    registers = re.search(r"Used (\d+) registers", log)
    products = [i for i, line in enumerate(lines) if "HGMMA" in line]
    drain = [i for i, line in enumerate(lines) if "WARPGROUP.DEPBAR" in line]  # in the loop, then behind it
    loop = lines[products[0] : drain[-1]] if products else []
    stores = "STSM" if variant.kind != "f32" else "STS.64"
    wanted = ["HGMMA.64x", "UTMALDG.2D", "UTMASTG.2D", "USETMAXREG", "SYNCS", stores]
    wanted += ["MULTICAST"] if variant.cluster_m > 1 else []
    wrong = [f"no {word}" for word in wanted if not any(word in line for line in lines)]
    opcodes = {word for line in lines for word in re.findall(r"[A-Z]+\d*", line.split(".")[0])}
    unwanted = sorted({"LDL", "STL", "HMMA", "FFMA"} & opcodes)
    wrong += [f"{word} present" for word in unwanted]
    wrong += ["a memory barrier in the main loop"] if any("MEMBAR" in line for line in loop) else []
    wrong += ["spills"] if not re.search(r"\b0 bytes spill stores, 0 bytes spill loads", log) else []
    wrong += ["registers"] if not registers or int(registers[1]) > 168 else []
    return wrong + (["not four products a block"] if len(products) != 4 else [])


def main():
    cuobjdump = tool()
    built = build_all(CHECKED + [variant for shape in SHAPES for variant, _ in candidates(shape)])
    bad = 0
    for variant, (cubin, log) in built.items():
        wrong = faults(variant, log, disassemble(cuobjdump, cubin))
        if wrong:
            bad += 1
            print(f"{name(variant)}: {', '.join(wrong)}")
    print(f"{len(built)} variants compiled for sm_90a, {bad} bad")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
