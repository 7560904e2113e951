// fused_moe.<level>.decode: few tokens. Streams every touched expert's weights once and keeps nothing else: no sorted
// lists, no padded rows, no expert outputs.
//
// Algorithm: the (token, slot) pairs are listed by expert, experts ascending, tokens ascending in each. Phase 1: panels of
// w1 of all touched experts (the shared one last) are dealt in chunks to the team; the panel kernel gathers the pairs'
// rows of x, applies the activation and writes h, one row a pair. Quantised activations: h is f32 and is quantised by the quantize
// operator; f8e4m3 codes are then widened to what the kernel multiplies.
// Phase 2: chunks of output columns are dealt; for each, all touched experts in order add weight * (h w2 + bias2) into an
// f32 block [tokens, columns] of the thread, which becomes a block of out at the end. An element of out is the same sum in
// the same order whatever the team: results repeat bit for bit.
// Bound by: weight bandwidth. A chunk packs its rows of x or h again, which is what limits it to few tokens.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/numeric.h"
#include "base/view.h"
#include "dispatch/explain.h"
#include "ops/fused_moe/recipe.h"
#include "ops/fused_moe/rows.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/widen_rows.h"
#include "ops/grouped_gemm/panel_rows.h"
#include "ops/quantize/quantize.h"

