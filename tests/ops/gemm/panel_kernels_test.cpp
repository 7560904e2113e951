// Every panel kernel of every level against double loops: all extents around the tile sizes, all options of the epilogue,
// gathered rows, ranges of panels, plain and packed weights. Whatever no index addresses is NaN (i8: 0x7f) and must not
// matter; every buffer has its exact size, so that a sanitizer sees a read beyond it, and guard bytes see a write.
#include "ops/gemm/panel_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu.h"
#include "base/numeric.h"
#include "base/settings.h"

namespace eitri {
namespace {

struct Level {
  const char* name;
  PanelFn bf16, i8, f16, f32;  // null: the level has none
  bool invariant;              // a row's bits do not depend on the other rows

  PanelFn function(DType dtype) const { return dtype == DType::bf16 ? bf16 : dtype == DType::i8 ? i8 : dtype == DType::f16 ? f16 : f32; }
};

std::vector<Level> levels() {
  std::vector<Level> found = {{"portable", portable::panel_bf16, portable::panel_i8, portable::panel_f16, portable::panel_f32, true}};
#if EITRI_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back({"avx2", avx2::panel_bf16, avx2::panel_i8, avx2::panel_f16, avx2::panel_f32, true});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) {
    found.push_back({"avx512", avx512::panel_bf16, avx512::panel_i8, avx512::panel_f16, avx512::panel_f32, true});
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
      found.push_back({"amx_emulated", amx_emulated::panel_bf16, amx_emulated::panel_i8, nullptr, nullptr, true});
  }
  if (best_isa() == Isa::x86_amx) found.push_back({"amx", amx::panel_bf16, amx::panel_i8, nullptr, nullptr, true});
#endif
  return found;
}

int64_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : dtype == DType::i8 ? 1 : 2; }

void put(std::byte* p, DType dtype, float x) {
  const uint16_t code = dtype == DType::bf16 ? encode_bf16(x) : encode_f16(x);
  if (dtype == DType::f32) std::memcpy(p, &x, 4);
  else if (dtype == DType::i8) *reinterpret_cast<int8_t*>(p) = encode_i8(x);
  else std::memcpy(p, &code, 2);
}
double get(const std::byte* p, DType dtype) {
  if (dtype == DType::i8) return *reinterpret_cast<const int8_t*>(p);
  float x;
  uint16_t code;
  std::memcpy(&x, p, dtype == DType::f32 ? 4 : 2);
  std::memcpy(&code, p, 2);
  return dtype == DType::f32 ? x : dtype == DType::bf16 ? decode_bf16(code) : decode_f16(code);
}

// 64-byte aligned memory of an exact size, for sanitizers.
struct Block {
  std::byte* data = nullptr;
  size_t size = 0;
  Block(size_t bytes, int fill) : data(static_cast<std::byte*>(::operator new (bytes + 1, std::align_val_t{64}))), size(bytes) {
    std::memset(data, fill, bytes);
  }
  ~Block() { ::operator delete (data, std::align_val_t{64}); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
};

constexpr int kNanFill = 0xff;  // every byte: NaN in f32, f16 and bf16

struct Shape {
  DType dtype = DType::bf16, c_dtype = DType::f32;
  int64_t m = 0, n = 0, k = 0;
  GateLayout gate = GateLayout::none;
  bool plain = false, gather = false, scatter = false, accumulate = false;
  bool a_scale = false, b_scale = false, row_weight = false, bias = false, c_weight = false;
  ActivationParams activation = {};
  int64_t panel_begin = 0, panel_end = -1;
  bool aligned_c = false;  // rows of c start at cache lines
  int32_t block_m = 0, chunk_k = 0;
  uint32_t seed = 1;

