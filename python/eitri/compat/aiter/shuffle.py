"""AITER's weight layouts: aiter.ops.shuffle. eitri's kernels read plain rows (or their own packing), so that a shuffled weight is put back
once and kept beside the tensor."""

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from eitri.compat.aiter.table import peer
from eitri.errors import InvalidArgument, Unsupported

MODULE = "aiter.ops.shuffle"
_plain = WeakTensorKeyDictionary()  # shuffled tensor -> (its version, layout, plain tensor)


def _tiles(x, layout):
    """The extents of [.., n / rows, rows, k / step, parts, piece]: 16-byte pieces of a row change places within a tile."""
    rows, step = layout[0], 2 * layout[1]
    piece = 16 // x.element_size()
    if x.shape[-2] % rows or x.shape[-1] % step:
        raise InvalidArgument(f"aiter.shuffle_weight: x is {list(x.shape)}; expected multiples of {rows} rows and {step} columns")
    return x.shape[-2] // rows, rows, x.shape[-1] // step, step // piece, piece


@peer(MODULE)
def shuffle_weight(x, layout=(16, 16), use_int4=False, is_guinterleave=False, gate_up=False):
    """[.., n, k] in AITER's order, which its preshuffled operators expect; those here as well. Marks the result `is_shuffled`."""
    if use_int4 or is_guinterleave:
        raise Unsupported("aiter.shuffle_weight: use_int4 and is_guinterleave are not there: eitri has no operator for such weights yet")
    n, rows, k, parts, piece = _tiles(x, layout)
    out = x.view(-1, n, rows, k, parts, piece).permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)
    out.is_shuffled = True
    return out


def unshuffle_weight(x, layout=(16, 16)):
    """The inverse of shuffle_weight."""
    n, rows, k, parts, piece = _tiles(x, layout)
    return x.reshape(-1, n, k, parts, rows, piece).permute(0, 1, 4, 2, 3, 5).contiguous().view(x.shape)


def plain_weight(x, layout=(16, 16)):
    """unshuffle_weight, once per tensor for as long as it lives unchanged."""
    version = 0 if x.is_inference() else x._version
    known = _plain.get(x)
    if known is not None and known[:2] == (version, layout):
        return known[2]
    plain = unshuffle_weight(x.detach(), layout)
    _plain[x] = (version, layout, plain)
    return plain


@peer(MODULE)
def shuffle_scale(src, experts_cnt=None, is_guinterleave=False, gate_up=False):
    """None and f32 scales are used as they are; E8M0 scales belong to operators that eitri has not yet."""
    if src is None or src.dtype == torch.float32:
        return src
    raise Unsupported(f"aiter.shuffle_scale: src is {src.dtype}; eitri has no operator for such scales yet")
