// One problem on one device inside a worker process: checks candidates against the reference, and times them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/available_memory.h"
#include "backend/gpu.h"
#include "tune/bench_call.h"
#include "tune/tuned_op.h"

namespace eitri::tune {

template <Operator Op> class Bench {
 public:
  using Problem = typename Op::Problem;
  using Args = typename Op::Args;

  Bench(std::string_view text, const Device& device, const CheckOptions& options)
      : device_(device),
        options_(options),
        problem_(parse_problem<Problem>(Op::name, text)),
        judged_(with_fewer_rows<Op>(problem_, options.most_flops)) {
    if (device.is_gpu()) {
      context_.emplace(device);
      stream_.emplace(device);
    }
  }

  void prepare() {
    for (size_t i = 0; i < 2; ++i) variant(i);
  }

  Checked check(const std::string& kernel, const std::string& config, int repeats) {
    Checked out;
    poison_workspace(true);
    try {
      out = checked(kernel, config, repeats);
    } catch (const Error& error) {
      out.wrong = error.what();
      out.here_only = error.code() == Code::out_of_memory || error.code() == Code::unsupported;
    } catch (const std::bad_alloc&) {
      out.wrong = "it asks for more memory than there is";
      out.here_only = true;
    } catch (const std::exception& error) {
      out.wrong = error.what();
    }
    poison_workspace(false);
    return out;
  }

  /// Sets of tensors that calls take in turn, so that no cache holds them: by what a call reads, within what memory and patience allow.
  /// A call that reads little of its tensors (a few of many experts) may find some of it in a large cache.
  void make_ring() {
    if (!ring_.empty()) return;
    const double bytes = std::max(1.0, Op::cost(problem_).bytes);
    const double wanted = device_.is_gpu() ? 256e6 : std::max(64e6, 3.0 * static_cast<double>(device_.l3_bytes));
    const double room = static_cast<double>(available_memory()) / 2;
    const auto sets = static_cast<size_t>(std::clamp(std::min(std::ceil(wanted / bytes), room / (3 * bytes)), 1.0, 48.0));
    double made = 0;
    for (size_t i = 0; i < sets && (i == 0 || made * (1 + 1.0 / static_cast<double>(i)) <= std::max(wanted, kRingBytes)); ++i) {
      ring_.push_back(
          std::make_unique<Call<Op>>(problem_, device_, MakerOptions{.seed = i + 1, .poison = false, .skew = i % 2 == 0 ? kSkew : 0}));
      ring_.back()->upload(stream());
      for (const auto& range : ring_.back()->maker().ranges()) made += static_cast<double>(range.bytes);
    }
  }

  double time(const std::string& kernel, const std::string& config, double sample_us) {
    const Route<Op> route = route_of(kernel, config, problem_);
    make_ring();
    return device_.is_gpu() ? time_on_gpu(route, kernel + " " + config, sample_us) : time_on_cpu(route, kernel + " " + config, sample_us);
  }

 private:
  Stream stream() const { return stream_ ? static_cast<Stream>(*stream_) : nullptr; }

  Route<Op> route_of(const std::string& name, const std::string& config, const Problem& problem) const {
    for (const Kernel<Op>& kernel : Op::kernels()) {
      if (name != kernel.name) continue;
      if (const Support s = target_runs_on(kernel.target, device_); !s) fail(Code::unsupported, s.reason);
      if (const Support s = kernel.supports(problem, device_); !s) fail(Code::unsupported, s.reason);
      Route<Op> route{.kernel = &kernel, .device = &device_};
      std::string why;
      // A guess that the knobs do not list is what calls run, so it is let through.
      if (!parse_config(config, kernel.knobs, route.config, why) &&
          config != to_string(kernel.guess(problem, device_).config, kernel.knobs))
        fail(Code::invalid_argument, why);
      if (kernel.workspace != nullptr) route.workspace = kernel.workspace(problem, route.config, device_);
      if (!device_.is_gpu() && route.workspace > available_memory())
        fail(Code::out_of_memory,
             str("its workspace has ", route.workspace >> 20, " MiB; ", available_memory() >> 20, " MiB are available"));
      if (kernel.sources != nullptr)
        route.functions = load_sources(kernel.sources(problem, route.config, device_), kernel.name, device_, stream());
      route.launches = &counter(kernel.name);
      return route;
    }
    fail(Code::invalid_argument, str("kernel is ", name, "; expected one of ", Op::name));
  }

  void launch(const Route<Op>& route, const Args& args, const Problem& problem) const {
    eitri::detail::launch_unchecked<Op>(route, args, problem, stream());
  }
  /// One call on tensors that were made on the host and are there again afterwards.
  void run(const Route<Op>& route, Call<Op>& call, const Problem& problem) const {
    call.upload(stream());
    launch(route, call.args(), problem);
    call.download(stream());
  }

  /// Tensors and oracle of one of the two variants, shared by all candidates.
  struct Variant {
    std::unique_ptr<Call<Op>> call;
    Oracle oracle;
  };
  Variant& variant(size_t i) {
    Variant& v = variants_[i];
    if (v.call != nullptr) return v;
    v.call = std::make_unique<Call<Op>>(
        judged_, device_, MakerOptions{.seed = i + 1, .guards = true, .strided = i == 1, .poison = true, .skew = i == 1 ? kSkew : 0});
    v.call->maker().seal();
    Op::reference(v.call->host(), &v.oracle);
    return v;
  }

  /// "" or what is wrong with the outputs of the variant's call, and with the memory around them.
  std::string judge_all(const Kernel<Op>& kernel, const Variant& v, Checked& out) const {
    const auto outputs = Op::outputs(v.call->host());
    const auto tolerance = tolerance_of(kernel, judged_);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (std::string wrong = judged(outputs[i], v.oracle[i], tolerance[i], out); !wrong.empty()) return wrong;
    return v.call->maker().damage();
  }
  static std::string judged(const Output& output, const Expected& expected, const Tolerance& tolerance, Checked& out) {
    const Verdict verdict = judge(output.view, expected, tolerance, output.name);
    out.error = std::max(out.error, verdict.max_error_ratio);
    return verdict.ok ? std::string() : str(verdict.first, " (", verdict.wrong, " wrong elements)");
  }

  static std::vector<std::vector<std::byte>> bits(const Args& args) {
    std::vector<std::vector<std::byte>> out;
    for (const Output& o : Op::outputs(args)) {
      const auto* first = static_cast<const std::byte*>(o.view.data);
      out.emplace_back(first, first + span_bytes(o.view));
    }
    return out;
  }
  static bool has_open(const Expected& expected) { return std::find(expected.any.begin(), expected.any.end(), true) != expected.any.end(); }

  Checked checked(const std::string& name, const std::string& config, int repeats) {
    Checked out;
    // Right on two sets of data, dense and strided; the same bits again and again where the kernel claims so.
    for (size_t i = 0; i < 2; ++i) {
      Variant& v = variant(i);
      const Route<Op> route = route_of(name, config, judged_);
      const bool same_bits = route.kernel->numerics.repeatable && std::ranges::none_of(v.oracle, has_open);
      const int calls = i == 0 ? repeats : 2;
      std::vector<std::vector<std::byte>> first;
      double spent_us = 0;
      for (int n = 0; n < calls && (n < 4 || spent_us < 1e6); ++n) {
        v.call->maker().poison_outputs();
        const auto start = std::chrono::steady_clock::now();
        run(route, *v.call, judged_);
        out.us = us_since(start);
        spent_us += out.us;
        if (out.wrong = judge_all(*route.kernel, v, out); !out.wrong.empty()) return out;
        if (!same_bits) continue;
        auto now = bits(v.call->host());
        if (n == 0) first = std::move(now);
        else if (now != first) {
          out.wrong = str("claims to be repeatable, but call ", n + 1, " has other bits");
          return out;
        }
      }
    }
    if (!(judged_ == problem_)) check_whole(name, config, out);
    return out;
  }

  /// The whole problem, where its reference would take too long: no canary touched, every element written, and the first rows those
  /// of the smaller problem where the op's rows stand alone.
  void check_whole(const std::string& name, const std::string& config, Checked& out) {
    if (whole_ == nullptr) {
      whole_ = std::make_unique<Call<Op>>(problem_, device_, MakerOptions{.seed = 1, .guards = true, .strided = false, .poison = true});
      whole_->maker().seal();
    }
    const Route<Op> route = route_of(name, config, problem_);
    whole_->maker().poison_outputs();
    const auto start = std::chrono::steady_clock::now();
    run(route, *whole_, problem_);
    out.us = us_since(start);
    if (out.wrong = whole_->maker().damage(); !out.wrong.empty()) return;
    const Variant& v = variant(0);
    auto outputs = Op::outputs(whole_->host());
    const auto small = Op::outputs(v.call->host());
    const auto tolerance = tolerance_of(*route.kernel, problem_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (has_open(v.oracle[i])) continue;
      if (out.wrong = first_nan(outputs[i]); !out.wrong.empty()) return;
      if constexpr (kFirstRowsStand<Op>) {
        View& view = outputs[i].view;
        view.shape[0] = small[i].view.shape[0];
        if (!std::equal(view.shape, view.shape + view.rank, small[i].view.shape)) continue;  // rows are not the first extent (a batch)
        if (out.wrong = judged(outputs[i], v.oracle[i], tolerance[i], out); !out.wrong.empty()) {
          out.wrong = "at the whole problem: " + out.wrong;
          return;
        }
      }
    }
  }
  /// Outputs start as NaN, and inputs are finite: what is NaN was not written, or is wrong.
  static std::string first_nan(const Output& output) {
    const View& view = output.view;
    if (!is_float(view.dtype) || view.rank == 0) return {};
    const int64_t length = view.shape[view.rank - 1], rows = length == 0 ? 0 : view.size() / length;
    for (int64_t r = 0; r < rows; ++r)  // outputs without gaps
      for (int64_t c = 0; c < length; ++c)
        if (std::isnan(load_at(view.data, view.dtype, r * length + c))) return str(output.name, " row ", r, " column ", c, " is NaN");
    return {};
  }

  /// Calls of a sample: where tokens have experts, each has as many skewed sets as balanced ones.
  int64_t whole_pairs(int64_t calls) const {
    bool routed = false;
    problem_.fields([&](const char* name, const auto&, Match = Match::exact) { routed = routed || name == std::string_view("experts"); });
    return routed && ring_.size() > 1 ? calls + calls % 2 : calls;
  }

  double time_on_cpu(const Route<Op>& route, const std::string& name, double sample_us) {
    const auto calls = [&](int64_t n) {
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < n; ++i) launch(route, ring_[next_++ % ring_.size()]->args(), problem_);
      return us_since(start) / static_cast<double>(n);
    };
    double& expected = expected_us_[name];
    if (expected == 0) expected = calls(1);
    const int64_t n = whole_pairs(std::clamp<int64_t>(static_cast<int64_t>(sample_us / std::max(expected, 0.1)), 1, 2000));
    if (n >= 4) calls(1);  // its code and its threads come back
    return expected = calls(n);
  }

