// grouped_gemm by the panel kernels: one list of (expert, panel range) tasks over the whole team.
//
// Algorithm: moe_sort's lists become runs (one an expert); a run's panels are cut into tasks of about equal cost, and an
// atomic counter deals the tasks in list order. So every expert's weights are read once, in memory order, and a skewed
// load balances: a big expert is many tasks, a small one is one. A task packs its rows of A itself (by the kernel), which
// is why tasks are not cut finer than the balance needs.
// Bound by: weight bandwidth below `ridge` rows an expert, the matrix unit above.
// Rows of c at padding are never written: a run holds valid positions only.
#include <algorithm>
#include <atomic>

#include "base/view.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/panel_rows.h"
#include "ops/gemm/widen_rows.h"
#include "ops/grouped_gemm/panel_rows.h"

namespace eitri {

namespace {

/// How a run is cut: its tasks are first_task, first_task + 1, ... of `step` panels each.
struct Cut {
  int64_t first_task;
  int32_t step;
};

constexpr size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t lists_bytes(const GroupedGemm::Problem& p) {
  const auto capacity = static_cast<size_t>(p.capacity);
  return align64(capacity * sizeof(ExpertRun)) + align64((capacity + 1) * sizeof(Cut));
}

/// Bytes of an element of a as kernels get it, at most.
int64_t width_of(const GroupedGemm::Problem& p) { return bits(multiplied_type(Target::any_cpu, p.a, p.a_quant)) / 8; }
/// a as kernels multiply it, when it is f8e4m3.
int64_t a_rows(const GroupedGemm::Problem& p) { return p.gather == Gather::token ? p.tokens : p.capacity; }
size_t wide_a_bytes(const GroupedGemm::Problem& p) {
  return p.a == DType::f8e4m3 ? align64(static_cast<size_t>(a_rows(p) * p.k * width_of(p))) : 0;
}
/// Plain codes are packed task by task; other plain rows are packed by the kernels.
bool packs_codes(const GroupedGemm::Problem& p) { return p.coded() && p.b_format == WeightFormat::strided; }
size_t packed_bytes(const GroupedGemm::Problem& p, int64_t panels) {
  return packs_codes(p) ? static_cast<size_t>(panels * coded_panel_bytes(panel_codes(p.weight(), p.b_quant), p.k)) : 0;
}
size_t scratch_bytes(const GroupedGemm::Problem& p) {
  const int64_t panels = std::min(panel_count(p.n_out(), p.gate), kMaxTaskPanels);
  const bool plain = p.b_format == WeightFormat::strided && !p.coded();
  return align64(static_cast<size_t>(panel_scratch(p.capacity, p.k, panels, width_of(p), plain))) + packed_bytes(p, panels);
}

constexpr double kRidgeRows = 64;  // about, for the rate there
/// Rows at which computing a panel takes as long as reading it.
double ridge_rows(double flops_rate, const GroupedGemm::Problem& p, const Device& device) {
  return flops_rate * bits(p.weight()) / 8 / (2 * std::max(device.profile.read_bytes, 1e9));
}

/// Cuts the runs for `threads` threads; returns the number of tasks. A task is about 1/16 of a thread's share, never
/// under kLeastPanels (the rows of A are packed once a task) unless that would leave threads idle.
int64_t cut_runs(const ExpertRun* runs, int64_t count, int64_t panels, int threads, double ridge, Cut* cuts) {
  constexpr double kTasksPerThread = 16;
  constexpr int64_t kLeastPanels = 16, kFewTasks = 4;
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += (ridge + runs[i].rows) * static_cast<double>(panels);
  const double target = total / (threads * kTasksPerThread);
  const int64_t least = std::clamp<int64_t>(count * panels / (kFewTasks * threads), 1, kLeastPanels);
  int64_t task = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto fair = static_cast<int64_t>(target / (ridge + runs[i].rows));
    int64_t step = std::min(std::clamp(threads == 1 ? panels : fair, least, kMaxTaskPanels), panels);
    const int64_t tasks = (panels + step - 1) / step;
    step = (panels + tasks - 1) / tasks;  // equal tasks, no short last one
    cuts[i] = {task, static_cast<int32_t>(step)};
    task += (panels + step - 1) / step;
  }
  cuts[count] = {task, 1};
  return task;
}

/// What all tasks of a call have in common.
PanelTask task_of_call(const GroupedGemmArgs& args, const View& a, const GroupedGemm::Problem& p) {
  const int64_t c_bytes = bits(args.c.dtype) / 8;
  PanelTask task;
  task.a = static_cast<const std::byte*>(a.data);
  task.a_stride = a.stride[0] * (bits(a.dtype) / 8);
  if (p.coded()) task.codes = panel_codes(p.weight(), p.b_quant);
  task.row_mask = kTokenMask;
  task.n = p.n_out();
  task.k = p.k;
  task.gate = args.gate;
  // A single plain row has no stride of its own, but 0 would mean packed.
  if (p.b_format == WeightFormat::strided && !p.coded())
    task.b_row_stride = p.n > 1 ? args.b.stride[1] * (bits(args.b.dtype) / 8) : kStepBytes;
  task.activation = args.activation;
  task.c_stride = args.c.stride[0] * c_bytes;
  task.c_dtype = args.c.dtype;
  return task;
}

const float* vector_row(const View& view, int64_t index) { return view.given() ? static_cast<const float*>(row(view, index)) : nullptr; }

void set_run(PanelTask& task, const GroupedGemmArgs& args, const View& a, const GroupedGemm::Problem& p, const ExpertRun& run) {
  const int64_t begin = run.begin;
  const bool by_row = args.a_scale.given() && !is_block(p.a_quant) && p.a_quant != Quant::per_tensor;
  const auto* a_scale = by_row ? static_cast<const float*>(args.a_scale.data) : nullptr;
  if (args.gather == Gather::token) {
    task.row_index = static_cast<const int32_t*>(args.sorted_ids.data) + begin;
    task.a_scale = a_scale;
  } else {
    task.a = static_cast<const std::byte*>(row(a, begin));
    task.a_scale = a_scale == nullptr ? nullptr : a_scale + begin;
  }
  task.m = run.rows;
  if (args.b.layout == Layout::packed) task.b = packed_matrix(args.b, run.expert);
  else if (!p.coded()) task.b = static_cast<const std::byte*>(row(args.b, run.expert));
  task.sum_scale = p.a_quant == Quant::per_tensor ? *static_cast<const float*>(args.a_scale.data) : 1.0f;
  task.b_scale = nullptr;
  if (p.b_quant == Quant::per_tensor) task.sum_scale *= *vector_row(args.b_scale, run.expert);
  else if (!is_block(p.b_quant)) task.b_scale = vector_row(args.b_scale, run.expert);
  if (args.b_global_scale.given()) task.sum_scale *= static_cast<const float*>(args.b_global_scale.data)[run.expert];
  task.bias = vector_row(args.bias, run.expert);
  task.row_weight = args.row_weight.given() ? static_cast<const float*>(args.row_weight.data) + begin : nullptr;
  task.c = static_cast<std::byte*>(row(args.c, begin));
}

/// Packs the task's panels of plain codes to `to`, where the task then finds them.
void pack_task(PanelTask& task, const GroupedGemmArgs& args, const GroupedGemm::Problem& p, int64_t expert, std::byte* to) {
  const CodedRows rows = coded_rows(args.b, args.b_scale, p.b_quant, expert);
  const int64_t bytes = coded_panel_bytes(task.codes, p.k);
  for (int64_t panel = task.panel_begin; panel < task.panel_end; ++panel)
    pack_coded_panel(rows, p.n_out(), p.gate, panel, to + (panel - task.panel_begin) * bytes);
  // A panel is addressed by its place in the whole weight: step back to where panel 0 would be.
  task.b = reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(to) - static_cast<uintptr_t>(task.panel_begin * bytes));
}

}  // namespace