  std::string text() const {
    return "dtype " + std::to_string(static_cast<int>(dtype)) + " c " + std::to_string(static_cast<int>(c_dtype)) + " m " +
           std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k) + " gate " + std::to_string(static_cast<int>(gate)) +
           " plain " + std::to_string(plain) + " gather " + std::to_string(gather) + " scatter " + std::to_string(scatter) +
           " accumulate " + std::to_string(accumulate) + " activation " + std::to_string(static_cast<int>(activation.kind)) + " panels " +
           std::to_string(panel_begin) + ".." + std::to_string(panel_end) + " block_m " + std::to_string(block_m) + " chunk_k " +
           std::to_string(chunk_k) + " scales " + std::to_string(a_scale) + std::to_string(b_scale) + std::to_string(row_weight) +
           std::to_string(bias) + " seed " + std::to_string(seed);
  }
};

double activate(const ActivationParams& p, double g, double u, bool gated) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto clamp = [&](double x) { return std::clamp(x, -static_cast<double>(p.limit), static_cast<double>(p.limit)); };
  const bool limited = p.limit > 0;
  switch (p.kind) {
    case ActivationKind::none: return gated ? g * u : g;
    case ActivationKind::relu: return std::max(g, 0.0) * (gated ? u : 1);
    case ActivationKind::silu:
      if (limited) g = std::min(g, static_cast<double>(p.limit)), u = clamp(u);
      return g * sigmoid(g) * (gated ? u : 1);
    case ActivationKind::gelu: return g * 0.5 * std::erfc(-g / std::sqrt(2.0)) * (gated ? u : 1);
    case ActivationKind::gelu_tanh: {
      const double y = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
      return g * sigmoid(2 * y) * (gated ? u : 1);  // (1 + tanh y) / 2 without cancellation
    }
    case ActivationKind::swiglu:
      if (limited) g = std::min(g, static_cast<double>(p.limit)), u = clamp(u);
      return g * sigmoid(static_cast<double>(p.alpha) * g) * (u + 1);
    case ActivationKind::situv2: {
      const double b = p.beta, l = p.linear_beta;
      return b * std::tanh(g / b) * sigmoid(g) * l * std::tanh(u / l);
    }
  }
  return 0;
}

// A task with its memory, the exact results and what a correct kernel may be off by.
class Checked {
 public:
  explicit Checked(const Shape& shape) : s(shape), random(shape.seed) {
    const int64_t width = bytes_of(s.dtype), k_bytes = s.k * width;
    const int fill = s.dtype == DType::i8 ? 0x7f : kNanFill;
    weight_rows = s.gate == GateLayout::none ? s.n : 2 * s.n;
    panels = panel_count(s.n, s.gate);
    if (s.panel_end < 0) s.panel_end = panels;
    std::normal_distribution<float> normal(0, s.dtype == DType::i8 ? 40.0f : 0.7f);

    // A: more rows than the task uses when gathered; unused rows and the space between rows are NaN.
    const int64_t sources = s.gather ? s.m + 3 : s.m;
    const int64_t pad = static_cast<int64_t>(random() % 3) * 8;
    t.a_stride = (k_bytes + pad + 7) / 8 * 8;
    a = std::make_unique<Block>(static_cast<size_t>(sources > 0 ? (sources - 1) * t.a_stride + k_bytes : 0), fill);
    t.a = a->data;
    row_index.resize(static_cast<size_t>(s.m));
    for (int64_t i = 0; i < s.m; ++i)
      row_index[idx(i)] = static_cast<int32_t>(s.gather ? random() % static_cast<uint64_t>(sources) : static_cast<uint64_t>(i));
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t k = 0; k < s.k; ++k) put(a->data + row_index[idx(i)] * t.a_stride + k * width, s.dtype, normal(random));

    // B, plain; packed from it when asked.
    const int64_t b_stride = (k_bytes + pad + 7) / 8 * 8 + 8;
    b = std::make_unique<Block>(static_cast<size_t>(weight_rows > 0 ? (weight_rows - 1) * b_stride + k_bytes : 0), fill);
    for (int64_t r = 0; r < weight_rows; ++r)
      for (int64_t k = 0; k < s.k; ++k)
        put(b->data + r * b_stride + k * width, s.dtype, normal(random) * (s.dtype == DType::i8 ? 1.0f : 0.3f));
    plain_stride = b_stride;
    if (s.plain) {
      t.b = b->data;
      t.b_row_stride = b_stride;
    } else {
      pack(width);
      t.b = packed->data;
    }

