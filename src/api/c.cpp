// The C ABI: guards that turn exceptions into codes, and C structs into the C++ ones. Hot: no allocation on success.
#include "eitri/eitri.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "api/dlpack.h"
#include "base/error.h"
#include "base/view.h"
#include "eitri/eitri.hpp"
#include "eitri/jit.hpp"

namespace eitri {
namespace {

// One buffer per thread; a message that does not fit is cut, so that reporting an error cannot fail.
thread_local char last_error[2048] = "";

int report(Code code, const char* text) noexcept {
  std::strncpy(last_error, text, sizeof last_error - 1);
  last_error[sizeof last_error - 1] = 0;
  return static_cast<int>(code);
}

template <class Body> int guard(Body&& body) noexcept {
  try {
    body();
    last_error[0] = 0;
    return EITRI_OK;
  } catch (const Error& e) {
    return report(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return report(Code::out_of_memory, "out of memory");
  } catch (const std::exception& e) {
    return report(Code::internal, e.what());
  } catch (...) {
    return report(Code::internal, "unknown exception");
  }
}

DType dtype_of(eitri_dtype t, const char* op, const char* arg) {
  if (t.lanes == 1)
    if (const DType dtype = dtype_of_dlpack(t.code, t.bits); dtype != DType::none) return dtype;
  fail(Code::invalid_argument, str(op, ": ", arg, " has DLPack dtype (code ", int{t.code}, ", ", int{t.bits}, " bits, ", t.lanes,
                                   " lanes); expected one that eitri.h lists"));
}

/// Views of one call's tensors, with the names for messages.
struct Convert {
  const char* op;
  View operator()(const eitri_tensor* t, const char* arg) const {
    View v;
    if (t == nullptr) return v;
    switch (t->device.type) {
      case 1: break;
      case 2: v.device = {DeviceKind::cuda, t->device.id}; break;
      case 10: v.device = {DeviceKind::hip, t->device.id}; break;
      default: require(false, op, ": ", arg, " is on DLPack device type ", t->device.type, "; expected 1, 2 or 10 (see eitri_device)");
    }
    require(t->ndim >= 0 && t->ndim <= kMaxRank, op, ": ", arg, " has ", t->ndim, " dimensions; expected at most ", kMaxRank);
    require(t->ndim == 0 || t->shape != nullptr, op, ": ", arg, " has no shape");
    v.data = static_cast<std::byte*>(t->data) + (t->data == nullptr ? 0 : t->byte_offset);
    v.dtype = dtype_of(t->dtype, op, arg);
    v.rank = static_cast<int8_t>(t->ndim);
    int64_t step = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
      v.shape[i] = t->shape[i];
      v.stride[i] = t->strides != nullptr ? t->strides[i] : step;
      // Saturates: check_view refuses what does not fit.
      if (__builtin_mul_overflow(step, std::max<int64_t>(t->shape[i], 1), &step)) step = int64_t{1} << 62;
    }
    return v;
  }
  /// A weight: u8 [bytes] is a packed buffer.
  View weight(const eitri_tensor* t, const char* arg) const {
    const View v = (*this)(t, arg);
    if (v.dtype != DType::u8 || v.rank != 1) return v;
    try {
      return packed_view(v.data, static_cast<size_t>(std::max<int64_t>(v.shape[0], 0)));
    } catch (const Error& e) {
      fail(e.code(), str(op, ": ", arg, " is u8, taken as packed weights: ", e.what()));
    }
  }
  template <class E> E choice(int32_t value, int32_t count, const char* arg) const {
    require(value >= 0 && value < count, op, ": ", arg, " is ", value, "; expected 0 to ", count - 1);
    return static_cast<E>(value);
  }
  ActivationParams activation(const eitri_activation_params& p) const {
    return {.kind = choice<ActivationKind>(p.kind, 7, "activation.kind"),
            .limit = p.limit,
            .alpha = p.alpha,
            .beta = p.beta,
            .linear_beta = p.linear_beta};
  }
  GateLayout gate(int32_t value) const { return choice<GateLayout>(value, 3, "gate"); }
  Quant quant(int32_t value, const char* arg) const { return choice<Quant>(value, 7, arg); }
};

/// The caller's struct, missing tail fields zero. A longer one may carry only zeros in what this version does not know.
template <class T> T take(const T* args, const char* op) {
  require(args != nullptr, op, ": args is NULL; expected a pointer to its struct");
  const size_t size = args->size;
  require(size >= sizeof(size_t) && size <= 4096, op, ": args.size is ", size, "; expected sizeof(struct), ", sizeof(T));
  T copy = {};
  std::memcpy(&copy, args, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(args);
  for (size_t i = sizeof(T); i < size; ++i)
    require(bytes[i] == 0, op, ": args has a field at byte ", i, " that this version does not know");
  return copy;
}

}  // namespace
}  // namespace eitri

using namespace eitri;

int eitri_gemm(const eitri_gemm_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "gemm");
    const Convert view{"gemm"};
    gemm({.a = view(c.a, "a"),
          .b = view.weight(c.b, "b"),
          .c = view(c.c, "c"),
          .bias = view(c.bias, "bias"),
          .a_scale = view(c.a_scale, "a_scale"),
          .b_scale = view(c.b_scale, "b_scale"),
          .activation = view.activation(c.activation),
          .gate = view.gate(c.gate),
          .b_global_scale = view(c.b_global_scale, "b_global_scale"),
          .a_quant = view.quant(c.a_quant, "a_quant"),
          .b_quant = view.quant(c.b_quant, "b_quant")},
         stream);
  });
}

