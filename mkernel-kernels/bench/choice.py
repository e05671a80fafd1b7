"""Which variant of the Hopper GEMM serves a shape: the rule of docs/performance.md, and what it was chosen among."""
from engine import Variant

WIDE = Variant(128, 256, 3, 4)
NARROW = Variant(128, 128, 5, 4)
PAIR_K = Variant(128, 128, 5, 2, cluster_k=2)
MULTIPROCESSORS = 132


def blocks_fit(variant, shape):
    """Whether every share of K has a block of 64."""
    return -(-shape[2] // 64) >= variant.splits * variant.cluster_k


def cycles(variant, shape):
    """What the rule expects of a variant at a shape, in clock cycles of one CTA."""
    v, (m, n, k) = variant, shape
    units = -(-m // (v.tile_m * v.cluster_m)) * -(-n // v.tile_n) * v.splits
    waves = -(-units // (MULTIPROCESSORS // (v.cluster_m * v.cluster_k)))
    block, tail = (1060, 1000) if v.tile_n == 256 else (550, 400)
    tail += (2000 if v.cluster_k > 1 else 0) + (4500 if v.splits > 1 else 0)
    return waves * (-(-k // (64 * v.splits * v.cluster_k)) * block + tail)


def offered(shape):
    """The variants that the rule picks from. Pairs along M halve the reads of B: needed where these would bound."""
    _, n, k = shape
    wide = WIDE if n % 64 == 0 else WIDE._replace(cluster_m=2)
    narrow = NARROW if k < 512 else NARROW._replace(cluster_m=2)
    return [wide, narrow, PAIR_K] + [narrow._replace(splits=s) for s in (2, 3, 4)]


def chosen(shape):
    """The rule: the least expected cycles; tiles of 64 rows where the others would be half empty."""
    if shape[0] <= 64:
        return Variant(64, 256, 4, 2)
    return min((v for v in offered(shape) if blocks_fit(v, shape)), key=lambda v: cycles(v, shape))


def candidates(shape):
    """(variant, raster height) worth timing at a shape."""
    found = [(chosen(shape), 16)] + [(WIDE._replace(cluster_m=c), g) for c in (1, 2) for g in (8, 16, 32)]
    found += [(Variant(128, 256, 4, 2), 16)] + [(NARROW._replace(cluster_m=c), 16) for c in (1, 2)]
    if shape[0] <= 4096:
        found += [(NARROW._replace(cluster_m=c, splits=s), 16) for c in (1, 2) for s in (2, 3)]
        found += [(PAIR_K, 8), (Variant(64, 256, 4, 2, cluster_k=2), 8)]
        found += [(Variant(64, 256, 3, 2), 8), (Variant(64, 128, 6, 4), 8)]
    return list(dict.fromkeys((v, g) for v, g in found if blocks_fit(v, shape)))