double grouped_operand_error(const GroupedGemm::Problem& p) { return bf16_operand_error(p.a, p.a_quant, p.weight(), p.b_quant); }

int workspace_threads(const Device& device) { return std::max(device.units, max_threads()); }

int64_t find_runs(const GroupedGemmArgs& args, ExpertRun* runs) {
  const int64_t capacity = args.sorted_ids.shape[0], experts = args.b.shape[0], block = args.block;
  const auto* ids = static_cast<const int32_t*>(args.sorted_ids.data);
  const auto* expert_of = static_cast<const int32_t*>(args.sorted_expert_ids.data);
  const int64_t used = std::min<int64_t>(capacity, static_cast<const int32_t*>(args.num_valid.data)[0]);
  int64_t count = 0;
  for (int64_t begin = 0; begin < used; begin += block) {
    const int32_t expert = expert_of[begin / block];
    if (expert < 0 || expert >= experts) continue;
    const int64_t end = std::min(begin + block, used);
    for (int64_t p = begin; p < end;) {
      const auto is_valid = [&](int64_t at) { return (ids[at] & kTokenMask) < args.tokens; };
      if (!is_valid(p)) {
        ++p;
        continue;
      }
      int64_t stop = p + 1;
      while (stop < end && is_valid(stop)) ++stop;
      const bool continues = count > 0 && runs[count - 1].expert == expert && runs[count - 1].begin + runs[count - 1].rows == p;
      if (continues) runs[count - 1].rows += static_cast<int32_t>(stop - p);
      else runs[count++] = {expert, static_cast<int32_t>(p), static_cast<int32_t>(stop - p)};
      p = stop;
    }
  }
  return count;
}