int eitri_grouped_gemm(const eitri_grouped_gemm_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "grouped_gemm");
    const Convert view{"grouped_gemm"};
    grouped_gemm({.a = view(c.a, "a"),
                  .b = view.weight(c.b, "b"),
                  .c = view(c.c, "c"),
                  .bias = view(c.bias, "bias"),
                  .a_scale = view(c.a_scale, "a_scale"),
                  .b_scale = view(c.b_scale, "b_scale"),
                  .row_weight = view(c.row_weight, "row_weight"),
                  .sorted_ids = view(c.sorted_ids, "sorted_ids"),
                  .sorted_expert_ids = view(c.sorted_expert_ids, "sorted_expert_ids"),
                  .num_valid = view(c.num_valid, "num_valid"),
                  .tokens = c.tokens,
                  .block = c.block,
                  .gather = view.choice<Gather>(c.gather, 2, "gather"),
                  .activation = view.activation(c.activation),
                  .gate = view.gate(c.gate),
                  .b_global_scale = view(c.b_global_scale, "b_global_scale"),
                  .a_quant = view.quant(c.a_quant, "a_quant"),
                  .b_quant = view.quant(c.b_quant, "b_quant")},
                 stream);
  });
}

int eitri_quantize(const eitri_quantize_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "quantize");
    const Convert view{"quantize"};
    const Quant quant = view.quant(c.quant, "quant");
    require(c.scale_rounding >= 0 && c.scale_rounding <= 2, "quantize: scale_rounding is number ", c.scale_rounding,
            "; expected 0 (up), 1 (down) or 2 (even)");
    constexpr ScaleRounding kRoundings[] = {kScaleUp, kScaleDown, kScaleEven};
    quantize({.x = view(c.x, "x"),
              .q = view(c.q, "q"),
              .scale = view(c.scale, "scale"),
              .quant = quant == Quant::none ? Quant::per_token : quant,
              .sorted_ids = view(c.sorted_ids, "sorted_ids"),
              .num_valid = view(c.num_valid, "num_valid"),
              .tokens = c.tokens,
              .scale_rounding = kRoundings[c.scale_rounding]},
             stream);
  });
}

