"""Quantisation: aiter.ops.quant. Scales are amax / largest code, an all-zero row has scale 0 (AITER: 1); casts saturate.

num_rows (a number on the device) saves AITER the rows from there on. Here all rows are quantised, each on its own: those before it are the same."""

import functools

import torch

import eitri
from eitri.compat.aiter import dtypes
from eitri.compat.aiter.enums import QuantType
from eitri.compat.aiter.shuffle import e8m0_shuffle, mark_scale, shuffle_scale_a16w4, shuffle_weight, shuffle_weight_a16w4, tensors
from eitri.compat.aiter.table import check_dtype, local_peer, peer, refuse
from eitri.errors import InvalidArgument, Unsupported

MODULE = "aiter.ops.quant"


@peer(MODULE)
def get_dtype_max(dtype):
    """Largest code: 127 for i8, 448 for fp8."""
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def _codes(x, scale, dtype):
    x = x / torch.where(scale == 0, torch.ones_like(scale), scale)
    most = float(get_dtype_max(dtype))
    if not dtype.is_floating_point:
        x = x.round()
    return x.clamp(-most, most).to(dtype)  # a NaN stays one in fp8


@peer(MODULE)
def pertoken_quant(x, scale=None, x_scale=None, scale_dtype=dtypes.fp32, quant_dtype=dtypes.i8, dtypeMax=None):
    """In torch: (codes, scale [.., 1]) per row of the last dimension; x_scale multiplies x before (smooth quantisation)."""
    x = x.float() if x_scale is None else x.float() * x_scale
    if scale is None:
        scale = x.abs().amax(-1, keepdim=True) / (dtypeMax or get_dtype_max(quant_dtype))
    return _codes(x, scale, quant_dtype), scale.to(scale_dtype)


@peer(MODULE)
def per_tensor_quant(x, scale=None, scale_dtype=dtypes.fp32, quant_dtype=dtypes.i8, dtypeMax=None):
    """In torch: (codes, scale [1]) with one scale for the whole tensor."""
    x = x.float()
    if scale is None:
        scale = x.abs().max() / (dtypeMax or get_dtype_max(quant_dtype))
    return _codes(x, scale, quant_dtype), scale.view(1).to(scale_dtype)


def _write(to, codes):
    """Into a tensor of the same bytes: torch copies no fp4."""
    to.view(torch.uint8).copy_(codes.view(torch.uint8))


def _quantize_rows(out, x, scale):
    """Codes of x [.., n] with an f32 scale for each row; scale is flat, or None."""
    n = x.shape[-1]
    return eitri.quantize(x.reshape(-1, n), out=out.view(-1, n), scale=scale)


@peer(MODULE)
def static_per_tensor_quant(out, input, scale):
    """In torch: out = input / scale as i8 or fp8; scale f32 [1]."""
    check_dtype("static_per_tensor_quant", "out", out.dtype, (torch.int8, dtypes.fp8))
    out.copy_(_codes(input.float(), scale.reshape(()), out.dtype))


@peer(MODULE)
def dynamic_per_tensor_quant(out, input, scale):
    """out: i8 or fp8 of input's shape; scale f32 [1] is written."""
    check_dtype("dynamic_per_tensor_quant", "out", out.dtype, (torch.int8, dtypes.fp8))
    n = input.shape[-1]
    eitri.quantize(input.reshape(-1, n), quant="per_tensor", out=out.view(-1, n), scale=scale.view(1))


@peer(MODULE)
def dynamic_per_token_scaled_quant(out, input, scales, scale_ub=None, shuffle_scale=False, num_rows=None, num_rows_factor=1):
    """out: i8 or fp8 [.., n] of input's elements, scales: f32 with an element for each row of input."""
    refuse("dynamic_per_token_scaled_quant", scale_ub=(scale_ub, None), shuffle_scale=(shuffle_scale, False))
    check_dtype("dynamic_per_token_scaled_quant", "out", out.dtype, (torch.int8, dtypes.fp8))
    n = input.shape[-1]
    eitri.quantize(input.reshape(-1, n), out=out.view(-1, n), scale=scales.view(-1))


@peer(MODULE)
def per_token_quant_hip(x, scale=None, quant_dtype=dtypes.i8, num_rows=None, num_rows_factor=1):
    """(codes i8 or fp8 of x's shape, scale f32 [.., 1])."""
    refuse("per_token_quant_hip", scale=(scale, None))
    check_dtype("per_token_quant_hip", "quant_dtype", quant_dtype, (torch.int8, dtypes.fp8))
    out = torch.empty(x.shape, dtype=quant_dtype, device=x.device)
    scale = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    dynamic_per_token_scaled_quant(out, x, scale, num_rows=num_rows, num_rows_factor=num_rows_factor)
    return out, scale


