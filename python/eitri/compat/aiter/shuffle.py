"""AITER's weight layouts: aiter.ops.shuffle. eitri's kernels read plain rows (or their own packing), so that a shuffled weight is put back
once and kept beside the tensor."""

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from eitri.compat.aiter import dtypes
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


def _bytes(x):
    """torch copies no fp4 pairs: as bytes."""
    return x.view(torch.uint8) if x.dtype == dtypes.fp4x2 else x


@peer(MODULE)
def shuffle_weight(x, layout=(16, 16), use_int4=False, is_guinterleave=False, gate_up=False):
    """[.., n, k] in AITER's order, which its preshuffled operators expect; those here as well. Marks the result `is_shuffled`."""
    if use_int4 or is_guinterleave:
        raise Unsupported("aiter.shuffle_weight: use_int4 and is_guinterleave are not there: eitri has no operator for such weights yet")
    n, rows, k, parts, piece = _tiles(x, layout)
    out = _bytes(x).view(-1, n, rows, k, parts, piece).permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape).view(x.dtype)
    out.is_shuffled = True
    return out


def unshuffle_weight(x, layout=(16, 16)):
    """The inverse of shuffle_weight."""
    n, rows, k, parts, piece = _tiles(x, layout)
    return _bytes(x).reshape(-1, n, k, parts, rows, piece).permute(0, 1, 4, 2, 3, 5).contiguous().view(x.shape).view(x.dtype)


def plain_weight(x, layout=(16, 16)):
    """unshuffle_weight, once per tensor for as long as it lives unchanged."""
    version = 0 if x.is_inference() else x._version
    known = _plain.get(x)
    if known is not None and known[:2] == (version, layout):
        return known[2]
    plain = unshuffle_weight(x.detach(), layout)
    _plain[x] = (version, layout, plain)
    return plain


@peer("aiter.utility.fp4_utils")
def e8m0_shuffle(scale):
    """E8M0 bytes [rows, columns] in AITER's order for MX products, padded to multiples of 256 rows and 8 columns by 1.0 (127). The result
    remembers what it was made of, so that operators here take it."""
    data = scale.contiguous().view(torch.uint8)
    rows, columns = data.shape
    tall, wide = -(-rows // 256) * 256, -(-columns // 8) * 8
    padded = torch.full((tall, wide), 127, dtype=torch.uint8, device=data.device)
    padded[:rows, :columns] = data
    out = padded.view(tall // 32, 2, 16, wide // 8, 2, 4).permute(0, 3, 5, 2, 4, 1).contiguous().view(tall, wide).view(scale.dtype)
    return mark_scale(out, (rows, columns))


def mark_scale(scale, plain_shape):
    """Says on the tensor that it is what e8m0_shuffle makes of [rows, columns], or with None that it is plain. Returns it. A view of a tensor is
    another object, which does not know."""
    scale.is_shuffled = plain_shape is not None
    scale.plain_shape = plain_shape
    return scale


def e8m0_unshuffle(scale, rows, columns):
    """The inverse of e8m0_shuffle: [rows, columns]."""
    data = scale.contiguous().view(torch.uint8)
    tall, wide = data.shape
    plain = data.view(tall // 32, wide // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2).contiguous().view(tall, wide)
    return plain[:rows, :columns].contiguous().view(scale.dtype)


def plain_scale(scale, rows, columns):
    """E8M0 scales as [rows, columns], shuffled or not."""
    if getattr(scale, "is_shuffled", False):
        scale = e8m0_unshuffle(scale, rows, columns)
    return scale.view(rows, columns)


@peer(MODULE)
def shuffle_scale(src, experts_cnt=None, is_guinterleave=False, gate_up=False):
    """None and f32 scales are used as they are; E8M0 ones [.., rows, columns] become what e8m0_shuffle makes of all rows."""
    if src is None or src.dtype == torch.float32:
        return src
    if is_guinterleave or gate_up:
        raise Unsupported("aiter.shuffle_scale: is_guinterleave and gate_up are not there: eitri has no operator for such scales")
    return e8m0_shuffle(src.reshape(-1, src.shape[-1]))
