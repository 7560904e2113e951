"""The module tree of AITER, made from the table."""

import importlib.machinery
import logging
import os
import sys
import types

from eitri.compat.aiter import dtypes, enums, gemm, script_tools, table
from eitri.errors import Error

# What AITER has and eitri has not yet, by module. Importing the names works, calling them says what is missing.
MISSING = {
    "aiter.ops.mha": "flash_attn_func flash_attn_varlen_func mha_batch_prefill_func flash_attn_fp8_pertensor_func",
    "aiter.mla": "mla_decode_fwd mla_prefill_fwd mla_reduce_v1",
    "aiter.ops.attention": "pa_fwd_naive pa_fwd_asm paged_attention_rocm paged_attention_v1 paged_attention_ragged "
                           "get_mla_metadata_v1 get_mla_metadata_info_v1",
    "aiter.ops.norm": "layer_norm layernorm2d_fwd layernorm2d_fwd_with_add layernorm2d_fwd_with_smoothquant",
    "aiter.ops.rope": "rope_fwd rope_2c_fwd rope_cached_fwd rope_cached_positions_2c_fwd rotary_embedding_fwd batched_rotary_embedding",
    "aiter.ops.cache": "reshape_and_cache reshape_and_cache_flash concat_and_cache_mla swap_blocks copy_blocks indexer_k_quant_and_cache",
    "aiter.ops.sample": "greedy_sample random_sample mixed_sample exponential",
    "aiter.ops.topk": "top_k_per_row_prefill top_k_per_row_decode",
    "aiter.ops.gemm_op_a4w4": "gemm_a4w4o4 gemm_a4w4o8 gemm_mxfp4_asm gemm_nvfp4_asm",
    "aiter.fused_moe_dp_shared_expert": "fused_moe_dp_share_expert",
    "aiter.fhmoe": "fhmoe",
    "aiter.ops.aiter_operator": "add sub mul div sigmoid tanh",
    "aiter.ops.triton.gmm": "ptgmm nptgmm",
    "aiter.dist.communication_op": "tensor_model_parallel_all_reduce tensor_model_parallel_all_gather "
                                   "tensor_model_parallel_fused_allreduce_rmsnorm",
    "aiter.ops.custom_all_reduce": "init_custom_ar all_reduce fused_allreduce_rmsnorm",
    "aiter.jit.core": "compile_ops get_module build_module",
}


def get_gfx():
    """What decides dtypes in AITER: "gfx950", the machine with OCP fp8, for CPUs and NVIDIA GPUs."""
    return "gfx950"


def get_cu_num():
    """Multiprocessors of the current GPU; without one, processors of the host."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return os.cpu_count() or 1


def _module_names():
    """module -> {name: object} for the whole tree."""
    types_of = {"ActivationType": enums.ActivationType, "QuantType": enums.QuantType}
    chip = {"get_gfx": get_gfx, "get_gfx_runtime": get_gfx, "get_cu_num": get_cu_num}
    constants = {"AITER_LOG_MORE": 0, "AITER_LOG_TUNED_CONFIG": 0, "PY": sys.executable}
    tree = {
        "aiter": {"dtypes": dtypes, "logger": logging.getLogger("aiter"), "tgemm": gemm.tgemm, **types_of, **chip},
        "aiter.ops.enum": dict(types_of),
        "aiter.tuned_gemm": {"tgemm": gemm.tgemm, "TunedGemm": gemm.TunedGemm},
        "aiter.fused_moe": dict(types_of),
        "aiter.jit.core": constants,
        "aiter.jit.utils.chip_info": chip,
    }
    for name, (module, function) in table.FUNCTIONS.items():
        tree.setdefault(module, {})[name] = function
        tree["aiter"][name] = function
    for (module, name), function in table.LOCAL.items():
        tree.setdefault(module, {})[name] = function
    for module, names in MISSING.items():
        for name in names.split():
            stub = table.missing(name)
            tree.setdefault(module, {}).setdefault(name, stub)
            tree["aiter"].setdefault(name, stub)
    return tree


def attributes(module):
    """Names of one module of the tree."""
    return _module_names()[module]


def _refuse_attribute(module):
    def get(name):
        if name.startswith("__"):  # the import system asks for these
            raise AttributeError(name)
        raise AttributeError(f"{module}.{name} is not there (eitri.compat.aiter): eitri knows no such name of AITER")

    return get


def install():
    """Makes `import aiter` and its submodules resolve to eitri's. Refused when another `aiter` has been imported already."""
    present = sys.modules.get("aiter")
    if present is not None:
        if getattr(present, "__eitri__", False):
            return
        raise Error("install: aiter has been imported from elsewhere already; call eitri.compat.aiter.install() before")
    tree = _module_names()
    # Packages between the root and the leaves.
    for name in list(tree):
        while "." in name:
            name = name.rpartition(".")[0]
            tree.setdefault(name, {})
    made = {}
    for name, names in tree.items():
        module = types.ModuleType(name, f"AITER's {name} over eitri.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__eitri__ = True
        module.__getattr__ = _refuse_attribute(name)
        module.__dict__.update(names)
        made[name] = module
    made["aiter.utility.dtypes"], made["aiter.test_common"] = dtypes, script_tools
    made["aiter.utility"] = types.ModuleType("aiter.utility")
    made["aiter.utility"].__path__ = []
    sys.modules.update(made)
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            made[parent].__dict__[child] = module  # aiter.fused_moe is the module, as it is there
