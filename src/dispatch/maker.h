// Makes the tensors of a problem: Op::make(problem, maker) asks for each argument by name, so that tests, benchmarks and
// the tuner build the same call from the same Problem, each with its own surroundings (guards, strides, cold rings).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/memory.h"
#include "base/view.h"
#include "dispatch/mirror.h"

namespace eitri {

/// What input elements look like. Real data, never zeros: zeros flatter matrix units.
enum class Fill : uint8_t {
  normal,       // N(0, 1) for activations
  weight,       // N(0, 1/sqrt(last extent))
  code,         // integers of a quantised tensor, whole range
  scale,        // positive, about 1e-2, varied
  probability,  // (0, 1]
  zero,
};

struct MakerOptions {
  uint64_t seed = 1;
  bool guards = false;       // 4 KiB canaries before and after every tensor
  bool strided = false;      // rows longer than needed, the gap filled with NaN bits; starts aligned to an element only
  bool poison = true;        // outputs start as NaN bits
  double skew = 0;           // experts of tokens: the r-th most popular one has a load of 1 / r^skew; 0: all the same
  bool special_rows = true;  // zeros, NaN, infinities and extremes in a few rows, for tests; benchmarks time ordinary rows
  bool zero_pads = false;    // gaps and canaries of inputs are zeros instead: results must not change
};

class Maker {
 public:
  explicit Maker(MakerOptions options = {}) : options_(options), rng_(options.seed) {}
  Maker(const Maker&) = delete;

  View input(const char* name, DType dtype, std::initializer_list<int64_t> shape, Fill fill);
  /// A contiguous input even under `strided`: packed weights, index lists.
  View dense(const char* name, DType dtype, std::initializer_list<int64_t> shape, Fill fill);
  View output(const char* name, DType dtype, std::initializer_list<int64_t> shape);
  /// Raw, 64-byte aligned, owned bytes (packed weights).
  std::byte* raw(const char* name, size_t bytes);
  /// What `make` makes here, for tensors that take long: weights. It is made once for this maker and those that borrow from it, wherever
  /// they have the same seed and the same `key`, which names all else that determines layout and numbers.
  View shared(const std::string& key, const std::function<View()>& make);
  /// From now on shared() looks there first. The tensors live as long as either maker does.
  void borrow_from(const Maker& lender) { lenders_.push_back(&lender); }

  std::mt19937_64& rng() { return rng_; }
  const MakerOptions& options() const { return options_; }

  /// Remembers the bits of the inputs, once they are complete; damage() then reports an input that was written to. Borrowed tensors are
  /// their lender's business.
  void seal();
  /// "" when every canary, every gap between rows and every sealed input is untouched, else what was overwritten.
  std::string damage() const;
  /// The same of the outputs alone: what is around and between their rows.
  std::string damage_of_outputs() const;
  /// Fills the outputs with the poison again.
  void poison_outputs();
  /// The memory of all tensors, guards included; of its own alone, or of the borrowed ones as well.
  std::vector<Mirror::Range> ranges() const;
  std::vector<Mirror::Range> own_ranges() const;

 private:
  struct Tensor {
    std::string name;
    View view;
    bool is_output = false;
    bool canaries = false;  // every byte around rows holds the pattern of the dtype (or 0) and must keep it
    bool zero_pads = false;
    Buffer buffer;
    size_t lead = 0;    // bytes before the tensor (guard)
    size_t bytes = 0;   // span of the tensor, gaps included
    uint64_t seal = 0;  // hash of an input's bytes, 0 = not sealed
  };
  static std::byte canary(const Tensor& tensor, size_t offset);
  static void poison(Tensor& tensor);
  static std::string damage(const Tensor& tensor);
  View place(const char* name, DType dtype, std::initializer_list<int64_t> shape, bool gaps, bool is_output);
  void fill(const char* name, const View& view, Fill how);

  struct Shared {
    std::string key;
    View view;
    std::vector<std::shared_ptr<Tensor>> tensors;
  };
  MakerOptions options_;
  std::mt19937_64 rng_;
  std::vector<std::shared_ptr<Tensor>> tensors_;
  std::vector<std::shared_ptr<Tensor>> borrowed_;
  std::vector<Shared> shared_;
  std::vector<const Maker*> lenders_;
};

}  // namespace eitri
