// What the tuner and its workers know of an op: which candidates a problem has, and how one is checked and timed. Made from the op's
// template once, so that everything else here knows ops by name alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/explain.h"
#include "dispatch/revision.h"

namespace eitri::tune {

/// A kernel with a config that is worth a try, or why it is not.
struct Choice {
  std::string kernel, config;
  double guess_us = 0;
  std::string refused;  // empty: a candidate
  std::string revision;
  int configs = 1;  // that do the same as this one: they are not tried
};
struct Choices {
  std::vector<Choice> all;  // table order, then the order of knob values: ties go to the first
  size_t control = 0;       // what a call without tuned rows takes; all.size() when nothing takes the problem
  bool empty = false;       // nothing to compute: no call looks for a row
  double slow = 3;          // what takes this many times as long as the default with warm caches has no hope with cold ones
};

struct CheckOptions {
  double most_flops = 4e9;  // of a reference run; a larger problem is judged with fewer rows (tokens), and run as it is
};
/// How a candidate is checked.
struct CheckRequest {
  int repeats = 2;     // calls on the first set of data; of a repeatable kernel they must give the same bits
  double most_us = 0;  // what takes longer twice is not judged; 0: everything is
  bool looks_for_damage =
      true;  // whether they are as they were. A GPU's are large to bring back: Subject::damage asks it for many candidates
};
struct Checked {
  std::string wrong;       // empty: right
  double error = 0;        // largest error over allowed error
  double us = 0;           // of one call at the whole problem, the tensors in the caches: the best of those that were made
  bool slow = false;       // it took longer than the limit: it was not judged
  bool here_only = false;  // what is wrong says nothing about other problems: memory, an extent that it does not take
  bool damaged = false;    // inputs were written to by this candidate or one before: nothing is known of it
};

struct Subject {
  /// Makes the tensors and the reference's results that check() compares with. True where the reference is of fewer rows: then the whole
  /// problem is compared with what the first candidate gave that was right.
  std::function<bool()> prepare;
  /// Makes the tensors that time() goes round.
  std::function<void()> make_ring;
  std::function<Checked(const std::string& kernel, const std::string& config, const CheckRequest& request)> check;
  /// "" while all that prepare() made is as it was, but for outputs; else what was written to.
  std::function<std::string()> damage;
  /// Microseconds of a call: one sample of about `sample_us` over a ring of buffers that no cache holds. Throws Error.
  std::function<double(const std::string& kernel, const std::string& config, double sample_us)> time;
};

/// Times the default's time with warm caches, from which on a candidate is no longer judged where caches hardly matter.
inline constexpr double kSlowInCaches = 1.3;

/// What is not tried, by what the cost models expect.
struct Pruning {
  static constexpr double kDoubtful = 3;  // kernels from here on must show in a call or two that they are no slower than that

