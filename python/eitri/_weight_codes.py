"""Weights of few bits for `eitri.nn`: which kinds there are, and how weights and activations become codes."""

import typing

import torch

import eitri
from eitri.errors import InvalidArgument, Unsupported


class Quant(typing.NamedTuple):
    """What weights and activations are stored as. scales: what shares a scale of weights, as in `eitri.gemm`'s b_quant; activations: "none" for
    as they are, else a dtype, quantised on each call with activation_scales sharing one. `eitri.gemm` says which go together."""

    weights: str = "none"  # i8, i4, f8e4m3 or f4e2m1
    scales: str = "none"
    activations: str = "none"  # i8 or f8e4m3
    activation_scales: str = "none"

    @property
    def _is_plain(self):
        """The products of 8-bit operands with a scale a row, which need no names."""
        return self.scales == self.activation_scales == "per_token" and self.weights == self.activations

    @property
    def a_quant(self):
        return "none" if self._is_plain else self.activation_scales

    @property
    def b_quant(self):
        return "none" if self._is_plain else self.scales


QUANTS = {
    "none": Quant(),
    "i8": Quant("i8", "per_token", "i8", "per_token"),
    "f8e4m3": Quant("f8e4m3", "per_token", "f8e4m3", "per_token"),
    "f8e4m3_blocks": Quant("f8e4m3", "per_128x128", "f8e4m3", "per_1x128"),
    "mxfp8": Quant("f8e4m3", "per_1x32", "f8e4m3", "per_1x32"),
    "mxfp4_mxfp8": Quant("f4e2m1", "per_1x32", "f8e4m3", "per_1x32"),
    "i4_i8": Quant("i4", "per_token", "i8", "per_token"),
    "i4": Quant("i4", "per_1x32"),
    "mxfp4": Quant("f4e2m1", "per_1x32"),
    "nvfp4": Quant("f4e2m1", "per_1x16"),
    "i8_weights": Quant("i8", "per_token"),
    "f8e4m3_weights": Quant("f8e4m3", "per_128x128"),
}
LARGEST = {"i8": 127.0, "i4": 7.0, "f8e4m3": 448.0, "f4e2m1": 6.0}
BLOCKS = {"per_1x16": (1, 16), "per_1x32": (1, 32), "per_1x128": (1, 128), "per_128x128": (128, 128)}
BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # neighbours of f4e2m1


def find(quant):
    if isinstance(quant, Quant):
        return quant
    if quant not in QUANTS:
        raise InvalidArgument(f"quant is {quant!r}; expected one of {', '.join(QUANTS)}, or a Quant")
    return QUANTS[quant]


class Codes(typing.NamedTuple):
    codes: torch.Tensor  # packed on CPUs
    scale: typing.Optional[torch.Tensor]  # None: none, or in the packed codes
    global_scale: typing.Optional[torch.Tensor]


def code(weight, quant, gate="none"):
    """Weights [n, k] or [experts, n, k] as Codes; gate: of the call that uses them."""
    weight = weight.detach().contiguous()
    if quant.weights == "none":
        return Codes(_packed(weight, gate), None, None)
    if weight.device.type != "cpu" and not quant._is_plain:
        raise Unsupported(f"quant is {quant} on {weight.device}; eitri has none, i8 and f8e4m3 there")
    codes, scale, global_scale = quantize(weight, quant)
    if weight.device.type != "cpu":
        return Codes(codes, scale, global_scale)
    readable = eitri.typed(codes, quant.weights) if codes.dtype == torch.uint8 else codes
    if quant.scales in BLOCKS:
        scale = eitri.typed(scale, "f8e8m0") if scale.dtype == torch.uint8 else scale
        return Codes(eitri.pack_weights(readable, gate=gate, quant=quant.scales, scale=scale), None, global_scale)
    return Codes(eitri.pack_weights(readable, gate=gate), scale, global_scale)


def code_rows(x, quant):
    """Activations [rows, k] as a call wants them: (x, None), or (codes, scale)."""
    if quant.activations == "none":
        return x, None
    return eitri.quantize(x.contiguous(), quant=quant.activation_scales, out_dtype=quant.activations)


