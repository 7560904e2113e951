"""AITER's public names, signatures and meanings over eitri's operators, on CPUs and GPUs.

    import eitri.compat.aiter
    eitri.compat.aiter.install()   # `import aiter` and its submodules are ours from now on

What is here is the table `table.FUNCTIONS`; what AITER has and eitri has not raises `eitri.Unsupported` that names the function when it is
called. Differences in meaning are listed in docs/migrating_from_aiter.md.
"""

from eitri.compat.aiter import (  # noqa: F401  they fill the table
    activation, gemm, gemm_a4w4, gemm_grouped, moe, moe_one_stage, norm, quant, script_tools, shuffle, sorted_quant, triton_names)
from eitri.compat.aiter.enums import ActivationType, QuantType
from eitri.compat.aiter.install import attributes, install
from eitri.compat.aiter.table import FUNCTIONS

__all__ = ["ActivationType", "FUNCTIONS", "QuantType", "install"]


def __getattr__(name):
    try:
        return attributes("aiter")[name]
    except KeyError:
        raise AttributeError(f"module 'aiter' (eitri.compat.aiter) has no attribute {name!r}") from None