namespace eitri {

namespace {

using Problem = FusedMoe::Problem;

// Panels a task: small enough to balance, long enough to stream. The second kind also sizes the block of out that a task
// keeps in f32, which should stay in L1 or near it.
constexpr int64_t kMaxChunk1 = 32;
constexpr int64_t max_chunk_2(int64_t tokens) {
  constexpr int64_t kBlockBytes = 64 << 10;
  return std::clamp<int64_t>(kBlockBytes / (tokens * kPanelColumns * 4), 4, 32);
}
constexpr size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Pairs [first, first + count) belong to a local expert.
struct Touched {
  int32_t expert, first, count;
};

/// The call's memory. Sizes depend on the problem alone.
struct Buffers {
  Touched* touched = nullptr;                     // [min(pairs, local_experts)]
  int32_t* local = nullptr;                       // [experts]: local id, or -1
  int32_t* next = nullptr;                        // [local_experts]: where an expert's next pair goes
  int32_t* pair_token = nullptr;                  // [pairs]
  float* pair_weight = nullptr;                   // [pairs]
  View x_codes, x_scale;                          // quantised activations and a float x
  View x_wide, h_wide, shared_h_wide;             // f8e4m3 codes as the kernel multiplies them
  View h, h_codes, h_scale;                       // [pairs, inter]
  View shared_h, shared_h_codes, shared_h_scale;  // [tokens, shared_inter]
  std::byte* scratch = nullptr;                   // of each thread
  size_t bytes = 0;                               // without scratch
};

/// f8e4m3 activations are multiplied as another type, at most this wide.
bool is_widened(const Problem& p) { return p.multiplied() == DType::f8e4m3; }
DType widest(const Problem& p) { return multiplied_type(Target::any_cpu, p.multiplied(), p.a_quant); }

Buffers carve(const Problem& p, std::byte* base) {
  size_t used = 0;
  const auto take = [&](int64_t bytes) {
    std::byte* at = base == nullptr ? nullptr : base + used;
    used += align64(static_cast<size_t>(bytes));
    return at;
  };
  const auto tensor = [&](DType dtype, std::initializer_list<int64_t> shape) {
    View view(nullptr, dtype, shape);
    view.data = take(bytes_for(dtype, view.size()));
    return view;
  };
  const DType h = p.quantised() ? DType::f32 : p.x;
  Buffers b;
  b.touched = reinterpret_cast<Touched*>(take(std::min(p.pairs(), p.local_experts) * int64_t{sizeof(Touched)}));
  b.local = reinterpret_cast<int32_t*>(take(p.experts * 4));
  b.next = reinterpret_cast<int32_t*>(take(p.local_experts * 4));
  b.pair_token = reinterpret_cast<int32_t*>(take(p.pairs() * 4));
  b.pair_weight = reinterpret_cast<float*>(take(p.pairs() * 4));
  b.h = tensor(h, {p.pairs(), p.inter});
  if (p.shared_inter > 0) b.shared_h = tensor(h, {p.tokens, p.shared_inter});
  const auto scales = [&](int64_t rows, int64_t cols) {
    const Quant quant = p.codes_quant();
    if (!is_block(quant)) return tensor(DType::f32, {rows});
    return tensor(block_scale_dtype(p.codes(), quant), {rows, blocks_of(cols, block_k(quant))});
  };
  if (p.quantised()) {
    if (p.quantises_x()) {
      b.x_codes = tensor(p.codes(), {p.tokens, p.hidden});
      b.x_scale = scales(p.tokens, p.hidden);
    }
    b.h_codes = tensor(p.codes(), {p.pairs(), p.inter});
    b.h_scale = scales(p.pairs(), p.inter);
    if (p.shared_inter > 0) {
      b.shared_h_codes = tensor(p.codes(), {p.tokens, p.shared_inter});
      b.shared_h_scale = scales(p.tokens, p.shared_inter);
    }
  }
  if (is_widened(p)) {
    b.x_wide = tensor(widest(p), {p.tokens, p.hidden});
    b.h_wide = tensor(widest(p), {p.pairs(), p.inter});
    if (p.shared_inter > 0) b.shared_h_wide = tensor(widest(p), {p.tokens, p.shared_inter});
  }
  b.scratch = base == nullptr ? nullptr : base + used;
  b.bytes = used;
  return b;
}

/// A thread's scratch: what the panel kernel wants, behind the block of out in the making.
size_t block_bytes(const Problem& p) { return align64(static_cast<size_t>(p.tokens * max_chunk_2(p.tokens) * kPanelColumns * 4)); }
/// Plain codes are packed task by task, behind that block.
int64_t packed_bytes(const Problem& p) {
  if (!p.decodes()) return 0;
  const PanelCodes codes = panel_codes(p.w, p.w_quant);
  const auto need = [&](int64_t k, WeightFormat format) {
    return format == WeightFormat::strided ? kMaxChunk1 * coded_panel_bytes(codes, k) : 0;
  };
  const int64_t routed = std::max(need(p.hidden, p.w1_format), need(p.inter, p.w2_format));
  return p.shared_inter == 0 ? routed : std::max({routed, need(p.hidden, p.shared_w1_format), need(p.shared_inter, p.shared_w2_format)});
}
/// What the kernels of a level multiply.
DType a_type(Target target, const Problem& p) { return multiplied_type(target, p.multiplied(), p.a_quant); }
size_t scratch_bytes(const Problem& p) {
  const int64_t width = bits(widest(p)) / 8;
  const auto need = [&](int64_t k, WeightFormat format) {
    return panel_scratch(p.pairs() + p.tokens, k, kMaxChunk1, width, format == WeightFormat::strided && !p.decodes());
  };
  int64_t most = std::max(need(p.hidden, p.w1_format), need(p.inter, p.w2_format));
  if (p.shared_inter > 0) most = std::max({most, need(p.hidden, p.shared_w1_format), need(p.shared_inter, p.shared_w2_format)});
  return block_bytes(p) + static_cast<size_t>(packed_bytes(p)) + align64(static_cast<size_t>(most));
}

/// Fills the pair lists; returns how many experts are touched.
int64_t list_pairs(const FusedMoeArgs& args, const Problem& p, int64_t tokens, const Buffers& b) {
  const auto* mask = static_cast<const int32_t*>(args.expert_mask.data);
  int32_t next_local = 0;
  for (int64_t e = 0; e < p.experts; ++e) b.local[e] = mask == nullptr || mask[e] != 0 ? next_local++ : -1;
  const auto local_of = [&](int32_t id) { return id < 0 || id >= p.experts ? -1 : b.local[id]; };
  std::fill_n(b.next, p.local_experts, 0);
  const auto* ids = static_cast<const int32_t*>(args.topk_ids.data);
  const auto* weights = static_cast<const float*>(args.topk_weights.data);
  const int64_t ids_stride = args.topk_ids.stride[0], weights_stride = args.topk_weights.stride[0];
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t s = 0; s < p.top_k; ++s)
      if (const int32_t e = local_of(ids[t * ids_stride + s]); e >= 0) ++b.next[e];
  int64_t touched = 0;
  int32_t first = 0;
  for (int64_t e = 0; e < p.local_experts; ++e) {
    const int32_t count = b.next[e];
    if (count > 0) b.touched[touched++] = {static_cast<int32_t>(e), first, count};
    b.next[e] = first;
    first += count;
  }
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t s = 0; s < p.top_k; ++s) {
      const int32_t e = local_of(ids[t * ids_stride + s]);
      if (e < 0) continue;
      const int32_t at = b.next[e]++;
      b.pair_token[at] = static_cast<int32_t>(t);
      b.pair_weight[at] = weights[t * weights_stride + s];
    }
  return touched;
}