    const auto vector = [&](std::vector<float>& v, int64_t n, float low, float high) {
      std::uniform_real_distribution<float> uniform(low, high);
      v.resize(static_cast<size_t>(n));
      for (float& x : v) x = uniform(random);
      return v.data();
    };
    const float unit = s.dtype == DType::i8 ? 0.01f : 0.8f;
    if (s.a_scale) {
      t.a_scale = vector(a_scale, sources, unit / 2, unit);
      std::vector<bool> used(static_cast<size_t>(sources));
      for (int32_t r : row_index) used[static_cast<size_t>(r)] = true;
      for (size_t r = 0; r < used.size(); ++r)
        if (!used[r]) a_scale[r] = kNan;
    }
    if (s.b_scale) t.b_scale = vector(b_scale, weight_rows, unit / 2, unit);
    if (s.row_weight) t.row_weight = vector(row_weight, s.m, -1, 1);
    if (s.bias) t.bias = vector(bias, weight_rows, -1, 1);
    if (s.c_weight) t.c_weight = vector(c_weight, s.m, -1, 1);

    // C: rows apart, scattered; only the columns of the panel range may change.
    const int64_t c_rows = s.scatter ? s.m + 2 : s.m, c_width = bytes_of(s.c_dtype);
    t.c_stride = s.aligned_c ? (s.n * c_width + 63) / 64 * 64 : s.n * c_width + pad;
    c_row_index.resize(static_cast<size_t>(s.m));
    std::vector<int32_t> order(static_cast<size_t>(c_rows));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    for (int64_t i = 0; i < s.m; ++i) {
      int32_t row = s.scatter ? order[idx(i)] : static_cast<int32_t>(i);
      if (s.scatter && s.accumulate) row = static_cast<int32_t>(random() % static_cast<uint64_t>(c_rows));  // rows repeat
      c_row_index[idx(i)] = row;
    }
    before.assign(static_cast<size_t>(c_rows * t.c_stride), std::byte{kNanFill});
    if (s.accumulate)
      for (int64_t i = 0; i < c_rows; ++i)
        for (int64_t j = 0; j < s.n; ++j)
          put(before.data() + i * t.c_stride + j * 4, DType::f32, normal(random) / (s.dtype == DType::i8 ? 40 : 1));