  // Kernels that take this many times as long as the best are left out; 0: none. Of 160 races in which they ran, no kernel that was expected to
  // take so long came nearer than 1.9 times the best, but where no expert of a block has a token (bench/results/tune-*.json).
  double kernels = 4;
  double configs = 1.5;  // from here on a kernel has its guessed config alone: as an alternative for when the best cannot be loaded, and in
                         // case the model is wrong; 0: all have all
};

/// An op as the tuner sees it.
struct TunedOp {
  std::string name;
  /// plain_config of a config as rows have it; the text itself where it is none of the kernel's.
  std::string (*plain)(std::string_view problem, const std::string& kernel, const std::string& config, const Device& device);
  Choices (*choices)(std::string_view problem, const Device& device, const Pruning& pruning);
  Subject (*subject)(std::string_view problem, const Device& device, const CheckOptions& options);
  /// The problems that recipes among the candidates make calls of, under every config of the recipe, for a knob of its own may be shared by
  /// its calls (the block of a sort and of the products behind it): (op, problem). May repeat itself.
  std::vector<std::pair<std::string, std::string>> (*children)(std::string_view problem, const Device& device);
};

std::vector<Config> every_config(Knobs knobs);

/// The first config that makes the kernel do the same as this one, where the op knows: knobs that do not matter at the problem are as by default.
template <Operator Op> Config plain_config(const Kernel<Op>&, const typename Op::Problem&, const Config& config, const Device&) {
  return config;
}

/// Time of computing at the peak over time of reading at the measured bandwidth.
template <Operator Op> double compute_over_read(const typename Op::Problem& problem, const Device& device) {
  const Cost cost = Op::cost(problem);
  return cost.flops / std::max(1.0, device.peak(cost.math)) * std::max(1.0, device.profile.read_bytes) / std::max(1.0, cost.bytes);
}

template <Operator Op> Choices choices_of(std::string_view text, const Device& device, const Pruning& pruning) {
  const auto problem = parse_problem<typename Op::Problem>(Op::name, text);
  auto all = candidates<Op>(problem, device);
  const Candidate<Op>* const best = safe_default(all);
  Choices out;
  if (out.empty = Op::empty(problem); out.empty) return out;
  bool control_found = false;
  for (const auto& c : all) {
    const Kernel<Op>& kernel = *c.kernel;
    const std::string revision(kernel_revision(Op::name, kernel.target));
    std::string refused = c.support.reason;
    if (c.support && &c != best && kernel.family == Family::reference) refused = "it is the reference";
    if (c.support && refused.empty() && pruning.kernels > 0 && c.guess.us > pruning.kernels * best->guess.us)
      refused =
          str("the cost model expects ", std::round(c.guess.us), " us, and ", std::round(best->guess.us), " us of ", best->kernel->name);
    if (!refused.empty()) {
      out.all.push_back({kernel.name, "", c.guess.us, refused, revision});
      continue;
    }
    const bool guess_only = pruning.configs > 0 && c.guess.us > pruning.configs * best->guess.us;
    const Config guessed = plain_config<Op>(kernel, problem, c.guess.config, device);
    const size_t first = out.all.size();
    for (const Config& every : guess_only ? std::vector<Config>{guessed} : every_config(kernel.knobs)) {
      const Config config = plain_config<Op>(kernel, problem, every, device);
      const std::string text = to_string(config, kernel.knobs);
      const auto same = std::find_if(out.all.begin() + static_cast<std::ptrdiff_t>(first), out.all.end(),
                                     [&](const Choice& o) { return o.config == text; });
      if (same != out.all.end()) {
        ++same->configs;
        continue;
      }
      if (&c == best && text == to_string(guessed, kernel.knobs)) {
        out.control = out.all.size();
        control_found = true;
      }
      out.all.push_back({kernel.name, text, c.guess.us, "", revision});
    }
    if (&c == best && !control_found) {  // a guess that the knobs do not list
      out.control = out.all.size();
      control_found = true;
      out.all.push_back({kernel.name, to_string(guessed, kernel.knobs), c.guess.us, "", revision});
    }
  }
  if (!control_found) out.control = out.all.size();
  // Where calls compute for longer than they read, caches hardly matter.
  if (!device.is_gpu() && compute_over_read<Op>(problem, device) > 2) out.slow = kSlowInCaches;
  return out;
}

template <Operator Op>
std::string plain_text_of(std::string_view text, const std::string& kernel, const std::string& config, const Device& device) {
  for (const Kernel<Op>& k : Op::kernels()) {
    Config parsed;
    std::string why;
    if (kernel == k.name && parse_config(config, k.knobs, parsed, why))
      return to_string(plain_config<Op>(k, parse_problem<typename Op::Problem>(Op::name, text), parsed, device), k.knobs);
  }
  return config;
}

template <Operator Op> std::vector<std::pair<std::string, std::string>> children_of(std::string_view text, const Device& device) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto problem = parse_problem<typename Op::Problem>(Op::name, text);
  for (const auto& c : candidates<Op>(problem, device)) {
    if (!c.support || c.kernel->children == nullptr) continue;
    for (const Config& config : every_config(c.kernel->knobs)) {
      ChildSink sink(device);
      c.kernel->children(problem, config, sink);
      for (const Explanation& child : sink.children) out.emplace_back(child.op, child.problem);
    }
  }
  return out;
}

}  // namespace eitri::tune
