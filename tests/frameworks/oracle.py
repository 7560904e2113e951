"""The block in float64 with an error bound per element, and the routing with the margin of its choice."""

import dataclasses

import torch

BF16 = 2.0**-8  # largest relative rounding error of bf16: half of the spacing 2^-7
F32 = 2.0**-24


@dataclasses.dataclass
class Value:
    """A tensor and a bound on the error that a bf16 implementation may have in it."""

    value: torch.Tensor
    error: torch.Tensor

    def rounded(self):
        """After a store in bf16."""
        return Value(self.value, self.error + BF16 * (self.value.abs() + self.error))


def linear(x, weight, bias=None):
    """x [n, k] times weight [m, k]: the input's error spreads, and an f32 sum of k products in any order adds its own."""
    value = x.value @ weight.T
    magnitude = (x.value.abs() + x.error) @ weight.abs().T
    error = x.error @ weight.abs().T + (weight.shape[1] + 4) * F32 * magnitude
    if bias is not None:
        value = value + bias
        error = error + BF16 * (value.abs() + error)  # PyTorch may round the sum before it adds the bias
    return Value(value, error)


# Largest slope of silu is 1.0999 (at 2.4); of x * sigmoid(1.702 x) it is the same.
SLOPE = 1.1


def gated(gate, up, gpt_oss, roundings):
    """silu(gate) * up, or gpt-oss's clamped swiglu. `roundings` bf16 stores happen on the way in PyTorch."""
    g, u = gate.value, up.value
    if gpt_oss:
        g = g.clamp(max=7.0)
        u = u.clamp(-7.0, 7.0)
        act = g * torch.sigmoid(1.702 * g)
        u = u + 1
    else:
        act = g * torch.sigmoid(g)
    value = act * u
    act_error = SLOPE * gate.error
    error = act_error * (u.abs() + up.error) + act.abs() * up.error
    error = error + roundings * BF16 * ((act.abs() + act_error) * (u.abs() + up.error))
    return Value(value, error)


def quantised(x):
    """x after dynamic int8 quantisation per row. An error in x may move an element to another code."""
    amax = x.value.abs().amax(-1, keepdim=True)
    scale = (amax / 127).clamp(min=1e-300)
    scale_error = x.error.amax(-1, keepdim=True) / 127 + 2 * F32 * scale
    position = x.value / scale
    code = torch.round(position)
    reach = x.error / scale + position.abs() * scale_error / scale
    moved = torch.floor(reach + (position - code).abs() + 0.5)
    return Value(code * scale, moved * (scale + scale_error) + code.abs() * scale_error)


def experts_apply(weights, x, ids, routing, routing_error, gpt_oss, int8=False):
    """sum over slots of routing * expert(x): x is a Value of [tokens, hidden]."""
    tokens, hidden = x.value.shape
    inter = weights.w2.shape[2]
    total = Value(torch.zeros(tokens, hidden, dtype=torch.float64), torch.zeros(tokens, hidden, dtype=torch.float64))
    magnitude = torch.zeros_like(total.value)  # no partial sum is larger
    for e in range(weights.w1.shape[0]):
        token, slot = torch.where(ids == e)
        if len(token) == 0:
            continue
        xe = Value(x.value[token], x.error[token])
        h = linear(xe, weights.w1[e], None if weights.bias1 is None else weights.bias1[e]).rounded()
        gate, up = Value(h.value[:, :inter], h.error[:, :inter]), Value(h.value[:, inter:], h.error[:, inter:])
        act = gated(gate, up, gpt_oss, 4 if gpt_oss else 2).rounded()
        act = quantised(act) if int8 else act
        y = linear(act, weights.w2[e], None if weights.bias2 is None else weights.bias2[e]).rounded()
        w, we = routing[token, slot, None], routing_error[token, slot, None]
        part = Value(y.value * w, y.error * (w.abs() + we) + y.value.abs() * we).rounded()
        total.value.index_add_(0, token, part.value)
        total.error.index_add_(0, token, part.error)
        magnitude.index_add_(0, token, part.value.abs() + part.error)
    total.error += ids.shape[1] * BF16 * magnitude  # PyTorch keeps the running sum in bf16
    return total