    t.m = s.m, t.n = s.n, t.k = s.k;
    t.gate = s.gate, t.panel_begin = s.panel_begin, t.panel_end = s.panel_end;
    if (s.gather) {
      t.row_mask = 0x00ffffff;
      for (int64_t i = 0; i < s.m; ++i) row_index[idx(i)] |= static_cast<int32_t>((i % 8) << 24);  // a slot, to be masked off
      t.row_index = row_index.data();
    }
    if (s.scatter) t.c_row_index = c_row_index.data();
    t.activation = s.activation;
    t.c_dtype = s.c_dtype, t.accumulate = s.accumulate;
    t.block_m = s.block_m, t.chunk_k = s.chunk_k;
    reference();
  }

  /// Runs the kernel on fresh output and fresh NaN scratch and compares; the result's bytes stay in `c`.
  std::string run(PanelFn function) {
    const auto scratch_bytes = static_cast<size_t>(panel_scratch(s.m, s.k, s.panel_end - s.panel_begin, bytes_of(s.dtype), s.plain));
    Block scratch(scratch_bytes + 64, kNanFill);
    std::memset(scratch.data + scratch_bytes, 0xa5, 64);
    Block out(before.size(), 0);
    std::copy(before.begin(), before.end(), out.data);
    t.c = out.data;
    t.scratch = scratch.data;
    function(t);
    for (size_t i = scratch_bytes; i < scratch_bytes + 64; ++i)
      if (scratch.data[i] != std::byte{0xa5}) return "scratch overrun; " + s.text();
    c.assign(out.data, out.data + out.size);
    return compare();
  }

  Shape s;
  PanelTask t;
  std::vector<std::byte> before, c;
  std::vector<int32_t> row_index, c_row_index;
  std::vector<float> row_weight, c_weight;

 private:
  static size_t idx(int64_t i) { return static_cast<size_t>(i); }

  void pack(int64_t width) {
    const int64_t bytes = panel_bytes(s.k, width), steps = (s.k * width + 63) / 64;
    packed = std::make_unique<Block>(idx(bytes * panels), 0);
    for (int64_t p = 0; p < panels; ++p) {
      std::byte* const panel = packed->data + p * bytes;
      for (int64_t column = 0; column < 32; ++column) {
        const int64_t row = weight_row(s.n, s.gate, p, column);
        if (row < 0) continue;
        int32_t sum = 0;
        for (int64_t byte = 0; byte < s.k * width; ++byte) {
          const std::byte value = b->data[row * plain_stride + byte];
          panel[byte / 64 * 2048 + column / 16 * 1024 + byte % 64 / 4 * 64 + column % 16 * 4 + byte % 4] = value;
          sum += static_cast<int8_t>(value);
        }
        if (width == 1) std::memcpy(panel + steps * 2048 + column * 4, &sum, 4);
      }
    }
  }

  void reference() {
    const int64_t width = bytes_of(s.dtype);
    const bool gated = s.gate != GateLayout::none;
    const int64_t c_rows = s.scatter ? s.m + 2 : s.m;
    value.assign(idx(c_rows * s.n), 0);
    error.assign(idx(c_rows * s.n), 0);
    touched.assign(idx(c_rows * s.n), false);
    std::vector<double> av(idx(s.k)), bv(idx(weight_rows * s.k));
    for (int64_t r = 0; r < weight_rows; ++r)
      for (int64_t k = 0; k < s.k; ++k) bv[idx(r * s.k + k)] = get(b->data + r * plain_stride + k * width, s.dtype);
    const int64_t outputs = gated ? 16 : 32;
    const int64_t begin = std::min(s.panel_begin * outputs, s.n), end = std::min(s.panel_end * outputs, s.n);
    for (int64_t i = 0; i < s.m; ++i) {
      const int64_t source = row_index[idx(i)] & t.row_mask;
      for (int64_t k = 0; k < s.k; ++k) av[idx(k)] = get(a->data + source * t.a_stride + k * width, s.dtype);
      for (int64_t j = begin; j < end; ++j) {
        double x[2] = {0, 0}, e[2] = {0, 0};
        for (int64_t half = 0; half < (gated ? 2 : 1); ++half) {
          const int64_t row = !gated ? j : s.gate == GateLayout::separated ? half * s.n + j : 2 * j + half;
          double sum = 0, bound = 0, scale = 1;
          for (int64_t k = 0; k < s.k; ++k) {
            const double product = av[idx(k)] * bv[idx(row * s.k + k)];
            sum += product;
            bound += std::abs(product);
          }
          if (s.a_scale) scale *= a_scale[idx(source)];
          if (s.b_scale) scale *= b_scale[idx(row)];
          if (s.row_weight) scale *= row_weight[idx(i)];
          x[half] = sum * scale + (s.bias ? bias[idx(row)] : 0);
          // Any order of k fp32 additions; i8 sums are exact but for their conversion. Then up to four more roundings.
          const double additions = s.dtype == DType::i8 ? 1 : static_cast<double>(s.k);
          e[half] = ((additions + 4) * bound * std::abs(scale) + std::abs(x[half]) + (s.bias ? std::abs(bias[idx(row)]) : 0)) * 0x1p-24;
        }
        const double y = activate(s.activation, x[0], x[1], gated);
        double spread = 0;
        for (double p : {-1.0, 0.0, 1.0})
          for (double q : {-1.0, 0.0, 1.0})
            spread = std::max(spread, std::abs(activate(s.activation, x[0] + p * e[0], x[1] + q * e[1], gated) - y));
        // A rounded argument of an exponential becomes a relative error of its own size.
        const double cubic = std::abs(x[0]) * (1 + 0.045 * x[0] * x[0]) * 1.6;
        const double exponent = s.activation.kind == ActivationKind::gelu_tanh ? cubic : std::abs(s.activation.alpha * x[0]);
        const double rounding = s.activation.kind == ActivationKind::none ? 0x1p-23 : 0x1p-20 + exponent * 0x1p-22;
        double allowed = spread * 1.01 + std::abs(y) * rounding + 1e-30;
        const size_t at = idx((s.scatter ? c_row_index[idx(i)] : i) * s.n + j);
        touched[at] = true;
        if (s.accumulate) {
          const double weight = s.c_weight ? c_weight[idx(i)] : 1;
          if (error[at] == 0) value[at] = get(before.data() + static_cast<int64_t>(at) / s.n * t.c_stride + j * 4, DType::f32);
          value[at] += weight * y;
          error[at] += std::abs(weight) * allowed + (std::abs(value[at]) + std::abs(weight * y)) * 0x1p-23;
        } else {
          if (s.c_dtype == DType::bf16) allowed = allowed * 1.01 + std::abs(y) * 0x1.01p-8;
          if (s.c_dtype == DType::f16) allowed = allowed * 1.01 + std::abs(y) * 0x1.01p-11 + 0x1p-25;
          value[at] = y;
          error[at] = allowed;
        }
      }
    }
  }

  std::string compare() const {
    const int64_t c_width = bytes_of(s.c_dtype), rows = s.scatter ? s.m + 2 : s.m;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t byte = 0; byte < t.c_stride; ++byte) {
        const int64_t j = byte / c_width;
        const size_t at = idx(i * t.c_stride + byte);
        if ((j >= s.n || !touched[idx(i * s.n + j)]) && c[at] != before[at])
          return "wrote row " + std::to_string(i) + " byte " + std::to_string(byte) + " outside its columns; " + s.text();
      }
      for (int64_t j = 0; j < s.n; ++j) {
        if (!touched[idx(i * s.n + j)]) continue;
        const double got = get(c.data() + i * t.c_stride + j * c_width, s.c_dtype), want = value[idx(i * s.n + j)];
        if (!(std::abs(got - want) <= error[idx(i * s.n + j)]))
          return "c[" + std::to_string(i) + ", " + std::to_string(j) + "] is " + std::to_string(got) + "; expected " +
                 std::to_string(want) + " +- " + std::to_string(error[idx(i * s.n + j)]) + "; " + s.text();
      }
    }
    return {};
  }

  std::mt19937 random;
  std::unique_ptr<Block> a, b, packed;
  int64_t plain_stride = 0, weight_rows = 0, panels = 0;
  std::vector<float> a_scale, b_scale, bias;
  std::vector<double> value, error;
  std::vector<bool> touched;
};