/// Quantises the first rows of h. A power of two of rows, so that few distinct problems are routed; rows behind the
/// listed pairs hold old numbers, and nothing reads their codes.
void quantise_rows(View x, View q, View scale, Quant quant, int64_t used) {
  int64_t count = 1;
  while (count < used) count *= 2;
  x.shape[0] = q.shape[0] = scale.shape[0] = std::min(count, x.shape[0]);
  call<Quantize>({.x = x, .q = q, .scale = scale, .quant = quant, .sorted_ids = {}, .num_valid = {}, .tokens = 0});
}

/// Rows [0, tokens) and columns of out from the thread's f32 block.
void store_block(const View& out, const float* block, int64_t stride, int64_t begin, int64_t end) {
  for (int64_t t = 0; t < out.shape[0]; ++t) {
    const float* from = block + t * stride;
    auto* to = static_cast<std::byte*>(row(out, t)) + begin * (bits(out.dtype) / 8);
    const int64_t n = end - begin;
    if (out.dtype == DType::f32) {
      std::memcpy(to, from, static_cast<size_t>(n) * 4);
    } else {
      auto* codes = reinterpret_cast<uint16_t*>(to);
      if (out.dtype == DType::bf16)
        for (int64_t j = 0; j < n; ++j) codes[j] = encode_bf16(from[j]);
      else
        for (int64_t j = 0; j < n; ++j) codes[j] = encode_f16(from[j]);
    }
  }
}

/// One weight operand as tasks see it.
struct Operand {
  const View& weights;
  const View& scale;
  const View& global_scale;
  const View& bias;
  Quant quant = Quant::none;  // of codes
  bool packs_codes() const { return quant != Quant::none && weights.layout == Layout::strided; }

  void set(PanelTask& task, int64_t index) const {
    const View& w = weights;
    const bool stacked = w.rank == 3;
    if (w.layout == Layout::packed) {
      task.b = packed_matrix(w, stacked ? index : 0);
      task.b_row_stride = 0;
    } else if (quant == Quant::none) {
      task.b = static_cast<const std::byte*>(stacked ? row(w, index) : w.data);
      // A single plain row has no stride of its own, but 0 would mean packed.
      task.b_row_stride = w.shape[w.rank - 2] > 1 ? w.stride[w.rank - 2] * (bits(w.dtype) / 8) : kStepBytes;
    }
    if (quant != Quant::none) task.codes = panel_codes(w.dtype, quant);
    const auto vector = [&](const View& v) -> const float* {
      if (!v.given()) return nullptr;
      return static_cast<const float*>(v.rank == 2 ? row(v, index) : v.data);
    };
    task.sum_scale = global_scale.given() ? static_cast<const float*>(global_scale.data)[stacked ? index : 0] : 1.0f;
    task.b_scale = is_block(quant) ? nullptr : vector(scale);
    if (task.b_scale != nullptr && scale.shape[scale.rank - 1] == 1 && quant != Quant::none) {  // per_tensor
      task.sum_scale *= *task.b_scale;
      task.b_scale = nullptr;
    }
    task.bias = vector(bias);
  }
  /// Packs the panels of plain codes that the task reads to `to`, where it then finds them.
  void pack(PanelTask& task, int64_t index, std::byte* to) const {
    if (!packs_codes()) return;
    const CodedRows rows = coded_rows(weights, scale, quant, weights.rank == 3 ? index : 0);
    const int64_t bytes = coded_panel_bytes(task.codes, task.k);
    for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel)
      pack_coded_panel(rows, task.n, task.gate, panel, to + (panel - task.panel_begin) * bytes);
    // A panel is addressed by its place in the whole weight: step back to where panel 0 would be.
    task.b = reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(to) - static_cast<uintptr_t>(task.panel_begin * bytes));
  }
  void check_values(int64_t index) const {
    if (packs_codes()) check_scale_values(coded_rows(weights, scale, quant, weights.rank == 3 ? index : 0), FusedMoe::name);
  }
};