@peer(MODULE)
def per_tensor_quant_hip(x, scale=None, quant_dtype=dtypes.i8, num_rows=None, num_rows_factor=1):
    """(codes i8 or fp8 of x's shape, scale f32 [1]); with `scale` by that one."""
    refuse("per_tensor_quant_hip", num_rows=(num_rows, None))
    out = torch.empty(x.shape, dtype=quant_dtype, device=x.device)
    if scale is None:
        scale = torch.empty(1, dtype=torch.float32, device=x.device)
        dynamic_per_tensor_quant(out, x, scale)
    else:
        static_per_tensor_quant(out, x, scale)
    return out, scale.view(1)


@peer(MODULE)
def dynamic_per_group_scaled_quant(out, input, scales, group_size=32, shuffle_scale=True, num_rows=None, num_rows_factor=1,
                                   scale_layout_m32k4=False):
    """Groups of 32, 64 or 128 of the last dimension. out: fp4x2 [.., n / 2], fp8 or i8 [.., n]; scales: E8M0 bytes (fp4x2, fp8, groups of
    32) or f32 (fp8, i8). shuffle_scale: E8M0 as shuffle_scale() makes it; f32 as the transpose, in the same memory."""
    name = "dynamic_per_group_scaled_quant"
    refuse(name, scale_layout_m32k4=(scale_layout_m32k4, False))
    n = input.shape[-1]
    if group_size not in (32, 64, 128) or n % group_size:
        raise InvalidArgument(f"aiter.{name}: group_size is {group_size} and input has {n} columns; expected 32, 64 or 128, and a multiple of it")
    x = input.reshape(-1, n)
    fp4 = out.dtype in (dtypes.fp4x2, torch.uint8)
    if scales.dtype != torch.float32:
        if group_size != 32:
            raise Unsupported(f"aiter.{name}: group_size is {group_size} with E8M0 scales; eitri has groups of 32")
        if not fp4:
            check_dtype(name, "out", out.dtype, (dtypes.fp8, dtypes.fp4x2, torch.uint8))
        codes, found = tensors(eitri.quantize(x, quant="per_1x32", out_dtype="f4e2m1" if fp4 else "f8e4m3"))
        _write(out.view(-1, n // 2 if fp4 else n), codes)
        plain_shape = tuple(found.shape)
        found = e8m0_shuffle(found) if shuffle_scale else found
        _write(scales.view(-1), found.reshape(-1))
        mark_scale(scales, plain_shape if shuffle_scale else None)
        return
    check_dtype(name, "out", out.dtype, (torch.int8, dtypes.fp8))
    found = torch.empty(x.shape[0] * (n // group_size), dtype=torch.float32, device=x.device)
    _quantize_rows(out.view(-1, group_size), x.reshape(-1, group_size), found)
    found = found.view(x.shape[0], -1)
    scales.view(-1).copy_((found.t() if shuffle_scale else found).reshape(-1))


@peer(MODULE)
def dynamic_per_group_scaled_quant_fp4(out, input, scales, group_size=32, shuffle_scale=True, num_rows=None, num_rows_factor=1):
    dynamic_per_group_scaled_quant(out, input, scales, group_size, shuffle_scale, num_rows, num_rows_factor)


@peer(MODULE)
def per_group_quant_hip(x, scale=None, quant_dtype=dtypes.i8, group_size=128, transpose_scale=False, num_rows=None, num_rows_factor=1,
                        scale_type=dtypes.fp32, scale_layout_m32k4=False):
    """(codes of x's shape, scales [.., n / group_size] of scale_type)."""
    refuse("per_group_quant_hip", scale=(scale, None))
    out = torch.empty(x.shape, dtype=quant_dtype, device=x.device)
    scale = torch.empty(*x.shape[:-1], x.shape[-1] // group_size, dtype=torch.uint8 if scale_type != torch.float32 else scale_type,
                        device=x.device).view(scale_type)
    dynamic_per_group_scaled_quant(out, x, scale, group_size, transpose_scale, num_rows, num_rows_factor, scale_layout_m32k4)
    return out, scale


@peer(MODULE)
def per_1x32_mx_quant_hip(x, scale=None, quant_dtype=dtypes.fp4x2, shuffle=False, num_rows=None, num_rows_factor=1, scale_type=None):
    """x [m, n]: fp4x2 [m, n / 2] with E8M0 scales [m, n / 32], or fp8 [m, n] with f32 ones (E8M0 with that scale_type). shuffle: E8M0 scales as
    shuffle_scale() makes them, padded to multiples of 256 rows and 8 columns."""
    name = "per_1x32_mx_quant_hip"
    refuse(name, scale=(scale, None))
    check_dtype(name, "quant_dtype", quant_dtype, (dtypes.fp4x2, dtypes.fp8))
    m, n = x.shape
    fp4 = quant_dtype == dtypes.fp4x2
    scale_type = scale_type or (dtypes.fp8_e8m0 if fp4 else torch.float32)
    check_dtype(name, "scale_type", scale_type, (dtypes.fp8_e8m0,) if fp4 else (torch.float32, dtypes.fp8_e8m0))
    if scale_type == torch.float32:
        refuse(name, shuffle=(shuffle, False))
        rows, columns, scale_bytes = m, n // 32, torch.float32
    else:
        rows, columns = (-(-m // 256) * 256, -(-(n // 32) // 8) * 8) if shuffle else (m, n // 32)
        scale_bytes = torch.uint8
    out = torch.empty(m, n // 2 if fp4 else n, dtype=torch.uint8, device=x.device).view(quant_dtype)
    scale = torch.empty(rows, columns, dtype=scale_bytes, device=x.device).view(scale_type)
    dynamic_per_group_scaled_quant(out, x, scale, 32, shuffle, num_rows, num_rows_factor)
    return out, scale


@peer(MODULE, "per_1x32_f4_quant_triton")
def per_1x32_f4_quant_hip(x, scale=None, quant_dtype=dtypes.fp4x2, shuffle=False, num_rows=None, num_rows_factor=1):
    check_dtype("per_1x32_f4_quant_hip", "quant_dtype", quant_dtype, (dtypes.fp4x2,))
    return per_1x32_mx_quant_hip(x, scale, quant_dtype, shuffle, num_rows, num_rows_factor)


@peer(MODULE)
def per_1x32_f4_quant(x, scale=None, quant_dtype=dtypes.fp4x2, shuffle=False, pack_dim=-1, round_mode=1):
    """(fp4x2 [.., n / 2], E8M0 scales [rows, n / 32]). round_mode of the scale: 0 down, 1 up, 2 even. pack_dim=0: x [k, n], blocks along k."""
    refuse("per_1x32_f4_quant", scale=(scale, None))
    check_dtype("per_1x32_f4_quant", "quant_dtype", quant_dtype, (dtypes.fp4x2,))
    rounding = {0: "down", 1: "up", 2: "even"}.get(int(round_mode))
    if rounding is None:
        raise Unsupported(f"aiter.per_1x32_f4_quant: round_mode is {round_mode}; eitri has 0 (down), 1 (up) and 2 (even)")
    if pack_dim == 0:
        x = x.t().contiguous()
    n = x.shape[-1]
    if n % 32:
        raise InvalidArgument(f"aiter.per_1x32_f4_quant: x is {list(x.shape)}; expected a multiple of 32 elements in a row")
    codes, found = tensors(eitri.quantize(x.reshape(-1, n), quant="per_1x32", out_dtype="f4e2m1", scale_rounding=rounding))
    codes = codes.view(torch.uint8).view(*x.shape[:-1], n // 2)
    plain_shape = tuple(found.shape)
    found = e8m0_shuffle(found) if shuffle else found
    if pack_dim == 0:
        codes, found = codes.t().contiguous(), found.view(torch.uint8).t().contiguous()
    return codes.view(dtypes.fp4x2), mark_scale(found.view(dtypes.fp8_e8m0), plain_shape if shuffle and pack_dim != 0 else None)


@peer(MODULE)
def per_1x32_f8_scale_f8_quant(x, scale=None, quant_dtype=dtypes.fp8, scale_type=dtypes.fp32, shuffle=False):
    """(fp8 of x's shape, scales [rows, n / 32]): E8M0, or f32 with which the largest element becomes 256."""
    refuse("per_1x32_f8_scale_f8_quant", scale=(scale, None))
    check_dtype("per_1x32_f8_scale_f8_quant", "quant_dtype", quant_dtype, (dtypes.fp8,))
    n = x.shape[-1]
    if scale_type == torch.float32:
        blocks = x.float().reshape(-1, 32)
        found = blocks.abs().amax(-1, keepdim=True) / 256
        return _codes(blocks, found, quant_dtype).view(x.shape), found.view(-1, n // 32)
    codes, found = tensors(eitri.quantize(x.reshape(-1, n), quant="per_1x32", out_dtype="f8e4m3"))
    return codes.view(x.shape), e8m0_shuffle(found) if shuffle else found


@peer(MODULE)
def per_1x32_i4_quant(weight, group_size=32):
    """In torch: (i8 of weight's shape with values of -7 to 7, scales bf16 [.., k / group_size, n])."""
    groups = weight.float().unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 7
    codes = (groups / scale).round().clamp(-7, 7).to(torch.int8).flatten(-2)
    return codes, scale.squeeze(-1).transpose(-1, -2).contiguous().to(torch.bfloat16)


def _smooth(out, x, scales):
    n = x.shape[-1]
    eitri.quantize(x.reshape(-1, n), out=out.view(-1, n), scale=scales.view(-1))


@peer(MODULE)
def smoothquant_fwd(out, input, x_scale, y_scale):
    """out i8 or fp8, y_scale f32 [.., 1]: input * x_scale [n], quantised per row."""
    _smooth(out, input.float() * x_scale.float(), y_scale)


@peer(MODULE)
def moe_smoothquant_fwd(out, input, x_scale, topk_ids, y_scale):
    """out [top_k * m, n], slot by slot: row m of slot s is input[m] * x_scale[topk_ids[m, s]], quantised. x_scale f32 [experts, n]."""
    experts = topk_ids.t().long().clamp(0, x_scale.shape[0] - 1)
    _smooth(out, input.float().unsqueeze(0) * x_scale.float()[experts], y_scale)


@peer(MODULE)
def smooth_per_token_scaled_quant(out, input, scales, smooth_scale, smooth_scale_map=None, shuffle_scale=False, num_rows=None,
                                  num_rows_factor=1, smooth_scale_map_hash=None, enable_ps=True):
    """out = input * smooth_scale [n] quantised per row, or * smooth_scale[smooth_scale_map] with a map of rows to rows, or with
    smooth_scale[smooth_scale_map_hash[smooth_scale_map]] (local experts; negative for none, whose rows are not looked at)."""
    refuse("smooth_per_token_scaled_quant", shuffle_scale=(shuffle_scale, False))
    factor = smooth_scale.float()
    if smooth_scale_map is not None:
        row = smooth_scale_map.long()
        if smooth_scale_map_hash is not None:
            row = smooth_scale_map_hash.long()[row.clamp(0, smooth_scale_map_hash.shape[0] - 1)]
        factor = factor[row.clamp(0, factor.shape[0] - 1)]
    value = input.float() * factor
    codes = eitri.quantize(value.reshape(-1, value.shape[-1]), out_dtype="i8" if out.dtype == torch.int8 else out.dtype, scale=scales.view(-1))[0]
    out.view(torch.uint8).copy_(codes.view(torch.uint8).view(out.shape))


@peer(MODULE)
def quant_mxfp4_hip(x, group_size=32, round_mode=1, e8m0_shuffle=False, a16w4_shuffle=False, gate_up=False, shuffle_weight=False):
    """x [rows, cols]: (fp4x2 [rows, cols / 2], E8M0 scales [rows, cols / 32]). e8m0_shuffle: scales as shuffle_scale makes them; a16w4_shuffle
    (with gate_up): as shuffle_scale_a16w4; shuffle_weight: codes in the order that goes with them. round_mode as in per_1x32_f4_quant."""
    refuse("quant_mxfp4_hip", group_size=(group_size, 32))
    codes, scale = per_1x32_f4_quant(x, shuffle=e8m0_shuffle and not a16w4_shuffle, round_mode=round_mode)
    if a16w4_shuffle:
        scale = shuffle_scale_a16w4(scale, 1, gate_up)
    if shuffle_weight:
        codes = _shuffled_codes(codes, a16w4_shuffle, gate_up)
    return codes, scale


def _shuffled_codes(codes, a16w4, gate_up):
    if not a16w4:
        return shuffle_weight(codes)
    wide = shuffle_weight_a16w4(codes.view(torch.uint8).unsqueeze(0), 16, gate_up)
    out = wide[0].view(codes.dtype)
    out.is_shuffled, out.lanes = True, wide.lanes
    return out


@peer(MODULE)
def partial_transpose(out, input, num_rows):
    """The first num_rows (i32 [1], on the device) rows of input [rows, cols] as [cols, num_rows], from the start of out's memory."""
    rows, cols = input.shape[:-1].numel(), input.shape[-1]
    n = num_rows.reshape(()).long().clamp(0, rows)
    at = torch.arange(rows * cols, device=input.device)
    source = (at % n.clamp(min=1)) * cols + (at // n.clamp(min=1)).clamp(max=cols - 1)
    flat = out.view(-1)
    flat.copy_(torch.where(at < n * cols, input.reshape(-1)[source.clamp(max=rows * cols - 1)], flat))


TRITON = "aiter.ops.triton.quant"


@local_peer(TRITON, TRITON + ".quant", "aiter.utility.fp4_utils")
def dynamic_mxfp4_quant(x, scaling_mode="even", shuffle=False):
    """(fp4 bytes [m, n / 2], E8M0 bytes [m, n / 32]); scales are rounded to even."""
    refuse("dynamic_mxfp4_quant", scaling_mode=(scaling_mode, "even"))
    codes, scale = per_1x32_f4_quant(x, shuffle=shuffle, round_mode=2)
    return codes.view(torch.uint8), mark_scale(scale.view(torch.uint8), None) if not shuffle else scale


@local_peer(TRITON, TRITON + ".quant", TRITON + ".quant_mxfp8")
def dynamic_mxfp8_quant(x, scale=None, quant_dtype=dtypes.fp8):
    """(fp8 of x's shape, E8M0 bytes [.., n / 32]), into `scale` if it is given."""
    check_dtype("dynamic_mxfp8_quant", "quant_dtype", quant_dtype, (dtypes.fp8,))
    n = x.shape[-1]
    codes, found = tensors(eitri.quantize(x.reshape(-1, n), quant="per_1x32", out_dtype="f8e4m3"))
    found = found.view(torch.uint8)
    if scale is not None:
        _write(scale.view(found.shape), found)
    return codes.view(x.shape), found.view(*x.shape[:-1], n // 32) if scale is None else scale


@local_peer(TRITON, TRITON + ".quant")
def dynamic_per_token_quant_fp8_i8(qx, x_in, scale_out):
    """qx i8 or fp8 [m, n], scale_out f32 [m] are written. Returns both."""
    dynamic_per_token_scaled_quant(qx, x_in, scale_out)
    return qx, scale_out


@local_peer(TRITON, TRITON + ".quant")
def dynamic_per_tensor_quant_fp8_i8(qx, x_in, scale_out):
    dynamic_per_tensor_quant(qx, x_in, scale_out)
    return qx, scale_out


@local_peer(TRITON, TRITON + ".quant")
def static_per_tensor_quant_fp8_i8(qx, x_in, scale_in):
    static_per_tensor_quant(qx, x_in, scale_in)
    return qx


def _none(x, *args, **kwargs):
    return x, None


def _torch_1x128(x, scale=None, quant_dtype=dtypes.i8):
    """In torch: (codes [m, n], scales f32 [m, n / 128])."""
    m, n = x.shape
    codes, found = pertoken_quant(x.reshape(-1, 128), scale=None if scale is None else scale.reshape(-1, 1), quant_dtype=quant_dtype)
    return codes.view(m, n), found.view(m, n // 128)


def _unsupported(name, quant):
    def call(*args, **kwargs):
        raise Unsupported(f"aiter.{name}: qType is {getattr(quant, 'name', quant)}; eitri has no quantisation of it yet")

    return call


@peer(MODULE)
@functools.lru_cache
def get_torch_quant(qType):
    """The function (x, scale=None, quant_dtype=…) -> (codes, scale) in torch."""
    known = {QuantType.No: _none, QuantType.per_Tensor: per_tensor_quant, QuantType.per_Token: pertoken_quant,
             QuantType.per_1x32: per_1x32_f4_quant, QuantType.per_1x128: _torch_1x128}
    return known.get(qType) or _unsupported("get_torch_quant", qType)


@peer(MODULE, "get_triton_quant")
@functools.lru_cache
def get_hip_quant(qType):
    """The function (x, scale=None, quant_dtype=…) -> (codes, scale) by eitri's operators."""
    known = {QuantType.No: _none, QuantType.per_Tensor: per_tensor_quant_hip, QuantType.per_Token: per_token_quant_hip,
             QuantType.per_1x32: per_1x32_mx_quant_hip, QuantType.per_1x128: functools.partial(per_group_quant_hip, group_size=128)}
    return known.get(qType) or _unsupported("get_hip_quant", qType)
