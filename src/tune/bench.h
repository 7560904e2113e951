// One problem on one device inside a worker process: checks candidates against the reference, and has them timed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/available_memory.h"
#include "backend/gpu.h"
#include "tune/bench_call.h"
#include "tune/bench_judge.h"
#include "tune/sampler.h"
#include "tune/tuned_op.h"

namespace eitri::tune {

/// Of calls again and again; four at least.
inline constexpr double kRepeatUs = 30e3;

template <Operator Op> class Bench {
 public:
  using Problem = typename Op::Problem;
  using Args = typename Op::Args;

  Bench(std::string_view text, const Device& device, const CheckOptions& options)
      : device_(device),
        options_(options),
        problem_(parse_problem<Problem>(Op::name, text)),
        judged_(with_fewer_rows<Op>(problem_, options.most_flops)),
        sampler_(problem_, device) {
    const double bytes = Op::cost(problem_).bytes, room = static_cast<double>(available_memory());
    if (!(bytes < room))
      fail(Code::out_of_memory,
           str("its tensors have ", std::ceil(bytes / 0x1p20), " MiB; ", available_memory() >> 20, " MiB are available"));
    if (device.is_gpu()) {
      context_.emplace(device);
      stream_.emplace(device);
    }
  }

  /// Whether the problem is judged with fewer rows.
  bool prepare() {
    for (size_t i = 0; i < 2; ++i) variant(i);
    if (judged_ == problem_) return false;
    whole_ = std::make_unique<Call<Op>>(
        problem_, device_, MakerOptions{.seed = 1, .guards = true, .strided = false, .poison = true, .special_rows = false}, made_calls());
    whole_->maker().seal();
    whole_->upload(stream());
    return true;
  }

  Checked check(const std::string& kernel, const std::string& config, const CheckRequest& request) {
    Checked out;
    poison_workspace(true);
    try {
      out = checked(kernel, config, request);
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
    // Nobody is accused of what came of inputs that another one wrote to.
    if (!request.looks_for_damage && !out.wrong.empty()) {
      try {
        if (std::string found = damage(); !found.empty()) out = {.wrong = found, .damaged = true};
      } catch (const Error&) {  // a GPU after a fault
      }
    }
    if (out.us > 0) sampler_.expect(kernel + " " + config, out.us);
    return out;
  }

  std::string damage() const {
    for (const Call<Op>* call : made_calls()) {
      call->download_inputs(stream());
      if (std::string found = call->maker().damage(); !found.empty()) return found;
    }
    return {};
  }

  /// The tensors that time() goes round.
  void make_ring() {
    // The first of the judged sets has the same numbers.
    sampler_.make_ring(judged_ == problem_ ? variants_[0].call.get() : whole_.get(), made_calls(), stream());
  }
  double time(const std::string& kernel, const std::string& config, double sample_us) {
    const Route<Op>& route = route_of(kernel, config, problem_);
    make_ring();
    return sampler_.time(route, kernel + " " + config, sample_us, stream());
  }

 private:
  Stream stream() const { return stream_ ? static_cast<Stream>(*stream_) : nullptr; }

  /// Made once: it reads sources and asks libraries.
  const Route<Op>& route_of(const std::string& name, const std::string& config, const Problem& problem) {
    auto& routes = routes_[problem == problem_ ? 0 : 1];
    const std::string key = str(name, " ", config);
    const auto known = routes.find(key);
    return known != routes.end() ? known->second : routes.emplace(key, make_route(name, config, problem)).first->second;
  }
  Route<Op> make_route(const std::string& name, const std::string& config, const Problem& problem) const {
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
  /// One call on poisoned outputs, which are on the host afterwards. Its microseconds.
  double run(const Route<Op>& route, Call<Op>& call, const Problem& problem) const {
    call.poison_outputs(stream());
    if (device_.is_gpu()) gpu::synchronize(stream());
    const auto start = std::chrono::steady_clock::now();
    launch(route, call.args(), problem);
    if (device_.is_gpu()) gpu::synchronize(stream());
    const double us = us_since(start);
    call.download_outputs(stream());
    if (std::string found = call.maker().damage_of_outputs(); !found.empty()) fail(Code::internal, found);
    return us;
  }
  /// The first call of a candidate on these tensors, and a second one if it is slow. Whether it is.
  bool is_slow(const Route<Op>& route, Call<Op>& call, const Problem& problem, const CheckRequest& request, Checked& out) const {
    out.us = run(route, call, problem);
    if (request.most_us <= 0 || out.us <= request.most_us) return false;
    out.us = std::min(out.us, run(route, call, problem));
    if (out.us <= request.most_us) return false;
    out.wrong = damage_of(call, request);
    return out.slow = true;
  }
  /// "" or what a candidate wrote to beside the outputs.
  std::string damage_of(const Call<Op>& call, const CheckRequest& request) const {
    if (!request.looks_for_damage) return {};
    call.download_inputs(stream());
    return call.maker().damage();
  }

  /// Tensors and oracle of one of the two variants, shared by all candidates.
  struct Variant {
    std::unique_ptr<Call<Op>> call;
    Oracle oracle;
    RightResult right;  // what was judged last
  };
  Variant& variant(size_t i) {
    Variant& v = variants_[i];
    if (v.call != nullptr) return v;
    v.call = std::make_unique<Call<Op>>(
        judged_, device_,
        MakerOptions{.seed = i + 1, .guards = true, .strided = i == 1, .poison = true, .skew = i == 1 ? kSkew : 0, .special_rows = i == 1},
        made_calls());
    v.call->maker().seal();
    Op::reference(v.call->host(), &v.oracle);
    v.call->upload(stream());
    return v;
  }
  /// What there is: their weights are used again.
  std::vector<Call<Op>*> made_calls() const {
    std::vector<Call<Op>*> out;
    for (Call<Op>* call : {variants_[0].call.get(), variants_[1].call.get(), whole_.get()})
      if (call != nullptr) out.push_back(call);
    return out;
  }

  /// "" or what is wrong with the outputs of the variant's call.
  std::string judge_all(const Kernel<Op>& kernel, const Variant& v, Checked& out) const {
    const auto outputs = Op::outputs(v.call->host());
    const auto tolerance = tolerance_of(kernel, judged_);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (std::string wrong = judged(outputs[i], v.oracle[i], tolerance[i], out.error); !wrong.empty()) return wrong;
    return {};
  }
  Checked checked(const std::string& name, const std::string& config, const CheckRequest& request) {
    Checked out;
    const bool has_whole = !(judged_ == problem_);
    if (has_whole) {
      check_whole(name, config, request, out);
      if (out.slow || !out.wrong.empty()) return out;
    }
    const double whole_error = out.error;
    // Right on two sets of data, dense and strided; the same bits again and again where the kernel claims so.
    for (size_t i = 0; i < 2; ++i) {
      Variant& v = variant(i);
      const Route<Op>& route = route_of(name, config, judged_);
      const bool same_bits = route.kernel->numerics.repeatable && std::ranges::none_of(v.oracle, has_open);
      const int calls = i == 0 ? request.repeats : request.repeats > 2 ? 2 : 1;  // finalists are called twice here as well
      OutputBits first;
      double spent_us = 0;
      for (int n = 0; n < calls && (n < 4 || spent_us < kRepeatUs); ++n) {
        if (n == 0 && i == 0 && !has_whole) {
          if (is_slow(route, *v.call, judged_, request, out)) return out;
        } else {
          const double us = run(route, *v.call, judged_);
          if (i == 0 && !has_whole) out.us = std::min(out.us, us);
          spent_us += us;
        }
        // The same bits as the first time, or as another config's of the kernel, are as right as they were.
        if (n > 0 && same_bits && has_bits<Op>(v.call->host(), first)) continue;
        if (n > 0 && same_bits)  // an input may have changed
          if (out.wrong = damage_of(*v.call, request); !out.wrong.empty()) return out;
        if (!same_bits || !is_known<Op>(v.right, name, v.call->host(), out.error)) {
          if (out.wrong = judge_all(*route.kernel, v, out); !out.wrong.empty()) return out;
          if (same_bits) v.right = {.bits = bits_of<Op>(v.call->host()), .kernel = name, .error = out.error};
        }
        if (!same_bits) continue;
        if (n > 0) {
          out.wrong = str("claims to be repeatable, but call ", n + 1, " has other bits");
          return out;
        }
        first = bits_of<Op>(v.call->host());
      }
      if (out.wrong = damage_of(*v.call, request); !out.wrong.empty()) return out;
    }
    if (has_whole && right_.bits.empty())
      right_ = {.bits = bits_of<Op>(whole_->host()),
                .kernel = name,
                .name = config.empty() ? name : str(name, " ", config),
                .tolerance = tolerance_of(*route_of(name, config, problem_).kernel, problem_),
                .error = whole_error};
    return out;
  }

  /// The whole problem, where its reference would take too long: no canary touched, every element written, the first rows those of the
  /// smaller problem where the op's rows stand alone, and everywhere about what the first candidate gave that was right.
  void check_whole(const std::string& name, const std::string& config, const CheckRequest& request, Checked& out) {
    const Route<Op>& route = route_of(name, config, problem_);
    if (is_slow(route, *whole_, problem_, request, out)) return;
    if (out.wrong = damage_of(*whole_, request); !out.wrong.empty()) return;
    if (is_known<Op>(right_, name, whole_->host(), out.error)) return;
    const Variant& v = variant(0);
    const auto outputs = Op::outputs(whole_->host());
    const auto small = Op::outputs(v.call->host());
    const auto tolerance = tolerance_of(*route.kernel, problem_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (has_open(v.oracle[i])) continue;
      if constexpr (kFirstRowsStand<Op>) {
        Output rows = outputs[i];
        rows.view.shape[0] = small[i].view.shape[0];  // rows may not be the first extent (a batch)
        if (std::equal(rows.view.shape, rows.view.shape + rows.view.rank, small[i].view.shape)) {
          if (out.wrong = judged(rows, v.oracle[i], tolerance[i], out.error); !out.wrong.empty())
            out.wrong = "at the whole problem: " + out.wrong;
          if (!out.wrong.empty()) return;
        }
      }
      if (out.wrong = first_other(outputs[i], i, v.oracle[i], tolerance[i], right_); !out.wrong.empty()) return;
    }
  }
  const Device& device_;
  const CheckOptions options_;
  const Problem problem_, judged_;  // judged_: the largest that the reference is asked for
  std::optional<gpu::ContextScope> context_;
  std::optional<gpu::OwnedStream> stream_;
  Variant variants_[2];
  std::unique_ptr<Call<Op>> whole_;
  RightResult right_;                           // of the whole problem, by the first candidate that was right
  std::map<std::string, Route<Op>> routes_[2];  // of the whole problem, and of the judged one where that is another
  Sampler<Op> sampler_;
};

template <Operator Op> Subject subject_of(std::string_view text, const Device& device, const CheckOptions& options) {
  auto bench = std::make_shared<Bench<Op>>(text, device, options);
  return {.prepare = [bench] { return bench->prepare(); },
          .make_ring = [bench] { bench->make_ring(); },
          .check = [bench](const std::string& kernel, const std::string& config,
                           const CheckRequest& request) { return bench->check(kernel, config, request); },
          .damage = [bench] { return bench->damage(); },
          .time = [bench](const std::string& kernel, const std::string& config, double us) { return bench->time(kernel, config, us); }};
}

template <Operator Op> TunedOp tuned_op() {
  return {.name = Op::name, .plain = plain_text_of<Op>, .choices = choices_of<Op>, .subject = subject_of<Op>, .children = children_of<Op>};
}

}  // namespace eitri::tune