/// Where a task's weights begin; null where it packs them itself.
const std::byte* weights_of(const PanelTask& task) {
  if (task.b_row_stride != 0 || task.b == nullptr) return nullptr;
  const int64_t width = task.c_dtype == DType::f32 && task.a_scale != nullptr ? 1 : 2;  // i8 has scales, bf16 and f16 none
  return task.b + task.panel_begin * (task.codes.dtype != DType::none ? coded_panel_bytes(task.codes, task.k) : panel_bytes(task.k, width));
}
/// Asks for the first lines of a task's weights while another task runs: a kernel prefetches ahead of itself, but at its
/// start it waits for memory once or twice, which short streams would feel.
void fetch_ahead(const PanelTask& task) {
  const std::byte* const at = weights_of(task);
  if (at == nullptr) return;
  const int64_t ahead = task.codes.dtype != DType::none ? 8192 : 4096;  // not less than kernels fetch ahead
  for (int64_t i = 0; i < ahead; i += 64) __builtin_prefetch(at + i, 0, 2);
}

class Decode {
 public:
  Decode(const FusedMoeArgs& args, const Problem& p, PanelFn kernel, DType multiplied, bool kernel_fetches, Launch& launch)
      : args_(args),
        p_(p),
        kernel_(kernel),
        multiplied_(multiplied),
        launch_(launch),
        b_(carve(p, launch.workspace)),
        scratch_(scratch_bytes(p)),
        kernel_fetches_(kernel_fetches) {
    tokens_ = p.tokens;
    if (p.local_tokens) tokens_ = std::clamp<int64_t>(*static_cast<const int32_t*>(args.num_local_tokens.data), 0, p.tokens);
    touched_ = list_pairs(args, p, tokens_, b_);
    pairs_ = touched_ == 0 ? 0 : b_.touched[touched_ - 1].first + b_.touched[touched_ - 1].count;
    const double bytes = p.weight_bytes(static_cast<double>(touched_));
    const double us = bytes / std::max(launch.device.profile.read_bytes, 1e9) * 1e6 * std::max(1, launch.device.profile.threads);
    const auto fitting = static_cast<int>((launch.workspace_bytes - b_.bytes) / scratch_);
    threads_ = threads_for(us, std::min(launch.threads, fitting));
  }

  void run() {
    x_ = args_.x;
    x_scale_ = args_.x_scale;
    if (p_.quantises_x()) {
      quantise_rows(args_.x, b_.x_codes, b_.x_scale, p_.codes_quant(), p_.tokens);
      x_ = b_.x_codes;
      x_scale_ = b_.x_scale;
    }
    widen(x_, x_scale_, b_.x_wide, p_.tokens);
    for (int64_t i = 0; i < touched_; ++i) {
      w1_.check_values(b_.touched[i].expert);
      w2_.check_values(b_.touched[i].expert);
    }
    if (has_shared()) {
      shared_w1_.check_values(0);
      shared_w2_.check_values(0);
    }
    stage_1();
    if (p_.quantised()) {
      if (pairs_ > 0) quantise_rows(b_.h, b_.h_codes, b_.h_scale, p_.codes_quant(), pairs_);
      if (has_shared()) quantise_rows(b_.shared_h, b_.shared_h_codes, b_.shared_h_scale, p_.codes_quant(), p_.tokens);
      h_ = b_.h_codes, h_scale_ = b_.h_scale, shared_h_ = b_.shared_h_codes, shared_h_scale_ = b_.shared_h_scale;
      widen(h_, h_scale_, b_.h_wide, pairs_);
      if (has_shared()) widen(shared_h_, shared_h_scale_, b_.shared_h_wide, p_.tokens);
    } else {
      h_ = b_.h, shared_h_ = b_.shared_h;
    }
    stage_2();
  }