Shape with_scales(Shape s) {
  if (s.dtype == DType::i8) s.a_scale = s.b_scale = true;
  return s;
}

constexpr DType kTypes[] = {DType::bf16, DType::i8, DType::f16, DType::f32};
constexpr int64_t kM[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 353};
constexpr int64_t kN[] = {1, 15, 16, 17, 31, 32, 33, 64, 100};
constexpr int64_t kK[] = {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 127, 128, 129, 200, 255, 1000};

template <class T, size_t kCount> T pick(std::mt19937& random, const T (&from)[kCount]) { return from[random() % kCount]; }

// Every extent with every other one, without options.
TEST(PanelKernels, EveryExtent) {
  std::vector<Level> all = levels();
  uint32_t seed = 1;
  for (DType dtype : kTypes)
    for (int64_t m : {0, 1, 2, 15, 16, 17, 33})
      for (int64_t n : {1, 15, 16, 17, 32, 33})
        for (int64_t k : kK) {
          if (k == 1000 && m > 17) continue;
          Checked task(with_scales({.dtype = dtype, .m = m, .n = n, .k = k, .plain = seed % 2 == 0, .seed = seed}));
          ++seed;
          for (const Level& level : all)
            if (level.function(dtype) != nullptr) {
              const std::string wrong = task.run(level.function(dtype));
              ASSERT_EQ(wrong, "") << level.name;
            }
        }
}

