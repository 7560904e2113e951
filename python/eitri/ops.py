"""The operators: one function each. Tensors are torch tensors, NumPy arrays, or anything with the buffer protocol or `__dlpack__`.

Results are of the kind and on the device of the inputs. Every function takes its outputs as arguments too (`out=`, …): then
nothing is allocated. On a GPU the work is put into the framework's current stream and the call returns at once. The GIL is released
while a CPU works. There are no gradients: tensors that require grad are refused unless grad mode is off.

Dtypes are torch's, NumPy's, or eitri's names: f32 f16 bf16 f8e4m3 f8e4m3fnuz f8e8m0 f4e2m1 i4 i8 u8 i32 i64. Shapes below are row-major extents;
[..] means optional leading extents. Everything raises `eitri.Error`: InvalidArgument for what an operator does not define, Unsupported when no
kernel takes it, and CompileFailed, DeviceError, OutOfMemory.
"""

from __future__ import annotations

import typing

from eitri._arrays import aligned_bytes, check_out_dtype
from eitri.errors import InvalidArgument
from eitri.lib import _native

_empty = _native.empty
Array = typing.TypeVar("Array")  # torch.Tensor, numpy.ndarray, eitri.typed(…), …
DType = typing.Any  # a dtype of torch or NumPy, or a name


def gemm(a: Array, b: Array, *, bias: Array | None = None, a_scale: Array | None = None, b_scale: Array | None = None,
         activation: str = "none", limit: float = 0.0, alpha: float = 1.702, beta: float = 4.0, linear_beta: float = 25.0,
         gate: str = "none", b_global_scale: Array | None = None, a_quant: str = "none", b_quant: str = "none",
         out_dtype: DType = None, out: Array | None = None) -> Array:
    """out[.., m, n] = act(sum_k(a[.., m, k] * b[.., n, k]) * a_scale[m] * b_scale[n] + bias[n]).

    a: [m, k] or [batch, m, k] of f32, bf16 or f16; or i8 or f8e4m3, then both scales are required.
    b: [n, k] or [batch, n, k] of a's dtype, or what `pack_weights` made of it (CPU). On CPUs also of fewer bits than a: f8e4m3, i8, i4 or
    f4e2m1, with b_scale and b_quant "per_tensor", "per_token" (one a row), "per_1x16", "per_1x32", "per_1x128" or "per_128x128".
    bias: f32 or out's dtype, [n] or [batch, n].
    a_scale: f32 [m] or [batch, m]; for f8e4m3 also [1] or [batch, 1], one for all rows. b_scale: the same for n. Blocks: [m, ceil(k / N)],
    [n, ceil(k / N)], [ceil(n / 128), ceil(k / 128)]; absent with a packed b. b_global_scale: f32 [1], with per_1x16 (nvfp4).
    activation: "none", "relu", "silu", "gelu", "gelu_tanh", "swiglu", "situv2"; limit to linear_beta as in `activation`.
    gate: "separated" or "interleaved": b has gate and up rows, out has n / 2 columns.
    out_dtype: f32, bf16 or f16; default: a's dtype, with scales bf16.
    Returns out: [m, n] or [batch, m, n].
    """
    if out is None:
        columns = _columns("gemm", b, gate)
        out = _empty(a, (*_shape("gemm", "a", a, (2, 3))[:-1], columns), "bf16" if out_dtype is None and a_scale is not None else out_dtype)
    elif out_dtype is not None:
        check_out_dtype("gemm", out, out_dtype)
    _gemm(a, b, out, bias, a_scale, b_scale, activation, limit, alpha, beta, linear_beta, gate, b_global_scale, a_quant, b_quant)
    return out