int eitri_activation(const eitri_activation_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "activation");
    const Convert view{"activation"};
    activation({.x = view(c.x, "x"),
                .out = view(c.out, "out"),
                .scale = view(c.scale, "scale"),
                .activation = view.activation(c.activation),
                .gate = view.gate(c.gate),
                .sorted_ids = view(c.sorted_ids, "sorted_ids"),
                .num_valid = view(c.num_valid, "num_valid"),
                .tokens = c.tokens},
               stream);
  });
}

int eitri_rmsnorm(const eitri_rmsnorm_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "rmsnorm");
    const Convert view{"rmsnorm"};
    rmsnorm({.x = view(c.x, "x"),
             .weight = view(c.weight, "weight"),
             .residual = view(c.residual, "residual"),
             .residual_out = view(c.residual_out, "residual_out"),
             .out = view(c.out, "out"),
             .scale = view(c.scale, "scale"),
             .eps = c.eps,
             .norm_weight = view.choice<NormWeight>(c.norm_weight, 2, "norm_weight"),
             .quant = view.quant(c.quant, "quant")},
            stream);
  });
}

int eitri_topk_gating(const eitri_topk_gating_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "topk_gating");
    const Convert view{"topk_gating"};
    topk_gating({.logits = view(c.logits, "logits"),
                 .correction_bias = view(c.correction_bias, "correction_bias"),
                 .weights = view(c.weights, "weights"),
                 .ids = view(c.ids, "ids"),
                 .score = view.choice<Score>(c.score, 3, "score"),
                 .renormalize = view.choice<Renormalize>(c.renormalize, 2, "renormalize"),
                 .scale = c.scale,
                 .groups = c.groups,
                 .topk_groups = c.topk_groups},
                stream);
  });
}

int eitri_moe_sort(const eitri_moe_sort_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "moe_sort");
    const Convert view{"moe_sort"};
    moe_sort({.topk_ids = view(c.topk_ids, "topk_ids"),
              .topk_weights = view(c.topk_weights, "topk_weights"),
              .expert_mask = view(c.expert_mask, "expert_mask"),
              .num_local_tokens = view(c.num_local_tokens, "num_local_tokens"),
              .sorted_ids = view(c.sorted_ids, "sorted_ids"),
              .sorted_weights = view(c.sorted_weights, "sorted_weights"),
              .sorted_expert_ids = view(c.sorted_expert_ids, "sorted_expert_ids"),
              .num_valid = view(c.num_valid, "num_valid"),
              .reverse = view(c.reverse, "reverse"),
              .experts = c.experts,
              .block = c.block},
             stream);
  });
}

int eitri_moe_combine(const eitri_moe_combine_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "moe_combine");
    const Convert view{"moe_combine"};
    moe_combine({.y = view(c.y, "y"),
                 .reverse = view(c.reverse, "reverse"),
                 .weights = view(c.weights, "weights"),
                 .shared = view(c.shared, "shared"),
                 .out = view(c.out, "out"),
                 .num_local_tokens = view(c.num_local_tokens, "num_local_tokens")},
                stream);
  });
}