// Random tasks with random options.
TEST(PanelKernels, EveryOption) {
  std::vector<Level> all = levels();
  std::mt19937 random(7);
  for (int round = 0; round < 1600; ++round) {
    Shape s;
    s.dtype = pick(random, kTypes);
    do {
      s.m = pick(random, kM), s.n = pick(random, kN), s.k = pick(random, kK);
    } while (s.m * s.n * s.k > (round % 50 == 0 ? 40'000'000 : 1'500'000));
    s.gate = pick(random, {GateLayout::none, GateLayout::none, GateLayout::separated, GateLayout::interleaved});
    s.plain = random() % 2, s.gather = random() % 2, s.scatter = random() % 2, s.accumulate = random() % 4 == 0;
    s.c_dtype = s.accumulate ? DType::f32 : pick(random, {DType::f32, DType::bf16, DType::f16});
    s.a_scale = random() % 2, s.b_scale = random() % 2, s.row_weight = random() % 2, s.bias = random() % 2;
    s.c_weight = s.accumulate && random() % 2;
    s.activation.kind = static_cast<ActivationKind>(random() % (s.gate == GateLayout::none ? 5 : 7));
    s.activation.limit = random() % 2 ? 0.5f : 0.0f;
    const int64_t panels = panel_count(s.n, s.gate);
    if (random() % 3 == 0) {
      s.panel_begin = static_cast<int64_t>(random() % static_cast<uint64_t>(panels));
      s.panel_end = s.panel_begin + static_cast<int64_t>(random() % static_cast<uint64_t>(panels - s.panel_begin + 1));
    }
    s.block_m = pick(random, {0, 0, 1, 16, 32, 40, 1000});
    s.chunk_k = pick(random, {0, 0, 1, 2, 3, 7, 1000});
    s.seed = static_cast<uint32_t>(round);
    Checked task(with_scales(s));
    for (const Level& level : all)
      if (level.function(s.dtype) != nullptr) {
        const std::string wrong = task.run(level.function(s.dtype));
        ASSERT_EQ(wrong, "") << level.name;
      }
  }
}

// Long k, so that blocks and chunks of k split; and a long k with many rows.
TEST(PanelKernels, LongK) {
  for (DType dtype : kTypes)
    for (bool plain : {false, true})
      for (auto [m, n, k] : {std::array<int64_t, 3>{1, 40, 50001}, {17, 33, 21003}, {40, 33, 11003}, {70, 17, 9001}, {200, 65, 3001}}) {
        Checked task(with_scales({.dtype = dtype, .c_dtype = DType::bf16, .m = m, .n = n, .k = k, .plain = plain, .seed = 3}));
        for (const Level& level : levels())
          if (level.function(dtype) != nullptr) {
            const std::string wrong = task.run(level.function(dtype));
            ASSERT_EQ(wrong, "") << level.name;
          }
      }
}

// An output so large and aligned that kernels may write past the caches.
TEST(PanelKernels, LargeAlignedOutput) {
  for (DType dtype : {DType::bf16, DType::i8})
    for (DType c_dtype : {DType::f32, DType::bf16, DType::f16})
      for (bool scatter : {false, true}) {
        Checked task(with_scales({.dtype = dtype,
                                  .c_dtype = c_dtype,
                                  .m = 353,
                                  .n = 3020,
                                  .k = 33,
                                  .scatter = scatter,
                                  .row_weight = scatter,
                                  .bias = !scatter,
                                  .aligned_c = true}));
        for (const Level& level : levels()) {
          const std::string wrong = task.run(level.function(dtype));
          ASSERT_EQ(wrong, "") << level.name;
        }
      }
}

