"""AITER's weight layouts: aiter.ops.shuffle. eitri's kernels read plain rows (or their own packing), so that a shuffled weight is put back
once and kept beside the tensor."""

import torch
from torch.utils.weak import WeakTensorKeyDictionary

import eitri
from eitri._arrays import Typed
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.table import peer
from eitri.errors import InvalidArgument

MODULE = "aiter.ops.shuffle"
_plain = WeakTensorKeyDictionary()  # shuffled tensor -> ((version, address, shape, dtype), layout, plain tensor)


def _tiles(x, layout, piece=None):
    """The extents of [.., n / rows, rows, k / step, parts, piece]: 16-byte pieces of a row change places within a tile."""
    rows, step = layout[0], 2 * layout[1]
    piece = piece or 16 // x.element_size()
    if x.shape[-2] % rows or x.shape[-1] % step:
        raise InvalidArgument(f"aiter.shuffle_weight: x is {list(x.shape)}; expected multiples of {rows} rows and {step} columns")
    return x.shape[-2] // rows, rows, x.shape[-1] // step, step // piece, piece


def _lanes(x, lanes, pack, gate_up):
    """The extents of AITER's layout for few-bit weights of experts [e, n, bytes]: e, 2 with gate_up, n / lanes, lanes, tiles of k, 64 / lanes
    pieces of a tile, pack bytes."""
    experts, n, k = x.shape
    n //= 2 if gate_up else 1
    pieces = 64 // lanes
    if n % lanes or k % (pieces * pack) or (gate_up and x.shape[1] % 2):
        raise InvalidArgument(f"aiter.shuffle_weight: x is {list(x.shape)} bytes; expected multiples of {lanes * (2 if gate_up else 1)} rows and "
                              f"{pieces * pack} bytes")
    return (experts, *((2,) if gate_up else ()), n // lanes, lanes, k // (pieces * pack), pieces, pack)


LANES = {False: (0, 1, 3, 4, 2, 5), True: (0, 2, 1, 4, 5, 3, 6)}  # by gate_up: tiles of gate and up rows alternate


def _inverse(order):
    return tuple(order.index(i) for i in range(len(order)))


def _bytes(x):
    """torch copies no fp4 pairs: as bytes."""
    return x.view(torch.uint8) if x.dtype == dtypes.fp4x2 else x


@peer(MODULE)
def shuffle_weight(x, layout=(16, 16), use_int4=False, is_guinterleave=False, gate_up=False):
    """[.., n, k] in AITER's order, which its preshuffled operators expect; those here as well. Marks the result `is_shuffled`.
    use_int4: pieces of 32 elements. is_guinterleave: the layout of shuffle_weight_a16w4, layout = (rows of a tile, bytes of a piece)."""
    if is_guinterleave:
        shape = _lanes(_bytes(x), *layout, bool(gate_up))
        out = _bytes(x).reshape(shape).permute(LANES[bool(gate_up)]).contiguous().view(_bytes(x).shape).view(x.dtype)
        out.is_shuffled = True
        out.lanes = (*layout, bool(gate_up))
        if gate_up:
            out.is_guinterleave = True
        return out
    n, rows, k, parts, piece = _tiles(x, layout, 32 if use_int4 else None)
    out = _bytes(x).view(-1, n, rows, k, parts, piece).permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape).view(x.dtype)
    out.is_shuffled = True
    if use_int4:
        out.piece = piece
    return out


@peer(MODULE)
def shuffle_weight_a16w4(src, NLane, gate_up):
    """fp4 weights [e, n, k / 2] for products with 16-bit activations; with gate_up rows are gate rows, then up rows."""
    return shuffle_weight(src, layout=(NLane, 16), is_guinterleave=True, gate_up=gate_up)


