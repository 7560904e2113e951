// grouped_gemm by the panel kernels: one list of (expert, panel range) tasks over the whole team.
//
// Algorithm: moe_sort's lists become runs (one an expert); a run's panels are cut into tasks of about equal cost, and an
// atomic counter deals the tasks in list order. So every expert's weights are read once, in memory order, and a skewed
// load balances: a big expert is many tasks, a small one is one. A task packs its rows of A itself (by the kernel), which
// is why tasks are not cut finer than the balance needs.
// Bound by: weight bandwidth below `ridge` rows an expert, the matrix unit above.
// Rows of c at padding are never written: a run holds valid positions only.
#include <algorithm>
#include <array>
#include <atomic>

#include "base/view.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/panel_rows.h"
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

size_t scratch_bytes(const GroupedGemm::Problem& p) {
  const int64_t panels = std::min(panel_count(p.n_out(), p.gate), kMaxTaskPanels);
  return align64(static_cast<size_t>(panel_scratch(p.capacity, p.k, panels, bits(p.a) / 8, p.b_format == WeightFormat::strided)));
}

/// Rows at which computing a panel takes as long as reading it.
double ridge_rows(double flops_rate, const GroupedGemm::Problem& p, const Device& device) {
  return flops_rate * bits(p.a) / 8 / (2 * std::max(device.profile.read_bytes, 1e9));
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
PanelTask task_of_call(const GroupedGemmArgs& args, const GroupedGemm::Problem& p) {
  const int64_t c_bytes = bits(args.c.dtype) / 8;
  PanelTask task;
  task.a = static_cast<const std::byte*>(args.a.data);
  task.a_stride = args.a.stride[0] * (bits(args.a.dtype) / 8);
  task.row_mask = kTokenMask;
  task.n = p.n_out();
  task.k = p.k;
  task.gate = args.gate;
  // A single plain row has no stride of its own, but 0 would mean packed.
  if (p.b_format == WeightFormat::strided) task.b_row_stride = p.n > 1 ? args.b.stride[1] * (bits(args.b.dtype) / 8) : kStepBytes;
  task.activation = args.activation;
  task.c_stride = args.c.stride[0] * c_bytes;
  task.c_dtype = args.c.dtype;
  return task;
}

const float* vector_row(const View& view, int64_t index) { return view.given() ? static_cast<const float*>(row(view, index)) : nullptr; }

void set_run(PanelTask& task, const GroupedGemmArgs& args, const ExpertRun& run) {
  const int64_t begin = run.begin;
  const auto* a_scale = static_cast<const float*>(args.a_scale.data);
  if (args.gather == Gather::token) {
    task.row_index = static_cast<const int32_t*>(args.sorted_ids.data) + begin;
    task.a_scale = a_scale;
  } else {
    task.a = static_cast<const std::byte*>(row(args.a, begin));
    task.a_scale = a_scale == nullptr ? nullptr : a_scale + begin;
  }
  task.m = run.rows;
  task.b = args.b.layout == Layout::strided ? static_cast<const std::byte*>(row(args.b, run.expert)) : packed_matrix(args.b, run.expert);
  task.b_scale = vector_row(args.b_scale, run.expert);
  task.bias = vector_row(args.bias, run.expert);
  task.row_weight = args.row_weight.given() ? static_cast<const float*>(args.row_weight.data) + begin : nullptr;
  task.c = static_cast<std::byte*>(row(args.c, begin));
}

}  // namespace

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

double panel_rate(Target target, DType math, const Device& device) {
  if (target == Target::x86_amx && !device.amx) return 1e9;  // tiles in software
  // Of the register-resident peak; the gemm folder has the measurements.
  const double of_peak = target == Target::x86_amx ? 0.4 : target == Target::any_cpu ? 0.3 : 0.6;
  return std::max(of_peak * panel_rows::rate_of_one(target, math, device) * std::max(1, device.profile.threads), 1e6);
}

double overlapped_us(double flops, double rate, double bytes, const Device& device) {
  constexpr double kNotOverlapped = 0.3;
  const double compute = flops / rate, read = bytes / std::max(device.profile.read_bytes, 1e9);
  return 1e6 * (std::max(compute, read) + kNotOverlapped * std::min(compute, read));
}

template <Target kTarget> Support panel_supports(const GroupedGemm::Problem& p, const Device& device) {
  if (p.b_format == WeightFormat::onednn) return Support::no("weights are in a layout of oneDNN; this row reads panel32 or plain rows");
  if (panel_kernel(kTarget, p.a, device) == nullptr) return Support::no("no ", kTarget, " matrix kernel for ", p.a);
  return Support::yes();
}

template <Target kTarget> Guess panel_guess(const GroupedGemm::Problem& p, const Device& device) {
  constexpr double kStartUs = 2, kRunUs = 0.5;  // team and lists; a task's set-up and packing
  const Cost cost = GroupedGemm::cost(p);
  const double rate = panel_rate(kTarget, p.a, device);
  // Plain weights are packed on the way: about one more pass over them in cache.
  const double packing = p.b_format == WeightFormat::strided ? 0.5 * cost.bytes : 0;
  return {.config = {},
          .us = kStartUs + kRunUs * p.expected_experts() / workspace_threads(device) +
                overlapped_us(cost.flops, rate, cost.bytes + packing, device)};
}

size_t panel_workspace(const GroupedGemm::Problem& p, const Config&, const Device& device) {
  return lists_bytes(p) + scratch_bytes(p) * static_cast<size_t>(workspace_threads(device));
}

template <Target kTarget> void panel_launch(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, const Config&, Launch& launch) {
  auto* runs = reinterpret_cast<ExpertRun*>(launch.workspace);
  const auto capacity = static_cast<size_t>(p.capacity);
  auto* cuts = reinterpret_cast<Cut*>(launch.workspace + align64(capacity * sizeof(ExpertRun)));
  const int64_t count = find_runs(args, runs);
  if (count == 0) return;

  const PanelFn kernel = panel_kernel(kTarget, p.a, launch.device);
  const int64_t panels = panel_count(p.n_out(), p.gate);
  const double rate = panel_rate(kTarget, p.a, launch.device), ridge = ridge_rows(rate, p, launch.device);
  const size_t scratch = scratch_bytes(p);
  const auto fitting = static_cast<int>((launch.workspace_bytes - lists_bytes(p)) / scratch);
  double rows = 0;
  for (int64_t i = 0; i < count; ++i) rows += ridge + runs[i].rows;
  const double us = 2e6 * rows * static_cast<double>(p.n * p.k) / (rate / std::max(1, launch.device.profile.threads));
  const int threads = threads_for(us, std::min(launch.threads, fitting));
  const int64_t tasks = cut_runs(runs, count, panels, threads, ridge, cuts);

  const PanelTask common = task_of_call(args, p);
  std::atomic<int64_t> next{0};
  parallel(threads, [&](int thread, int) {
    PanelTask task = common;
    task.scratch = launch.workspace + lists_bytes(p) + scratch * static_cast<size_t>(thread);
    int64_t run = 0;
    for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      while (cuts[run + 1].first_task <= t) ++run;  // tasks come in ascending order
      set_run(task, args, runs[run]);
      task.panel_begin = (t - cuts[run].first_task) * cuts[run].step;
      task.panel_end = std::min<int64_t>(panels, task.panel_begin + cuts[run].step);
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