// A small part of such an output: the same bits as alone.
TEST(PanelKernels, PartOfALargeOutput) {
  for (DType dtype : {DType::bf16, DType::i8}) {
    Checked task(with_scales({.dtype = dtype, .c_dtype = DType::bf16, .m = 100, .n = 130, .k = 65, .bias = true, .aligned_c = true}));
    for (const Level& level : levels()) {
      task.t.c_bytes = 0;
      ASSERT_EQ(task.run(level.function(dtype)), "") << level.name;
      const std::vector<std::byte> alone = task.c;
      task.t.c_bytes = 64 << 20;
      ASSERT_EQ(task.run(level.function(dtype)), "") << level.name;
      ASSERT_EQ(task.c, alone) << level.name;
    }
  }
}

// The largest magnitudes of i8 at the largest k: the 32-bit sum still holds.
TEST(PanelKernels, I8Extremes) {
  const int64_t k = kMaxI8K, steps = (k + 63) / 64;
  Block a(static_cast<size_t>(k), 0), b(static_cast<size_t>(panel_bytes(k, 1)), 0);
  const float one = 1.0f;
  for (int a_code : {-128, 127})
    for (int b_code : {-128, 127}) {
      std::memset(a.data, a_code, static_cast<size_t>(k));
      std::memset(b.data, 0, b.size);
      for (int64_t byte = 0; byte < k; ++byte) b.data[byte / 64 * 2048 + byte % 64 / 4 * 64 + byte % 4] = static_cast<std::byte>(b_code);
      const auto sum = static_cast<int32_t>(b_code * k);
      std::memcpy(b.data + steps * 2048, &sum, 4);
      Block scratch(static_cast<size_t>(panel_scratch(1, k, 1, 1, false)), kNanFill);
      float c = 0;
      PanelTask t;
      t.a = a.data, t.a_stride = k, t.m = 1, t.n = 1, t.k = k, t.b = b.data, t.panel_end = 1;
      t.a_scale = &one, t.b_scale = &one, t.c = reinterpret_cast<std::byte*>(&c), t.c_stride = 4, t.scratch = scratch.data;
      for (const Level& level : levels()) {
        c = 0;
        level.i8(t);
        EXPECT_EQ(c, static_cast<float>(static_cast<int64_t>(a_code) * b_code * k)) << level.name;
      }
    }
}

// A row with NaN or infinity spoils its own row of C and no other, whatever the k tail.
TEST(PanelKernels, NanStaysInItsRow) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (int64_t k : {16, 17, 31, 32, 33, 34, 40, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 255})
      for (float bad : {kNan, std::numeric_limits<float>::infinity()})
        for (bool plain : {false, true}) {
          Checked task({.dtype = dtype, .m = 33, .n = 40, .k = k, .plain = plain});
          auto* rows = const_cast<std::byte*>(task.t.a);
          for (int64_t i = 1; i < 33; ++i)
            for (int64_t j = 0; j < k; ++j) put(rows + i * task.t.a_stride + j * bytes_of(dtype), dtype, bad);
          for (const Level& level : levels()) {
            if (level.function(dtype) == nullptr) continue;
            task.run(level.function(dtype));
            for (int64_t i = 0; i < 33; ++i)
              for (int64_t j = 0; j < 40; ++j)
                ASSERT_EQ(std::isfinite(get(task.c.data() + i * task.t.c_stride + j * 4, DType::f32)), i == 0)
                    << level.name << " row " << i << " column " << j << " k " << k;
          }
        }
}