double panel_rate(Target target, DType math, double rows, const Device& device) {
  if (target == Target::x86_amx && !device.amx) return 1e9;  // tiles in software
  return panel_rows::reached_rate(target, math, rows, device) * std::max(1, device.profile.threads);
}

double overlapped_us(double flops, double rate, double bytes, const Device& device) {
  constexpr double kNotOverlapped = 0.3;
  const double compute = flops / rate, read = bytes / std::max(device.profile.read_bytes, 1e9);
  return 1e6 * (std::max(compute, read) + kNotOverlapped * std::min(compute, read));
}

template <Target kTarget> Support panel_supports(const GroupedGemm::Problem& p, const Device& device) {
  if (p.b_format == WeightFormat::onednn) return Support::no("weights are in a layout of oneDNN; this row reads panel32 or plain rows");
  if (p.coded() ? coded_kernel(kTarget, multiplied_type(kTarget, p.a, p.a_quant), device) == nullptr
                : panel_kernel(kTarget, p.a, device) == nullptr)
    return Support::no("no ", kTarget, " matrix kernel for ", p.a, " times ", p.weight());
  return Support::yes();
}

template <Target kTarget> Guess panel_guess(const GroupedGemm::Problem& p, const Device& device) {
  constexpr double kStartUs = 2, kRunUs = 0.5;  // team and lists; a task's set-up and packing
  const Cost cost = GroupedGemm::cost(p);
  const DType math = multiplied_type(kTarget, p.a, p.a_quant);
  // Plain weights are packed on the way: about one more pass over them in cache; of codes a slow one.
  const double packing = p.b_format == WeightFormat::strided ? (p.coded() ? 8 : 0.5) * cost.bytes : 0;
  const double experts = p.expected_experts(), rows = static_cast<double>(p.expected_rows()) / std::max(1.0, experts);
  const double weights = experts * static_cast<double>(p.n) * static_cast<double>(p.k);
  const double flops = p.coded() ? cost.flops + panel_rows::decoding_flops(kTarget, p.weight(), p.b_quant, rows, weights, device)
                                 : panel_rows::plain_flops(kTarget, math, rows, weights);
  return {.config = {},
          .us = kStartUs + kRunUs * experts / workspace_threads(device) +
                overlapped_us(flops, panel_rate(kTarget, math, rows, device), cost.bytes + packing, device)};
}

