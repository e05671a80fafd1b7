#!/usr/bin/env python3
"""Compiles every variant of the Hopper engines with NVRTC for sm_90a and checks their machine code; needs no GPU.

    pip install 'nvidia-cuda-nvrtc==13.0.*' nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
    python3 check_sass.py

Fails, and does not skip, where a tool is missing. Asserts of each variant: no spills and no local memory, at most 168
registers at launch (384 threads), `wgmma` and no older matrix instruction, loads and stores by the copy engine,
`setmaxnreg` at work, and no memory barrier in the main loop of the GEMM. Of attention also: products not serialised by
the compiler, no more of them than written, and the consumers within the registers that they take.
"""
import glob
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile

import attention_engine
import attention_hopper
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


def attention_faults(variant, log, lines):
    """What is wrong with the code of one variant of attention, as texts."""
    wanted = ["HGMMA.64x", "UTMALDG.2D", "UTMASTG.2D", "USETMAXREG", "SYNCS", "STSM", "MUFU.EX2"]
    wrong = [f"no {word}" for word in wanted if not any(word in line for line in lines)]
    opcodes = {word for line in lines for word in re.findall(r"[A-Z]+\d*", line.split(".")[0])}
    wrong += [f"{word} present" for word in sorted({"LDL", "STL", "HMMA"} & opcodes)]
    wrong += ["spills"] if not re.search(r"\b0 bytes spill stores, 0 bytes spill loads", log) else []
    wrong += ["products are serialised"] if "serialized" in log else []
    registers = max(int(number) for line in lines for number in re.findall(r"\bR(\d+)\b", line))
    wrong += [f"register {registers}"] if registers >= variant.take else []
    # Twice each: the scores of a tile's first block and of the others, the values alone and beside the next scores.
    products, written = sum("HGMMA" in line for line in lines), 2 * (variant.dim // 16 + variant.keys // 16)
    return wrong + ([f"{products} products, {written} written"] if products != written else [])


def main():
    cuobjdump = tool()
    built = build_all(CHECKED + [variant for shape in SHAPES for variant, _ in candidates(shape)])
    judged = [(name(v), faults(v, log, disassemble(cuobjdump, cubin))) for v, (cubin, log) in built.items()]
    for v, (cubin, log) in attention_engine.build_all(attention_hopper.CHECKED).items():
        wrong = attention_faults(v, log, disassemble(cuobjdump, cubin))
        judged.append((f"attention {attention_engine.name(v)}", wrong))
    bad = [f"{label}: {', '.join(wrong)}" for label, wrong in judged if wrong]
    print(*bad, f"{len(judged)} variants compiled for sm_90a, {len(bad)} bad", sep="\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