def grouped_gemm(a: Array, b: Array, sorted_ids: Array, sorted_expert_ids: Array, num_valid: Array, *, tokens: int, block: int = 32,
                 gather: str = "token", bias: Array | None = None, a_scale: Array | None = None, b_scale: Array | None = None,
                 row_weight: Array | None = None, activation: str = "none", limit: float = 0.0, alpha: float = 1.702, beta: float = 4.0,
                 linear_beta: float = 25.0, gate: str = "none", b_global_scale: Array | None = None, a_quant: str = "none",
                 b_quant: str = "none", out_dtype: DType = None, out: Array | None = None) -> Array:
    """A gemm per expert over positions that `moe_sort` has grouped. For each position p that is no padding, of expert e:

    out[p, n] = act(row_weight[p] * sum_k(a[r, k] * b[e, n, k]) * a_scale[r] * b_scale[e, n] + bias[e, n]), r the token of p with
    gather="token", p itself with gather="position". Rows of out at padding positions are not written.

    a: [rows, k] of f32, bf16, f16 or i8. b: [experts, n, k], or packed. sorted_ids, sorted_expert_ids, num_valid: i32, of `moe_sort`.
    tokens: rows of the token matrix; block: positions of one expert. bias: f32 [experts, n]. a_scale: f32 [rows]. b_scale: f32
    [experts, n]. row_weight: f32 [positions]. activation to b_quant, out_dtype: as in `gemm`, with experts in place of a batch.
    Returns out: [positions, n].
    """
    if out is None:
        columns = _columns("grouped_gemm", b, gate)
        out = _empty(a, (*_shape("grouped_gemm", "sorted_ids", sorted_ids, (1,)), columns), "bf16" if out_dtype is None and a_scale is not None else out_dtype)
    elif out_dtype is not None:
        check_out_dtype("grouped_gemm", out, out_dtype)
    _grouped_gemm(a, b, out, sorted_ids, sorted_expert_ids, num_valid, tokens, block, gather, bias, a_scale, b_scale, row_weight,
                  activation, limit, alpha, beta, linear_beta, gate, b_global_scale, a_quant, b_quant)
    return out