 private:
  /// Replaces the first `used` rows of f8e4m3 codes by what the kernel multiplies: block scales are then folded in.
  void widen(View& codes, View& scale, View wide, int64_t used) const {
    if (!is_widened(p_) || used == 0) return;
    wide.dtype = multiplied_;
    widen_rows(rows(codes, 0, used), scale, p_.a_quant, multiplied_, static_cast<std::byte*>(wide.data), launch_.threads);
    codes = wide;
    if (is_block(p_.a_quant)) scale = View();
  }
  bool has_shared() const { return p_.shared_inter > 0 && tokens_ > 0; }
  std::byte* scratch_of(int thread) const { return b_.scratch + scratch_ * static_cast<size_t>(thread); }
  std::byte* packed_of(int thread) const { return scratch_of(thread) + block_bytes(p_); }
  std::byte* kernel_scratch_of(int thread) const { return packed_of(thread) + packed_bytes(p_); }
  static int64_t stride_of(const View& v) { return v.stride[0] * (bits(v.dtype) / 8); }

  /// About `each` tasks a thread; one thread alone has nothing to balance.
  int64_t chunk_of(int64_t panels, int64_t each, int64_t most) const {
    return threads_ == 1 ? most : std::clamp<int64_t>(panels / (threads_ * each), 1, most);
  }

  /// h = act(x w1): chunks of panels, experts ascending, the shared expert last.
  void stage_1() {
    const int64_t panels = panel_count(p_.inter, p_.gate);
    const int64_t shared_panels = has_shared() ? panel_count(p_.shared_inter, p_.gate) : 0;
    const int64_t chunk = chunk_of(touched_ * panels + shared_panels, 16, kMaxChunk1);
    const int64_t chunks = (panels + chunk - 1) / chunk, routed = touched_ * chunks;
    const int64_t tasks = routed + (shared_panels + chunk - 1) / chunk;

    PanelTask common;
    common.a = static_cast<const std::byte*>(x_.data);
    common.a_stride = stride_of(x_);
    common.a_scale = static_cast<const float*>(x_scale_.data);
    common.k = p_.hidden;
    common.gate = args_.gate;
    common.activation = args_.activation;
    common.c_dtype = b_.h.dtype;
    const auto set_task = [&](PanelTask& task, int64_t i) {
      const bool is_shared = i >= routed;
      const View& h = is_shared ? b_.shared_h : b_.h;
      task.panel_begin = (is_shared ? i - routed : i % chunks) * chunk;
      task.panel_end = std::min(task.panel_begin + chunk, is_shared ? shared_panels : panels);
      task.n = h.shape[1];
      task.c_stride = stride_of(h);
      if (is_shared) {
        shared_w1_.set(task, 0);
        task.row_index = nullptr;
        task.row_weight = nullptr;
        task.m = tokens_;
        task.c = static_cast<std::byte*>(h.data);
      } else {
        const Touched& e = b_.touched[i / chunks];
        w1_.set(task, e.expert);
        task.row_index = b_.pair_token + e.first;
        task.row_weight = p_.weight_stage == WeightStage::first ? b_.pair_weight + e.first : nullptr;
        task.m = e.count;
        task.c = static_cast<std::byte*>(row(h, e.first));
      }
    };
    std::atomic<int64_t> next{0};
    parallel(threads_, [&](int thread, int) {
      PanelTask task = common, following = common;
      task.scratch = following.scratch = kernel_scratch_of(thread);
      const auto draw = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
      int64_t i = draw();
      if (i < tasks) set_task(task, i);
      while (i < tasks) {
        if (i >= routed) shared_w1_.pack(task, 0, packed_of(thread));
        else w1_.pack(task, b_.touched[i / chunks].expert, packed_of(thread));
        i = draw();
        if (i < tasks) {
          set_task(following, i);
          if (!kernel_fetches_) fetch_ahead(following);
        }
        task.next = i < tasks ? weights_of(following) : nullptr;
        kernel_(task);
        task = following;
      }
    });
  }