@peer(MODULE)
def shuffle_weight_NK(x, inst_N, inst_K, use_int4=False):
    """[.., n, k] in tiles of inst_N rows and inst_K columns, of which 64 / inst_N lanes read neighbours. Not marked: no operator reads it."""
    lanes = 64 // inst_N
    piece = inst_K // lanes * (2 if use_int4 else 1)
    if x.shape[-2] % inst_N or x.shape[-1] % (lanes * piece):
        raise InvalidArgument(f"aiter.shuffle_weight_NK: x is {list(x.shape)}; expected multiples of {inst_N} rows and {lanes * piece} columns")
    tiles = x.view(-1, x.shape[-2] // inst_N, inst_N, x.shape[-1] // (lanes * piece), lanes, piece)
    return tiles.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)


@peer(MODULE)
def pack_int8_to_packed_int4(x_shuf_i8):
    """i8 values of -8 to 7 as half bytes: of 8 neighbours, byte i holds value i and, above it, value i + 4. Returns i8 [elements / 2]."""
    halves = (x_shuf_i8.reshape(-1, 2, 4).to(torch.uint8) & 0xF)
    return (halves[:, 0] | (halves[:, 1] << 4)).view(-1).view(torch.int8)


def unshuffle_weight(x, layout=(16, 16)):
    """The inverse of shuffle_weight."""
    lanes = getattr(x, "lanes", None)
    if lanes is not None:
        shape, order = _lanes(_bytes(x).reshape(-1, *x.shape[-2:]), *lanes), LANES[lanes[2]]
        moved = _bytes(x).reshape([shape[i] for i in order]).permute(_inverse(order))
        return moved.contiguous().view(_bytes(x).shape).view(x.dtype)
    n, rows, k, parts, piece = _tiles(x, layout, getattr(x, "piece", None))
    return _bytes(x).reshape(-1, n, k, parts, rows, piece).permute(0, 1, 4, 2, 3, 5).contiguous().view(x.shape).view(x.dtype)


def plain_weight(x, layout=(16, 16)):
    """unshuffle_weight, once per tensor for as long as it lives unchanged: writes to it and another `.data` are seen, writes to `.data` are not
    (`forget`). Tensors of inference mode, which count no writes, and those of a graph that is being compiled are put back on each call."""
    if torch.compiler.is_compiling() or x.is_inference():
        return unshuffle_weight(x, layout).detach()
    state = (x._version, x.data_ptr(), tuple(x.shape), x.dtype)
    known = _plain.get(x)
    if known is not None and known[:2] == (state, layout):
        return known[2]
    plain = unshuffle_weight(x, layout).detach()
    _plain[x] = (state, layout, plain)
    return plain


def forget(tensor):
    """Gives up the plain copy of a shuffled weight: after `tensor.data.copy_(..)`, which nothing else tells, and for its memory."""
    _plain.pop(tensor, None)


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
    scale.is_sorted, scale.lanes = False, None  # it may have been another one before
    return scale