// The same bits alone and in a batch, and again on a second run.
TEST(PanelKernels, RowsDoNotDependOnEachOther) {
  for (DType dtype : kTypes)
    for (int64_t k : {33, 600, 5000})
      for (int64_t m : {5, 17, 65, 130}) {
        Checked batch(with_scales({.dtype = dtype, .m = m, .n = 40, .k = k}));
        for (const Level& level : levels()) {
          const PanelFn function = level.function(dtype);
          if (function == nullptr || !level.invariant) continue;
          ASSERT_EQ(batch.run(function), "") << level.name;
          const std::vector<std::byte> together = batch.c;
          batch.run(function);
          ASSERT_EQ(together, batch.c) << level.name << " is not repeatable";
          Block scratch(static_cast<size_t>(panel_scratch(1, k, 2, bytes_of(dtype), false)), kNanFill);
          for (int64_t i : {int64_t{0}, m / 2, m - 1}) {
            PanelTask one = batch.t;
            std::vector<std::byte> c(static_cast<size_t>(one.c_stride), std::byte{kNanFill});
            one.m = 1, one.a += i * one.a_stride, one.scratch = scratch.data, one.c = c.data();
            if (one.a_scale != nullptr) one.a_scale += i;
            function(one);
            ASSERT_TRUE(std::equal(c.begin(), c.end(), together.begin() + static_cast<std::ptrdiff_t>(i * one.c_stride)))
                << level.name << " row " << i << " of " << m << ", k " << k;
          }
        }
      }
}

#if EITRI_X86
bool has_avx512() { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"); }

// The tile product of bf16 counts subnormal numbers as 0; the emulation does so too.
TEST(PanelKernels, TilesCountSubnormalsAsZero) {
  if (!has_avx512()) GTEST_SKIP() << "the emulation of AMX needs AVX-512 with BF16 and VBMI";
  const uint16_t a[2] = {0x0040, encode_bf16(1.0f)};  // 2^-127, 1
  uint16_t b[2] = {encode_bf16(0x1p100f), encode_bf16(3.0f)};
  float c = 0;
  Block scratch(static_cast<size_t>(panel_scratch(1, 2, 1, 2, true)), kNanFill);
  PanelTask t;
  t.a = reinterpret_cast<const std::byte*>(a), t.a_stride = 4, t.m = 1, t.n = 1, t.k = 2;
  t.b = reinterpret_cast<const std::byte*>(b), t.b_row_stride = 4, t.panel_end = 1;
  t.c = reinterpret_cast<std::byte*>(&c), t.c_stride = 4, t.scratch = scratch.data;
  for (float second : {3.0f, 0.0f}) {
    b[1] = encode_bf16(second);
    amx_emulated::panel_bf16(t);
    EXPECT_EQ(c, second);
    if (best_isa() == Isa::x86_amx) {
      amx::panel_bf16(t);
      EXPECT_EQ(c, second);
    }
    avx512::panel_bf16(t);
    EXPECT_EQ(c, second == 0 ? 0x1p-27f : 3.0f + 0x1p-27f);
  }
}

// What the emulation proves holds for the instructions: the same bits.
TEST(PanelKernels, EmulatedTilesAgreeWithTheInstructions) {
  if (best_isa() != Isa::x86_amx) GTEST_SKIP() << "this machine has no AMX";
  uint32_t seed = 1;
  for (DType dtype : {DType::bf16, DType::i8})
    for (int64_t m : {1, 17, 100, 353})
      for (int64_t k : {31, 700, 5001})
        for (bool plain : {false, true}) {
          Checked task(with_scales({.dtype = dtype, .m = m, .n = 75, .k = k, .plain = plain, .bias = true, .seed = seed++}));
          ASSERT_EQ(task.run(dtype == DType::bf16 ? amx::panel_bf16 : amx::panel_i8), "");
          const std::vector<std::byte> hardware = task.c;
          ASSERT_EQ(task.run(dtype == DType::bf16 ? amx_emulated::panel_bf16 : amx_emulated::panel_i8), "");
          ASSERT_EQ(hardware, task.c) << task.s.text();
        }
}
#endif

}  // namespace
}  // namespace eitri