  /// out = sum over experts of weight * (h w2): chunks of output columns.
  void stage_2() {
    const int64_t panels = panel_count(p_.hidden, GateLayout::none);
    const int64_t chunk = chunk_of(panels, 4, max_chunk_2(p_.tokens));
    const int64_t tasks = (panels + chunk - 1) / chunk, stride = chunk * kPanelColumns;
    std::atomic<int64_t> next{0};
    parallel(threads_, [&](int thread, int) {
      auto* block = reinterpret_cast<float*>(scratch_of(thread));
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        PanelTask task;
        task.scratch = kernel_scratch_of(thread);
        task.n = p_.hidden;
        task.panel_begin = i * chunk;
        task.panel_end = std::min(panels, task.panel_begin + chunk);
        const int64_t begin = task.panel_begin * kPanelColumns, end = std::min(p_.hidden, task.panel_end * kPanelColumns);
        std::memset(block, 0, static_cast<size_t>(p_.tokens * stride) * 4);
        // A task addresses c by the column's place in the whole product: step back to where column 0 would be.
        task.c = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(block) - static_cast<uintptr_t>(begin) * 4);
        task.c_stride = stride * 4;
        task.c_dtype = DType::f32;
        task.accumulate = true;
        add_experts(task, packed_of(thread));
        store_block(args_.out, block, stride, begin, end);
      }
    });
  }

  void add_experts(PanelTask& task, std::byte* packed) const {
    const View &h = h_, &shared_h = shared_h_;
    const auto* scale = static_cast<const float*>(h_scale_.data);
    task.a_stride = stride_of(h);
    task.k = p_.inter;
    for (int64_t i = 0; i < touched_; ++i) {
      task.next = nullptr;
      if (i + 1 < touched_) {
        w2_.set(task, b_.touched[i + 1].expert);
        task.a_scale = scale;
        if (!kernel_fetches_) fetch_ahead(task);
        task.next = weights_of(task);
      }
      const Touched& e = b_.touched[i];
      w2_.set(task, e.expert);
      w2_.pack(task, e.expert, packed);
      task.a = static_cast<const std::byte*>(row(h, e.first));
      task.a_scale = scale == nullptr ? nullptr : scale + e.first;
      task.m = e.count;
      task.c_row_index = b_.pair_token + e.first;
      task.c_weight = p_.weight_stage == WeightStage::second ? b_.pair_weight + e.first : nullptr;
      kernel_(task);
    }
    if (!has_shared()) return;
    task.next = nullptr;
    shared_w2_.set(task, 0);
    task.a = static_cast<const std::byte*>(shared_h.data);
    task.a_stride = stride_of(shared_h);
    task.a_scale = static_cast<const float*>(shared_h_scale_.data);
    task.k = p_.shared_inter;
    task.m = tokens_;
    task.c_row_index = nullptr;
    task.c_weight = nullptr;
    shared_w2_.pack(task, 0, packed);
    kernel_(task);
  }

  const FusedMoeArgs& args_;
  const Problem& p_;
  const PanelFn kernel_;
  const DType multiplied_;  // by the kernel
  Launch& launch_;
  const Buffers b_;
  const size_t scratch_;
  const bool kernel_fetches_;  // the kernel itself fetches the first of the next task's weights
  const View none_;
  const Quant quant_ = p_.decodes() ? p_.w_quant : Quant::none;
  const Operand w1_{args_.w1, args_.w1_scale, args_.w1_global_scale, args_.bias1, quant_};
  const Operand w2_{args_.w2, args_.w2_scale, args_.w2_global_scale, args_.bias2, quant_};
  const Operand shared_w1_{args_.shared_w1, args_.shared_w1_scale, args_.shared_w1_global_scale, none_, quant_};
  const Operand shared_w2_{args_.shared_w2, args_.shared_w2_scale, args_.shared_w2_global_scale, none_, quant_};
  View x_, x_scale_, h_, h_scale_, shared_h_, shared_h_scale_;  // as the kernel gets them
  int64_t tokens_ = 0, touched_ = 0, pairs_ = 0;
  int threads_ = 1;
};

PanelFn kernel_of(Target target, const Problem& p, const Device& device) {
  return p.decodes() ? coded_kernel(target, a_type(target, p), device) : panel_kernel(target, p.w, device);
}

}  // namespace

