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
    "aiter.ops.mha": "flash_attn_func flash_attn_varlen_func mha_batch_prefill_func flash_attn_fp8_pertensor_func "
                     "flash_attn_varlen_fp8_pertensor_func mha_fwd mha_bwd mha_varlen_fwd mha_varlen_bwd fmha_v3_fwd fmha_v3_bwd "
                     "fmha_v3_varlen_fwd fmha_v3_varlen_bwd",
    "aiter.mla": "mla_decode_fwd mla_prefill_fwd mla_prefill_ps_fwd mla_reduce_v1",
    "aiter.ops.attention": "pa_fwd_naive pa_fwd_asm pa_persistent_fwd pa_ps_fwd_asm pa_reduce_v1 paged_attention_rocm paged_attention_v1 "
                           "paged_attention_ragged paged_attention_common mla_prefill_ps_asm_fwd get_mla_metadata_v1 get_mla_metadata_info_v1 "
                           "get_pa_metadata_v1 get_pa_metadata_info_v1 get_ps_metadata_v1 get_ps_metadata_info_v1 decode_update_mla_metadata_v1",
    "aiter.paged_attn": "PagedAttention",
    "aiter.ops.norm": "layer_norm layernorm2d_fwd layernorm2d_fwd_with_add layernorm2d_fwd_with_smoothquant layernorm2d_fwd_with_add_smoothquant",
    "aiter.ops.groupnorm": "GroupNorm groupnorm_run",
    "aiter.ops.rope": "rope_fwd rope_bwd rope_2c_fwd rope_2c_bwd rope_cached_fwd rope_cached_bwd rope_cached_2c_fwd rope_cached_2c_bwd "
                      "rope_cached_positions_fwd rope_cached_positions_2c_fwd rope_cached_positions_offsets_fwd "
                      "rope_cached_positions_offsets_2c_fwd rope_thd_fwd rope_thd_bwd rope_2d_fwd rope_2d_bwd",
    "aiter.ops.pos_encoding": "rotary_embedding_fwd batched_rotary_embedding",
    "aiter.rotary_embedding": "get_rope RotaryEmbedding",
    "aiter.ops.fused_qk_norm_rope_cache_quant": "fused_qk_norm_rope_cache_quant_shuffle fused_qk_norm_rope_cache_pts_quant_shuffle "
                                                "fused_qk_norm_rope_cache_block_quant_shuffle",
    "aiter.ops.cache": "reshape_and_cache reshape_and_cache_flash reshape_and_cache_with_pertoken_quant reshape_and_cache_with_block_quant "
                       "reshape_and_cache_with_block_quant_for_asm_pa concat_and_cache_mla fused_qk_rope_concat_and_cache_mla swap_blocks "
                       "copy_blocks indexer_k_quant_and_cache indexer_qk_rope_quant_and_cache cp_gather_indexer_k_quant_cache",
    "aiter.ops.sample": "greedy_sample random_sample mixed_sample random_sample_outer_exponential mixed_sample_outer_exponential exponential",
    "aiter.ops.topk": "top_k_per_row_prefill top_k_per_row_decode top_k_per_row_prefill_fast top_k_per_row_decode_fast",
    "aiter.ops.topk_plain": "topk_plain",
    "aiter.ops.shuffle": "moe_shuffle_weight shuffle_scale_n32k4 shuffle_scale_f4",
    "aiter.ops.gemm_op_a4w4": "gemm_a4w4o4 gemm_a4w4o8 gemm_mxfp4_asm gemm_nvfp4_asm",
    "aiter.fused_moe_dp_shared_expert": "fused_moe_dp_share_expert",
    "aiter.fhmoe": "fhmoe",
    "aiter.ops.aiter_operator": "add sub mul div add_ sub_ mul_ div_ sigmoid tanh",
    "aiter.ops.causal_conv1d_update": "causal_conv1d_update",
    "aiter.ops.causal_conv1d_fwd_split_qkv": "causal_conv1d_split_qkv_hip_fn",
    "aiter.ops.chunk_gated_delta_rule_fwd_h": "chunk_gated_delta_rule_fwd_h_hip_fn",
    "aiter.ops.mhc": "mhc_pre mhc_post mhc_fused_post_pre",
    "aiter.ops.triton.gmm": "ptgmm nptgmm",
    "aiter.ops.triton.gemm.basic.gemm_a16w16_gated": "gemm_a16w16_gated",
    "aiter.ops.triton.gemm.basic.gemm_a16w16_atomic": "gemm_a16w16_atomic",
    "aiter.ops.triton.attention.mha": "flash_attn_func flash_attn_varlen_func",
    "aiter.ops.triton.attention.unified_attention": "unified_attention",
    "aiter.ops.triton.attention.mla_decode_rope": "decode_attention_fwd_grouped_rope",
    "aiter.ops.triton.attention.fp8_mqa_logits": "fp8_mqa_logits",
    "aiter.ops.triton.unified_attention": "unified_attention",
    "aiter.dist.communication_op": "tensor_model_parallel_all_reduce tensor_model_parallel_all_gather tensor_model_parallel_reduce_scatter "
                                   "tensor_model_parallel_fused_allreduce_rmsnorm",
    "aiter.ops.custom_all_reduce": "init_custom_ar all_reduce reduce_scatter all_gather_reg all_gather_unreg fused_allreduce_rmsnorm",
    "aiter.ops.quick_all_reduce": "init_custom_qr qr_all_reduce",
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
    rounding = {"MxScaleRoundMode": enums.MxScaleRoundMode}
    constants = {"AITER_LOG_MORE": 0, "AITER_LOG_TUNED_CONFIG": 0, "PY": sys.executable}
    tree = {
        "aiter": {"dtypes": dtypes, "logger": logging.getLogger("aiter"), "tgemm": gemm.tgemm, **types_of, **chip},
        "aiter.ops.enum": dict(types_of),
        "aiter.ops.quant": dict(rounding),
        "aiter.utility.mx_types": rounding,
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
            if not module.startswith("aiter.ops.triton"):
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
    sys.modules.update(made)
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            made[parent].__dict__[child] = module  # aiter.fused_moe is the module, as it is there