def e8m0_unshuffle(scale, rows, columns):
    """The inverse of e8m0_shuffle: [rows, columns]."""
    data = scale.contiguous().view(torch.uint8)
    tall, wide = data.shape[:-1].numel(), data.shape[-1]
    plain = data.view(tall // 32, wide // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2).contiguous().view(tall, wide)
    return plain[:rows, :columns].contiguous().view(scale.dtype)


def plain_scale(scale, rows, columns):
    """E8M0 scales as [rows, columns], shuffled or not."""
    lanes = getattr(scale, "lanes", None)
    if lanes is not None:
        scale = _scale_without_lanes(scale, lanes)
    elif getattr(scale, "is_shuffled", False):
        scale = e8m0_unshuffle(scale, rows, columns)
    return scale.view(rows, columns)


def _scale_without_lanes(scale, lanes):
    """The inverse of shuffle_scale with is_guinterleave, lanes: (experts, gate_up). [rows, columns]."""
    flat = scale.contiguous().view(torch.uint8).reshape(-1, scale.shape[-1])
    shape, order = _scale_tiles(flat, *lanes), SCALE_ORDER[lanes[1]]
    return flat.reshape([shape[i] for i in order]).permute(_inverse(order)).contiguous().view(flat.shape).view(scale.dtype)


def shuffled_scale(scale, rows, columns, lanes=None):
    """The same for operators whose scales AITER always has shuffled: what carries no mark (.view, .data = and nn.Parameter lose it) is taken so
    where its shape is the padded one; with lanes (experts, gate_up) where shuffle_scale takes the shape with those."""
    if not hasattr(scale, "is_shuffled"):
        height, width = scale.shape[:-1].numel(), scale.shape[-1]
        if lanes is not None and width % 8 == 0 and height % (32 * lanes[0]) == 0:
            return _scale_without_lanes(scale, lanes).view(rows, columns)
        if (height, width) == (-(-rows // 256) * 256, -(-columns // 8) * 8):
            return e8m0_unshuffle(scale, rows, columns)
    return plain_scale(scale, rows, columns)


def as_e8m0(scale):
    """Bytes as the E8M0 that they are, for a call of eitri; anything else (f32, None) stays."""
    return eitri.typed(scale, "f8e8m0") if scale is not None and scale.dtype == torch.uint8 else scale


def tensors(results):
    """What a call of eitri returned, as tensors: where torch has no E8M0 or fp4, they are bytes."""
    return tuple(result.array if isinstance(result, Typed) else result for result in results)


def rows_of_turned(scale, rows, blocks):
    """[rows, blocks] of f32 scales whose memory is that of their transpose, as AITER's kernels read them: a shape of [rows, blocks] or
    [blocks, rows] over those bytes, or columns with the strides (1, rows)."""
    if tuple(scale.shape) == (rows, blocks) and scale.stride(0) == 1 and not scale.is_contiguous():
        return scale.contiguous()
    return scale.reshape(blocks, rows).t().contiguous()


def _scale_tiles(scale, experts, gate_up):
    rows, columns = scale.shape
    n = rows // max(experts, 1)
    if rows % max(experts, 1) or n % 32 or columns % 8:
        raise InvalidArgument(f"aiter.shuffle_scale: src is {list(scale.shape)} for {experts} experts; expected multiples of 32 rows each and 8 "
                              "columns")
    return (experts, 2, n // 32, 16, columns // 8, 2, 4) if gate_up else (experts, n // 32, 2, 16, columns // 8, 2, 4)


SCALE_ORDER = {False: (0, 1, 4, 6, 3, 5, 2), True: (0, 2, 4, 6, 3, 5, 1)}


@peer(MODULE)
def shuffle_scale(src, experts_cnt=None, is_guinterleave=False, gate_up=False):
    """None and f32 scales are used as they are; E8M0 ones [.., rows, columns] become what e8m0_shuffle makes of all rows, or with
    is_guinterleave the layout that goes with shuffle_weight_a16w4."""
    if src is None or src.dtype == torch.float32:
        return src
    if not is_guinterleave:
        return e8m0_shuffle(src.reshape(-1, src.shape[-1]))
    if experts_cnt is None:
        raise InvalidArgument("aiter.shuffle_scale: experts_cnt is None; expected the number of experts with is_guinterleave")
    tiles = _scale_tiles(src, experts_cnt, bool(gate_up))
    out = src.view(torch.uint8).reshape(tiles).permute(SCALE_ORDER[bool(gate_up)]).contiguous().view(src.shape).view(src.dtype)
    out.is_shuffled, out.lanes = True, (experts_cnt, bool(gate_up))
    return out


@peer(MODULE)
def shuffle_scale_a16w4(src, experts_cnt, gate_up):
    """E8M0 scales [experts * n, k / 32] to go with shuffle_weight_a16w4."""
    return shuffle_scale(src, experts_cnt=experts_cnt, is_guinterleave=True, gate_up=gate_up)


@peer(MODULE)
def shuffle_scale_for_int4(scale, group_size=32):
    """Scales [e, groups, n]: bf16 become [e, groups / 2, n, 2], f32 stay."""
    if group_size != 32:
        raise InvalidArgument(f"aiter.shuffle_scale_for_int4: group_size is {group_size}; expected 32")
    return scale.unflatten(1, (-1, 2)).transpose(2, 3).contiguous() if scale.dtype == torch.bfloat16 else scale.contiguous()