def block(weights, x, choice, gpt_oss, int8=False):
    """The whole block on exact bf16 hidden states `x` [tokens, hidden] in float64. `int8`: activations are quantised
    before both products; the weights are expected to be dequantised int8 ones already."""
    if int8:
        codes, scale = quantise_rows(x)
        x = codes * scale
    exact = Value(x, torch.zeros_like(x))
    out = experts_apply(weights, exact, choice.ids, choice.weights, choice.error, gpt_oss, int8)
    if weights.shared is not None:
        w1, w2 = weights.shared
        inter = w2.shape[1]
        h = linear(exact, w1).rounded()
        act = gated(Value(h.value[:, :inter], h.error[:, :inter]), Value(h.value[:, inter:], h.error[:, inter:]), gpt_oss, 2).rounded()
        act = quantised(act) if int8 else act
        y = linear(act, w2).rounded()
        out = Value(out.value + y.value, out.error + y.error)
    return out.rounded()


@dataclasses.dataclass
class Choice:
    ids: torch.Tensor  # [tokens, top_k]
    weights: torch.Tensor
    error: torch.Tensor  # of the weights
    clear: torch.Tensor  # [tokens]: no bf16 rounding of the logits can change the choice


def route(weights, x, config, family, top_k):
    """Exact routing, with the error that bf16 logits give its weights, and which choices that error cannot change."""
    logits = x @ weights.router.T
    magnitude = x.abs() @ weights.router.abs().T
    if weights.router_bias is not None:
        logits = logits + weights.router_bias
    delta = (weights.router.shape[1] + 4) * F32 * magnitude
    if family.score == "softmax":  # these routers keep their logits in bf16; DeepSeek's are f32
        delta = delta + 2 * BF16 * logits.abs()
    if family.score == "sigmoid":
        scores = torch.sigmoid(logits)
        score_error = 0.25 * delta + 4 * F32
        chosen_by = scores + weights.correction
        groups, keep = config.n_group, config.topk_group
        per_group = chosen_by.view(len(x), groups, -1)
        best_two = per_group.topk(2, dim=-1).values.sum(-1)
        order = best_two.sort(dim=-1, descending=True)
        spread = score_error.amax(-1)
        clear = order.values[:, keep - 1] - order.values[:, keep] > 4 * spread
        allowed = torch.zeros_like(best_two, dtype=torch.bool).scatter(1, order.indices[:, :keep], True)
        chosen_by = per_group.masked_fill(~allowed.unsqueeze(-1), -torch.inf).view(len(x), -1)
    else:
        scores, chosen_by = torch.softmax(logits, -1), logits
        spread = delta.amax(-1)
        clear = torch.ones(len(x), dtype=torch.bool)
    ranked = chosen_by.sort(dim=-1, descending=True)
    clear &= ranked.values[:, top_k - 1] - ranked.values[:, top_k] > 2 * spread
    ids = ranked.indices[:, :top_k]
    picked = scores.gather(1, ids)
    if family.score == "sigmoid":
        sums = picked.sum(-1, keepdim=True)
        result = picked / sums * config.routed_scaling_factor
        error = result * (score_error.gather(1, ids) / picked + score_error.amax(-1, keepdim=True) * top_k / sums) + 1e-6
    else:  # softmax over the chosen logits: every weight moves by at most a factor e^(2 delta)
        result = picked / picked.sum(-1, keepdim=True)
        error = result * torch.expm1(2 * delta.amax(-1, keepdim=True)) + 1e-6
        error = error + 3 * BF16 * result  # weights, and gpt-oss's softmax, are kept in bf16
    return Choice(ids, result, error, clear)


def quantise_rows(w):
    """int8 codes and scales per row, in f32 arithmetic: scale = amax / 127, code = round(w * (1 / scale))."""
    w = w.float()
    amax = w.abs().amax(-1, keepdim=True)
    scale = torch.where(amax == 0, torch.zeros_like(amax), (amax / 127.0).clamp(min=2.0**-126))
    inverse = torch.where(scale == 0, torch.zeros_like(scale), 1.0 / scale)
    codes = torch.round(w * inverse).clamp(-127, 127)
    return codes.double(), scale.double()


def dequantised(weights):
    """The block's weights as int8 quantisation per output channel leaves them."""

    def through(w):
        codes, scale = quantise_rows(w)
        return codes * scale

    shared = None if weights.shared is None else tuple(through(w) for w in weights.shared)
    return dataclasses.replace(weights, w1=through(weights.w1), w2=through(weights.w2), shared=shared)