  double time_on_gpu(const Route<Op>& route, const std::string& name, double sample_us) {
    gpu::Event start(device_), stop(device_);
    const auto timed = [&](auto&& body, int64_t n) {
      start.record(stream());
      body();
      stop.record(stream());
      stop.wait();
      return stop.us_since(start) / static_cast<double>(n);
    };
    const auto calls = [&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) launch(route, ring_[next_++ % ring_.size()]->args(), problem_);
    };
    Replay& replay = replays_[name];
    if (replay.graph == nullptr) {
      calls(1);
      const double us = timed([&] { calls(4); }, 4);
      replay.calls = whole_pairs(std::clamp<int64_t>(static_cast<int64_t>(2 * sample_us / std::max(us, 1.0)), 4, 2000));
      replay.graph = std::make_unique<gpu::Graph>(device_, stream(), [&] { calls(replay.calls); });
      replay.graph->launch(stream());
    }
    return timed([&] { replay.graph->launch(stream()); }, replay.calls);
  }

  const Device& device_;
  const CheckOptions options_;
  const Problem problem_, judged_;  // judged_: the largest that the reference is asked for
  std::optional<gpu::ContextScope> context_;
  std::optional<gpu::OwnedStream> stream_;
  Variant variants_[2];
  std::unique_ptr<Call<Op>> whole_;
  std::vector<std::unique_ptr<Call<Op>>> ring_;
  size_t next_ = 0;
  std::map<std::string, double> expected_us_;
  struct Replay {
    std::unique_ptr<gpu::Graph> graph;
    int64_t calls = 0;
  };
  std::map<std::string, Replay> replays_;
};

template <Operator Op> Subject subject_of(std::string_view text, const Device& device, const CheckOptions& options) {
  auto bench = std::make_shared<Bench<Op>>(text, device, options);
  return {
      .prepare = [bench] { bench->prepare(); },
      .make_ring = [bench] { bench->make_ring(); },
      .check = [bench](const std::string& kernel, const std::string& config, int repeats) { return bench->check(kernel, config, repeats); },
      .time = [bench](const std::string& kernel, const std::string& config, double us) { return bench->time(kernel, config, us); }};
}

template <Operator Op> TunedOp tuned_op() {
  return {.name = Op::name, .choices = choices_of<Op>, .subject = subject_of<Op>, .children = children_of<Op>};
}

}  // namespace eitri::tune