def _packed(weight, gate):
    return eitri.pack_weights(weight, gate=gate) if weight.device.type == "cpu" else weight


def quantize(weight, quant):
    """(codes, scale, global scale or None) of weights [.., n, k]; i4 and f4e2m1 are bytes [.., n, k / 2], the first element in the low half.

    Codes are rounded to nearest even and saturate; a block of zeros has scale 0. f8e8m0 scales (f8e4m3 and f4e2m1 per_1x32) are rounded up to a
    power of two (bytes, where torch has no such dtype); per_1x16 has f8e4m3 scales times a global one, f32 [1] or [experts]."""
    if quant.weights not in LARGEST or quant.scales not in (*BLOCKS, "per_token", "per_tensor"):
        raise InvalidArgument(f"quant is {quant}; expected weights of {', '.join(LARGEST)}, and scales per_tensor, per_token, {', '.join(BLOCKS)}")
    *lead, n, k = weight.shape
    if quant.weights in ("i4", "f4e2m1") and k % 2:
        raise InvalidArgument(f"weight is {list(weight.shape)}; expected an even number of columns ({quant.weights})")
    rows, columns = {"per_token": (1, k), "per_tensor": (n, k)}.get(quant.scales) or BLOCKS[quant.scales]
    high, wide = -(-n // max(rows, 1)), -(-k // max(columns, 1))
    x = torch.nn.functional.pad(weight.float(), (0, wide * columns - k, 0, high * rows - n)).view(*lead, high, rows, wide, columns)
    most = x.abs().amax((-3, -1), keepdim=True)
    largest, global_scale = LARGEST[quant.weights], None
    if quant.scales == "per_1x16":
        global_scale = most.amax((-4, -2), keepdim=True) / (448.0 * largest)
        scale = (most / (largest * torch.where(global_scale == 0, 1.0, global_scale))).clamp(max=448.0).to(torch.float8_e4m3fn)
        factor, global_scale = scale.float() * global_scale, global_scale.reshape(lead or (1,))
    elif quant.scales == "per_1x32" and quant.weights in ("f8e4m3", "f4e2m1"):
        exponent = torch.ceil(torch.log2(most / largest)).clamp(-127, 127)
        # log2 may be off by a rounding: the smallest power of two with which the largest value fits.
        exponent = torch.where(torch.ldexp(most / largest, -exponent) > 1, exponent + 1, exponent)
        exponent = torch.where(torch.ldexp(most / largest, 1 - exponent) <= 1, exponent - 1, exponent)
        exponent = torch.where(most == 0, -127.0, exponent).clamp(-127, 127)
        scale = (exponent + 127).to(torch.uint8).view(getattr(torch, "float8_e8m0fnu", torch.uint8))
        factor = torch.ldexp(torch.ones_like(exponent), exponent)
    else:
        scale = factor = most / largest
    x = (x / torch.where(factor == 0, 1.0, factor)).view(*lead, high * rows, wide * columns)[..., :n, :k]
    shape = {"per_token": (*lead, n), "per_tensor": tuple(lead) or (1,)}.get(quant.scales, (*lead, high, wide))
    if quant.scales == "per_tensor" and lead:
        shape = (*lead, 1)
    return _cast(x, quant.weights), scale.reshape(shape), global_scale


def _cast(x, dtype):
    if dtype == "f8e4m3":
        return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    if dtype == "i8":
        return x.round().clamp(-127, 127).to(torch.int8)
    if dtype == "i4":
        codes = x.round().clamp(-7, 7).to(torch.int8).view(torch.uint8) & 15
    else:
        steps = torch.tensor(BETWEEN, device=x.device)
        low, high = torch.bucketize(x.abs(), steps), torch.bucketize(x.abs(), steps, right=True)  # they differ at ties
        codes = torch.where(low % 2 == 0, low, high).to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 3)
    return codes[..., ::2] | (codes[..., 1::2] << 4)
