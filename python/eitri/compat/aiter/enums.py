"""AITER's enums, by value (they are integers), and what they are called here."""

import enum


class ActivationType(enum.IntEnum):
    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2
    Situv2 = 3


class QuantType(enum.IntEnum):
    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5
    per_256x128 = 6
    per_1024x128 = 7


class MxScaleRoundMode(enum.IntEnum):
    RoundDown = 0
    RoundUp = 1
    Even = 2
    Ceil = 3


ACTIVATIONS = {
    ActivationType.No: "none",
    ActivationType.Silu: "silu",
    ActivationType.Gelu: "gelu",
    ActivationType.Swiglu: "swiglu",
    ActivationType.Situv2: "situv2",
}