size_t panel_workspace(const GroupedGemm::Problem& p, const Config&, const Device& device) {
  return lists_bytes(p) + wide_a_bytes(p) + scratch_bytes(p) * static_cast<size_t>(workspace_threads(device));
}

template <Target kTarget> void panel_launch(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, const Config&, Launch& launch) {
  auto* runs = reinterpret_cast<ExpertRun*>(launch.workspace);
  const auto capacity = static_cast<size_t>(p.capacity);
  auto* cuts = reinterpret_cast<Cut*>(launch.workspace + align64(capacity * sizeof(ExpertRun)));
  const int64_t count = find_runs(args, runs);
  if (count == 0) return;

  const DType a_type = multiplied_type(kTarget, p.a, p.a_quant);
  View a = args.a;
  const size_t before = lists_bytes(p) + wide_a_bytes(p);
  if (a_type != p.a) {
    a = View(launch.workspace + lists_bytes(p), a_type, {a_rows(p), p.k});
    widen_rows(rows(args.a, 0, a_rows(p)), args.a_scale, p.a_quant, a_type, launch.workspace + lists_bytes(p), launch.threads);
  }
  if (packs_codes(p))
    for (int64_t i = 0; i < count; ++i) check_scale_values(coded_rows(args.b, args.b_scale, p.b_quant, runs[i].expert), GroupedGemm::name);
  const View used = rows(args.c, runs[0].begin, runs[count - 1].begin + runs[count - 1].rows);
  const PanelFn kernel = p.coded() ? coded_kernel(kTarget, a_type, launch.device) : panel_kernel(kTarget, p.a, launch.device);
  const int64_t panels = panel_count(p.n_out(), p.gate);
  const double rate = panel_rate(kTarget, a_type, kRidgeRows, launch.device), ridge = ridge_rows(rate, p, launch.device);
  const size_t scratch = scratch_bytes(p);
  const auto fitting = static_cast<int>((launch.workspace_bytes - before) / scratch);
  double work = 0;
  for (int64_t i = 0; i < count; ++i) work += ridge + runs[i].rows;
  const double us = 2e6 * work * static_cast<double>(p.n * p.k) / (rate / std::max(1, launch.device.profile.threads));
  const int threads = threads_for(us, std::min(launch.threads, fitting));
  const int64_t tasks = cut_runs(runs, count, panels, threads, ridge, cuts);

  PanelTask common = task_of_call(args, a, p);
  common.c_bytes = bytes_for(used.dtype, used.size());
  const int64_t most_panels = std::min(panels, kMaxTaskPanels);
  std::atomic<int64_t> next{0};
  parallel(threads, [&](int thread, int) {
    PanelTask task = common;
    std::byte* const own = launch.workspace + before + scratch * static_cast<size_t>(thread);
    task.scratch = own + packed_bytes(p, most_panels);
    int64_t run = 0;
    for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      while (cuts[run + 1].first_task <= t) ++run;  // tasks come in ascending order
      set_run(task, args, a, p, runs[run]);
      task.panel_begin = (t - cuts[run].first_task) * cuts[run].step;
      task.panel_end = std::min<int64_t>(panels, task.panel_begin + cuts[run].step);
      if (packs_codes(p)) pack_task(task, args, p, runs[run].expert, own);
      kernel(task);
    }
  });
}

#define EITRI_PANEL_ROW(target)                                                        \
  template Support panel_supports<target>(const GroupedGemm::Problem&, const Device&); \
  template Guess panel_guess<target>(const GroupedGemm::Problem&, const Device&);      \
  template void panel_launch<target>(const GroupedGemmArgs&, const GroupedGemm::Problem&, const Config&, Launch&);
#if EITRI_X86
EITRI_PANEL_ROW(Target::x86_amx)
EITRI_PANEL_ROW(Target::x86_avx512)
EITRI_PANEL_ROW(Target::x86_avx2)
#endif
EITRI_PANEL_ROW(Target::any_cpu)
#undef EITRI_PANEL_ROW

}  // namespace eitri