template <Target kTarget> Support decode_supports(const Problem& p, const Device& device) {
  if (p.tokens > kMaxDecodeTokens) return Support::no("tokens is ", p.tokens, "; this row is for at most ", kMaxDecodeTokens);
  for (const WeightFormat format : {p.w1_format, p.w2_format, p.shared_w1_format, p.shared_w2_format})
    if (format == WeightFormat::onednn) return Support::no("weights are in a layout of oneDNN; this row reads panel32 or plain rows");
  if (kernel_of(kTarget, p, device) == nullptr) return Support::no("no ", kTarget, " matrix kernel for ", p.multiplied(), " times ", p.w);
  return Support::yes();
}

template <Target kTarget> Guess decode_guess(const Problem& p, const Device& device) {
  constexpr double kTeamUs = 2, kPackBytesPerUs = 25e3;
  // A call of the kernel starts a stream of weights, on AMX also tiles: 1 to 3 us there between short and long streams (2026-11-30).
  constexpr double kTaskUs = kTarget == Target::x86_amx ? 0.5 : 0.1;
  const double threads = workspace_threads(device), element = bits(a_type(kTarget, p)) / 8.0, pairs = local_pairs(p);
  // Every chunk packs its rows again; every expert's share of out is added in f32.
  const double experts = std::max(1.0, p.expected_experts());
  const auto w1_panels = static_cast<double>(panel_count(p.inter, p.gate)),
             w2_panels = static_cast<double>(panel_count(p.hidden, GateLayout::none));
  const double w1_chunks = std::clamp(threads * 16 / experts, w1_panels / static_cast<double>(kMaxChunk1), w1_panels);
  const double w2_chunks = std::clamp(threads * 4, w2_panels / static_cast<double>(max_chunk_2(p.tokens)), w2_panels);
  const double packed = pairs * element * (w1_chunks * static_cast<double>(p.hidden) + w2_chunks * static_cast<double>(p.inter));
  const double added = pairs * static_cast<double>(p.hidden) * 4;
  const double tasks = experts * (w1_chunks + w2_chunks);
  const double us = kTeamUs * (p.quantised() ? 2.5 : 1) + (tasks * kTaskUs + (packed + added) / kPackBytesPerUs) / threads +
                    moe_products_us(kTarget, p, device);
  return {.config = {}, .us = us};
}

size_t decode_workspace(const Problem& p, const Config&, const Device& device) {
  return carve(p, nullptr).bytes + scratch_bytes(p) * static_cast<size_t>(workspace_threads(device));
}

template <Target kTarget> void decode_launch(const FusedMoeArgs& args, const Problem& p, const Config&, Launch& launch) {
  const bool fetches = kTarget == Target::x86_amx && p.decodes() && a_type(kTarget, p) == DType::bf16;
  Decode(args, p, kernel_of(kTarget, p, launch.device), a_type(kTarget, p), fetches, launch).run();
}

void decode_children(const Problem& p, const Config&, ChildSink& sink) {
  if (!p.quantised()) return;
  const auto add = [&](int64_t rows, int64_t cols, DType x) {
    sink.add<Quantize>({.rows = rows, .cols = cols, .x = x, .q = p.codes(), .quant = p.codes_quant(), .sorted = false});
  };
  if (p.quantises_x()) add(p.tokens, p.hidden, p.x);
  add(p.pairs(), p.inter, DType::f32);
  if (p.shared_inter > 0) add(p.tokens, p.shared_inter, DType::f32);
}

#define EITRI_DECODE_ROW(target)                                                     \
  template Support decode_supports<target>(const FusedMoe::Problem&, const Device&); \
  template Guess decode_guess<target>(const FusedMoe::Problem&, const Device&);      \
  template void decode_launch<target>(const FusedMoeArgs&, const FusedMoe::Problem&, const Config&, Launch&);
#if EITRI_X86
EITRI_DECODE_ROW(Target::x86_amx)
EITRI_DECODE_ROW(Target::x86_avx512)
EITRI_DECODE_ROW(Target::x86_avx2)
#endif
EITRI_DECODE_ROW(Target::any_cpu)
#undef EITRI_DECODE_ROW

}  // namespace eitri