def quantize(x: Array, *, quant: str = "per_token", scale_rounding: str = "up", sorted_ids: Array | None = None,
             num_valid: Array | None = None, tokens: int = 0, out_dtype: DType = None, out: Array | None = None,
             scale: Array | None = None) -> tuple[Array, Array]:
    """q = x / scale as a code, rounded to nearest even, saturating, with scale = max|x| / the largest code; a zero block has scale 0.

    x: f32, bf16 or f16 [rows, cols]. quant: what shares a scale: "per_tensor", "per_token" (a row), "per_1x128" or "per_1x32" columns of one.
    out_dtype: i8 (the default), f8e4m3 or f8e4m3fnuz; with per_1x32 i8, f8e4m3 (mxfp8) or f4e2m1 (mxfp4, an even number of columns).
    scale_rounding: of f8e8m0 scales to a power of two: "up", "down" or "even".
    With sorted_ids and num_valid (of `moe_sort`, for `tokens` tokens) rows at padding positions are neither read nor written.
    Returns (q [rows, cols], scale f32 [1], [rows] or [rows, ceil(cols / N)]; f8e8m0 with per_1x32 of f8e4m3 and f4e2m1); `out` and `scale` are
    their places. torch has f4e2m1 as float4_e2m1fn_x2 [rows, cols / 2].
    """
    rows, cols = _shape("quantize", "x", x, (2,))
    if out is None:
        out = _empty(x, (rows, cols), "i8" if out_dtype is None else out_dtype)
    elif out_dtype is not None:
        check_out_dtype("quantize", out, out_dtype)
    if scale is None:
        block = {"per_1x128": 128, "per_1x32": 32}.get(quant)
        shape = (rows, -(-cols // block)) if block else (1,) if quant == "per_tensor" else (rows,)
        scale = _empty(x, shape, "f32" if block != 32 or _is_i8(_dtype_of(out)) else "f8e8m0")
    _quantize(x, out, scale, quant, sorted_ids, num_valid, tokens, scale_rounding)
    return out, scale


def activation(x: Array, kind: str = "silu", *, limit: float = 0.0, alpha: float = 1.702, beta: float = 4.0, linear_beta: float = 25.0,
               gate: str = "separated", sorted_ids: Array | None = None, num_valid: Array | None = None, tokens: int = 0,
               out_dtype: DType = None, out: Array | None = None, scale: Array | None = None) -> Array | tuple[Array, Array]:
    """out = act(x), or act(gate, up) with a gate layout.

    x: f32, bf16 or f16 [rows, inter], with a gate [rows, 2 * inter].
    kind: silu g*sigmoid(g)*u; gelu (erf), gelu_tanh; swiglu (gpt-oss): g' = min(g, limit), u' = clamp(u, +-limit),
    g'*sigmoid(alpha*g')*(u'+1); situv2: beta*tanh(g/beta)*sigmoid(g)*linear_beta*tanh(u/linear_beta); relu and none without gate.
    limit: of silu and swiglu; 0 is none.
    gate: "separated" (columns [0, inter) are the gate), "interleaved" (gate and up in turns), "none".
    sorted_ids, num_valid, tokens: as in `quantize`.
    out_dtype: x's dtype, f32, bf16, f16, or i8: quantised per row. Returns out [rows, inter]; with i8 (out, scale f32 [rows]).
    """
    if out is None:
        rows, columns = _shape("activation", "x", x, (2,))
        out = _empty(x, (rows, columns if gate == "none" else columns // 2), out_dtype)
        if scale is None and out_dtype is not None and _is_i8(out_dtype):
            scale = _empty(x, (rows,), "f32")
    elif out_dtype is not None:
        check_out_dtype("activation", out, out_dtype)
    _activation(x, out, scale, kind, limit, alpha, beta, linear_beta, gate, sorted_ids, num_valid, tokens)
    return out if scale is None else (out, scale)


def rmsnorm(x: Array, weight: Array | None = None, *, residual: Array | None = None, eps: float = 1e-6, norm_weight: str = "plain",
            quant: str = "none", out_dtype: DType = None, out: Array | None = None, residual_out: Array | None = None,
            scale: Array | None = None) -> Array | tuple[Array, ...]:
    """out = s / sqrt(mean(s^2) + eps) * weight over each row; s is x, or x + residual, which is stored in residual_out.

    x: f32, bf16 or f16 [tokens, hidden]. weight: f32 or x's dtype [hidden]; None is 1. residual: f32 or x's dtype [tokens, hidden].
    norm_weight: "plain", or "plus_one" (1 + weight, Gemma).
    quant: "per_token" or "per_1x128" with out_dtype i8, f8e4m3 or f8e4m3fnuz; scale is f32 [tokens] or [tokens, ceil(hidden / 128)].
    An output may be the very tensor of an input of its dtype (in place).
    Returns out; with a residual or a quant a tuple: out, residual_out, scale, those that there are.
    """
    if out is not None and out_dtype is not None:
        check_out_dtype("rmsnorm", out, out_dtype)
    if out is None or (residual is not None and residual_out is None) or (quant != "none" and scale is None):
        rows, columns = _shape("rmsnorm", "x", x, (2,))
        if out is None:
            out = _empty(x, (rows, columns), out_dtype)
        if residual is not None and residual_out is None:
            residual_out = _empty(residual, (rows, columns), None)
        if quant != "none" and scale is None:
            scale = _empty(x, (rows,) if quant == "per_token" else (rows, (columns + 127) // 128), "f32")
    _rmsnorm(x, out, weight, residual, residual_out, scale, eps, norm_weight, quant)
    if residual_out is None:
        return out if scale is None else (out, scale)
    return (out, residual_out) if scale is None else (out, residual_out, scale)


def topk_gating(logits: Array, top_k: int, *, correction_bias: Array | None = None, score: str = "softmax", renormalize: bool = False,
                scale: float = 1.0, groups: int = 1, topk_groups: int = 1, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
    """A router: the top_k experts of each token by score(logits) + correction_bias, and their scores as weights.

    logits: f32, bf16 or f16 [tokens, experts]. correction_bias: f32 [experts]; it only chooses.
    score: "softmax", "sigmoid" or "sqrt_softplus". groups, topk_groups: only experts of the best topk_groups groups are chosen.
    Weights are divided by their sum with renormalize, then multiplied by scale. NaN counts as -inf, ties go to the lowest id.
    Returns (weights f32 [tokens, top_k], ids i32 [tokens, top_k]); `out` is such a pair.
    """
    if out is None:
        _count("topk_gating", "top_k", top_k)
        tokens, _ = _shape("topk_gating", "logits", logits, (2,))
        out = _empty(logits, (tokens, top_k), "f32"), _empty(logits, (tokens, top_k), "i32")
    else:
        columns = _shape("topk_gating", "out[1]", out[1], (2,))[1]
        if columns != top_k:
            raise InvalidArgument(f"topk_gating: top_k is {top_k}; expected {columns} (columns of out)")
    weights, ids = out
    _topk_gating(logits, weights, ids, correction_bias, score, "yes" if renormalize else "no", scale, groups, topk_groups)
    return weights, ids


class Sorted(typing.NamedTuple):
    """What `moe_sort` returns."""

    sorted_ids: typing.Any  # i32 [positions]: (slot << 24) | token; padding is (top_k << 24) | tokens
    sorted_weights: typing.Any  # f32 [positions]; 0 at padding
    sorted_expert_ids: typing.Any  # i32 [blocks]: local expert of each block, -1 beyond the last used one
    num_valid: typing.Any  # i32 [2]: positions used, tokens considered
    reverse: typing.Any  # i32 [tokens, top_k]: position of each pair, -1 when it has none


def moe_sort(topk_ids: Array, topk_weights: Array, experts: int, *, block: int = 32, expert_mask: Array | None = None,
             num_local_tokens: Array | None = None, out: typing.Sequence[Array] | None = None) -> Sorted:
    """Groups (token, slot) pairs by expert, each expert's run padded to a multiple of `block`; the layout is AITER's.

    topk_ids: i32 [tokens, top_k]; ids outside [0, experts) are left out. topk_weights: f32 of the same shape.
    expert_mask: i32 [experts] of 0 and 1: experts that are here. num_local_tokens: i32 [1], rows from there on are ignored.
    positions = tokens * top_k + experts * block - top_k, blocks = ceil(positions / block). Returns `Sorted`; `out` is such a tuple.
    """
    if out is None:
        tokens, top_k = _shape("moe_sort", "topk_ids", topk_ids, (2,))
        _count("moe_sort", "experts", experts)
        _count("moe_sort", "block", block, 1)
        positions = max(0, tokens * top_k + experts * block - top_k)
        out = Sorted(_empty(topk_ids, (positions,), "i32"), _empty(topk_ids, (positions,), "f32"),
                     _empty(topk_ids, ((positions + block - 1) // block,), "i32"), _empty(topk_ids, (2,), "i32"),
                     _empty(topk_ids, (tokens, top_k), "i32"))
    sorted_ids, sorted_weights, sorted_expert_ids, num_valid, reverse = out
    _moe_sort(topk_ids, topk_weights, sorted_ids, sorted_weights, sorted_expert_ids, num_valid, experts, block, reverse, expert_mask,
              num_local_tokens)
    return Sorted(sorted_ids, sorted_weights, sorted_expert_ids, num_valid, reverse)


def moe_combine(y: Array, reverse: Array, weights: Array | None = None, *, shared: Array | None = None,
                num_local_tokens: Array | None = None, out_dtype: DType = None, out: Array | None = None) -> Array:
    """out[t] = sum over slots of weights[t, slot] * y[reverse[t, slot]], plus shared[t]; a slot whose reverse is -1 adds nothing.

    y: f32, bf16 or f16 [positions, hidden]. reverse: i32 [tokens, top_k], of `moe_sort`. weights: f32 [tokens, top_k]; None is 1.
    shared: y's dtype [tokens, hidden]. Rows from num_local_tokens (i32 [1]) on become 0. Returns out [tokens, hidden].
    """
    if out is None:
        out = _empty(y, (_shape("moe_combine", "reverse", reverse, (2,))[0], _shape("moe_combine", "y", y, (2,))[1]), out_dtype)
    elif out_dtype is not None:
        check_out_dtype("moe_combine", out, out_dtype)
    _moe_combine(y, reverse, out, weights, shared, num_local_tokens)
    return out


def fused_moe(x: Array, w1: Array, w2: Array, topk_weights: Array, topk_ids: Array, *, w1_scale: Array | None = None,
              w2_scale: Array | None = None, x_scale: Array | None = None, bias1: Array | None = None, bias2: Array | None = None,
              expert_mask: Array | None = None, num_local_tokens: Array | None = None, shared_w1: Array | None = None,
              shared_w2: Array | None = None, shared_w1_scale: Array | None = None, shared_w2_scale: Array | None = None,
              activation: str = "silu", limit: float = 0.0, alpha: float = 1.702, beta: float = 4.0, linear_beta: float = 25.0,
              gate: str = "separated", weight_stage: str = "second", w1_global_scale: Array | None = None,
              w2_global_scale: Array | None = None, shared_w1_global_scale: Array | None = None,
              shared_w2_global_scale: Array | None = None, a_quant: str = "none", w_quant: str = "none", out_dtype: DType = None,
              out: Array | None = None) -> Array:
    """A mixture-of-experts feed-forward block: out[t] = sum over slots of w * (act(x[t] w1[e]^T + bias1[e]) w2[e]^T + bias2[e]).

    x: bf16 or f16 [tokens, hidden], or i8 or f8e4m3 with x_scale f32 [tokens]; f8e4m3 also by blocks [tokens, ceil(hidden / N)].
    w1: [local_experts, 2 * inter or inter, hidden], w2: [local_experts, hidden, inter]: of x's dtype, or i8 with w1_scale
    f32 [local_experts, rows of w1] and w2_scale f32 [local_experts, hidden] (activations are then quantised per token); or packed.
    topk_weights: f32 [tokens, top_k]. topk_ids: i32 [tokens, top_k], global ids; others than [0, experts) add nothing.
    bias1: f32 [local_experts, rows of w1]. bias2: f32 [local_experts, hidden]. expert_mask: i32 [experts] of 0 and 1.
    num_local_tokens: i32 [1]; rows of out from there on become 0.
    shared_w1, shared_w2 (and scales): an expert of weight 1 for every token. activation to gate: as in `activation`; gate="none" has no
    up rows. weight_stage: "second", or "first" (the weight multiplies the sums of stage 1, Llama 4).
    w_quant, a_quant (CPUs): weights of fewer bits and what shares a scale, as in `gemm`; a_quant: how activations are quantised for both
    stages, "none" for weight-only: with i8 and i4 weights per_token, to i8; with f8e4m3 weights to f8e4m3, per_token (weights per_tensor or
    per_token), per_1x128 (per_128x128) or per_1x32 (per_1x32, also f4e2m1 weights). w1_global_scale, w2_global_scale: f32 [local_experts], with per_1x16.
    out_dtype: bf16, f16 or f32; default: x's dtype, bf16 for i8. Returns out [tokens, hidden].
    """
    if out is None:
        out = _empty(x, _shape("fused_moe", "x", x, (2,)), "bf16" if out_dtype is None and x_scale is not None else out_dtype)
    elif out_dtype is not None:
        check_out_dtype("fused_moe", out, out_dtype)
    _fused_moe(x, w1, w2, topk_weights, topk_ids, out, w1_scale, w2_scale, x_scale, bias1, bias2, expert_mask, num_local_tokens,
               shared_w1, shared_w2, shared_w1_scale, shared_w2_scale, activation, limit, alpha, beta, linear_beta, gate, weight_stage,
               w1_global_scale, w2_global_scale, shared_w1_global_scale, shared_w2_global_scale, a_quant, w_quant)
    return out


def pack_weights(weights: Array, *, gate: str = "none", format: str = "panel32", m_hint: int = 1, quant: str = "none",
                 scale: Array | None = None) -> Array:
    """Weights in the order in which CPU kernels read them: faster, for all m. Pass the result as `b`, `w1`, `w2`.

    weights: f32, bf16, f16 or i8 [n, k] or [experts, n, k] in CPU memory; f8e4m3, i4 and f4e2m1 as well. quant and scale: block scales, as
    b_quant and b_scale of `gemm`; they go into the buffer. gate: of the call that will use them: "none",
    "separated", "interleaved". format: "panel32", Eitri's own; or "onednn" for about m_hint rows, not for storage.
    Returns u8 [bytes]: opaque, versioned; its start must stay a multiple of 64 bytes.
    """
    out = aligned_bytes(weights, _native.packed_bytes(weights, gate, format, m_hint, quant, scale))
    _native.pack_weights(weights, gate, format, m_hint, quant, scale, out)
    return out


def _shape(op, name, array, ranks):
    """The extents of an argument that decides the shape of a result."""
    shape = getattr(array, "shape", None)
    if shape is None:
        raise InvalidArgument(f"{op}: {name} is a {type(array).__qualname__}; expected a tensor")
    if len(shape) not in ranks:
        raise InvalidArgument(f"{op}: {name} has shape {list(shape)}; expected {' or '.join(map(str, ranks))} dimensions")
    return shape


def _count(op, name, value, least=0):
    """A number that decides the shape of a result; torch's symbolic ones pass as well."""
    if isinstance(value, bool) or not isinstance(value, int) and not hasattr(value, "__index__"):
        raise InvalidArgument(f"{op}: {name} is {value!r}; expected a number")
    if value < least:
        raise InvalidArgument(f"{op}: {name} is {value}; expected at least {least}")


def _dtype_of(array):
    return getattr(array, "dtype", None)


def _columns(op, weight, gate):
    shape = _shape(op, "b", weight, (1, 2, 3))
    rows = _native.weight_shape(weight, op, "b")[-2] if len(shape) == 1 else shape[-2]
    return rows if gate == "none" else rows // 2


def _is_i8(dtype):
    return dtype in ("i8", "int8") or str(dtype) in ("torch.int8", "int8") or getattr(dtype, "__name__", "") == "int8"


_gemm = _native.gemm
_grouped_gemm = _native.grouped_gemm
_quantize = _native.quantize
_activation = _native.activation
_rmsnorm = _native.rmsnorm
_topk_gating = _native.topk_gating
_moe_sort = _native.moe_sort
_moe_combine = _native.moe_combine
_fused_moe = _native.fused_moe