int eitri_fused_moe(const eitri_fused_moe_args* args, eitri_stream stream) {
  return guard([&] {
    const auto c = take(args, "fused_moe");
    const Convert view{"fused_moe"};
    fused_moe({.x = view(c.x, "x"),
               .w1 = view.weight(c.w1, "w1"),
               .w2 = view.weight(c.w2, "w2"),
               .topk_weights = view(c.topk_weights, "topk_weights"),
               .topk_ids = view(c.topk_ids, "topk_ids"),
               .out = view(c.out, "out"),
               .w1_scale = view(c.w1_scale, "w1_scale"),
               .w2_scale = view(c.w2_scale, "w2_scale"),
               .x_scale = view(c.x_scale, "x_scale"),
               .bias1 = view(c.bias1, "bias1"),
               .bias2 = view(c.bias2, "bias2"),
               .expert_mask = view(c.expert_mask, "expert_mask"),
               .num_local_tokens = view(c.num_local_tokens, "num_local_tokens"),
               .shared_w1 = view.weight(c.shared_w1, "shared_w1"),
               .shared_w2 = view.weight(c.shared_w2, "shared_w2"),
               .shared_w1_scale = view(c.shared_w1_scale, "shared_w1_scale"),
               .shared_w2_scale = view(c.shared_w2_scale, "shared_w2_scale"),
               .activation = view.activation(c.activation),
               .gate = view.gate(c.gate),
               .weight_stage = view.choice<WeightStage>(c.weight_stage, 2, "weight_stage"),
               .w1_global_scale = view(c.w1_global_scale, "w1_global_scale"),
               .w2_global_scale = view(c.w2_global_scale, "w2_global_scale"),
               .shared_w1_global_scale = view(c.shared_w1_global_scale, "shared_w1_global_scale"),
               .shared_w2_global_scale = view(c.shared_w2_global_scale, "shared_w2_global_scale"),
               .a_quant = view.quant(c.a_quant, "a_quant"),
               .w_quant = view.quant(c.w_quant, "w_quant")},
              stream);
  });
}

namespace {

PackArgs pack_args(const eitri_tensor* weights, const eitri_tensor* scale, int32_t quant, int32_t gate) {
  const Convert view{"pack_weights"};
  return {.weights = view(weights, "weights"), .gate = view.gate(gate), .quant = view.quant(quant, "quant"), .scale = view(scale, "scale")};
}

}  // namespace

int eitri_packed_bytes_scaled(const eitri_tensor* weights, const eitri_tensor* scale, int32_t quant, int32_t gate, size_t* bytes) {
  return guard([&] {
    require(bytes != nullptr, "pack_weights: bytes is NULL; expected where to write the size");
    *bytes = packed_bytes(pack_args(weights, scale, quant, gate));
  });
}

int eitri_pack_weights_scaled(const eitri_tensor* weights, const eitri_tensor* scale, int32_t quant, int32_t gate, void* buffer,
                              size_t bytes) {
  return guard([&] {
    const PackArgs args = pack_args(weights, scale, quant, gate);
    const size_t needed = packed_bytes(args);
    require(bytes >= needed, "pack_weights: bytes is ", bytes, "; expected at least ", needed);
    pack_weights(args, buffer);
  });
}

int eitri_packed_bytes(const eitri_tensor* weights, int32_t gate, size_t* bytes) {
  return eitri_packed_bytes_scaled(weights, nullptr, EITRI_QUANT_NONE, gate, bytes);
}

int eitri_pack_weights(const eitri_tensor* weights, int32_t gate, void* buffer, size_t bytes) {
  return eitri_pack_weights_scaled(weights, nullptr, EITRI_QUANT_NONE, gate, buffer, bytes);
}

const char* eitri_last_error(void) { return last_error; }
const char* eitri_version(void) { return version().data(); }

int eitri_explain(const char* op, const char* problem, int32_t json, char* out, size_t capacity, size_t* length) {
  return guard([&] {
    require(op != nullptr && problem != nullptr, "explain: op or problem is NULL; expected text");
    require(out != nullptr || capacity == 0, "explain: out is NULL; expected a buffer of ", capacity, " bytes");
    const std::string text = json != 0 ? explain_json(op, problem) : explain(op, problem);
    if (length != nullptr) *length = text.size();
    if (capacity == 0) return;
    const size_t n = std::min(capacity - 1, text.size());
    std::memcpy(out, text.data(), n);
    out[n] = 0;
  });
}

int eitri_seal(void) {
  return guard([] { seal(); });
}

int eitri_prebuild(const char* op, const char* problem, const char* targets, size_t* compiled) {
  return guard([&] {
    require(op != nullptr && problem != nullptr && targets != nullptr, "prebuild: op, problem or targets is NULL; expected text");
    const PrebuildResult result = prebuild(op, problem, targets);
    if (compiled != nullptr) *compiled = result.compiled;
  });
}
