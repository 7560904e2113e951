// Judging results. One pass over the elements, templated on the dtype, so that ten million of them
// take a fraction of a second; text is made for the first wrong element only.
#include "dispatch/oracle.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"

namespace eitri {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Reading one element of a row, exactly. i64 beyond 2^53 loses bits as a double; ids never get there.
template <class T> struct Plain {
  static double read(const void* row, int64_t i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(row) + i * int64_t{sizeof(T)}, sizeof(T));
    return static_cast<double>(value);
  }
};
template <class T, float (*kDecode)(T)> struct Coded {
  static double read(const void* row, int64_t i) {
    T code;
    std::memcpy(&code, static_cast<const char*>(row) + i * int64_t{sizeof(T)}, sizeof(T));
    return static_cast<double>(kDecode(code));
  }
};
template <float (*kDecode)(uint8_t)> struct Nibble {
  static double read(const void* row, int64_t i) {
    return kDecode(unpack_nibble(static_cast<const uint8_t*>(row)[i / 2], static_cast<int>(i & 1)));
  }
};

/// What a dtype does with values beyond its largest finite one.
struct Range {
  bool saturates;    // clamps; f32, f16 and bf16 go to infinity instead
  double max;        // largest finite magnitude
  double overflows;  // from this magnitude on, rounding gives infinity: max and half a step
};

Range range_of(DType dtype) {
  const double max = max_finite(dtype), step = epsilon(dtype);
  const bool saturates = dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16;
  return {saturates, max, max / (2 - step) * (2 - step / 2)};
}

/// The value as the dtype stores it, by the numerics contract.
double rounded(double value, DType dtype) {
  alignas(8) std::byte slot[8] = {};
  store_at(slot, dtype, 0, value);
  return load_at(slot, dtype, 0);
}

/// Error over allowed error; above 1 is wrong. Every comparison is written so that NaN is wrong.
double error_ratio(double got, double want, double allowed, const Range& range) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : kInfinity;
  if (std::isnan(got)) return kInfinity;
  if (range.saturates) {
    want = want > range.max ? range.max : want < -range.max ? -range.max : want;
  } else {
    if (std::isinf(got)) {
      const bool same_sign = std::signbit(got) == std::signbit(want);
      return same_sign && std::fabs(want) + allowed >= range.overflows ? 0 : kInfinity;
    }
    if (std::isinf(want)) return kInfinity;
  }
  const double error = std::fabs(got - want);
  if (error == 0) return 0;
  return allowed > 0 ? error / allowed : kInfinity;
}

struct Tally {
  int64_t wrong = 0, first = -1;
  double worst = 0, first_got = 0;
  void add(int64_t index, double got, double ratio) {
    if (ratio > worst) worst = ratio;
    if (ratio <= 1) return;
    if (wrong++ == 0) {
      first = index;
      first_got = got;
    }
  }
};

template <class Reader> Tally tally(const View& got, const Expected& expected, const Tolerance& tolerance) {
  const Range range = range_of(got.dtype);
  const bool exact = expected.bound.empty(), some_open = !expected.any.empty();
  const int64_t row_length = got.rank == 0 ? 1 : got.shape[got.rank - 1];
  const int64_t step = got.rank == 0 ? 1 : got.stride[got.rank - 1];
  const int64_t rows = row_length == 0 ? 0 : got.size() / row_length;
  Tally out;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t offset = 0, rest = r;  // elements from data to the row
    for (int d = got.rank - 2; d >= 0; --d) {
      offset += rest % got.shape[d] * got.stride[d];
      rest /= got.shape[d];
    }
    for (int64_t j = 0; j < row_length; ++j) {
      const int64_t i = r * row_length + j;
      const auto at = static_cast<size_t>(i);
      if (some_open && expected.any[at]) continue;
      const double value = Reader::read(got.data, offset + j * step), want = expected.value[at];
      if (exact) {
        // -0 equals 0: the sign of a zero is outside the contract of exact outputs.
        const bool equal = value == want || (std::isnan(value) && std::isnan(want)) || value == rounded(want, got.dtype);
        out.add(i, value, equal ? 0 : kInfinity);
      } else {
        const double allowed = tolerance.absolute + tolerance.relative * std::fabs(want) + tolerance.bound_eps * expected.bound[at];
        out.add(i, value, error_ratio(value, want, allowed, range));
      }
    }
  }
  return out;
}

Tally tally_any(const View& got, const Expected& expected, const Tolerance& tolerance) {
  switch (got.dtype) {
    case DType::f32: return tally<Plain<float>>(got, expected, tolerance);
    case DType::f16: return tally<Coded<uint16_t, decode_f16>>(got, expected, tolerance);
    case DType::bf16: return tally<Coded<uint16_t, decode_bf16>>(got, expected, tolerance);
    case DType::f8e4m3: return tally<Coded<uint8_t, decode_f8e4m3>>(got, expected, tolerance);
    case DType::f8e4m3fnuz: return tally<Coded<uint8_t, decode_f8e4m3fnuz>>(got, expected, tolerance);
    case DType::f8e5m2: return tally<Coded<uint8_t, decode_f8e5m2>>(got, expected, tolerance);
    case DType::f8e8m0: return tally<Coded<uint8_t, decode_e8m0>>(got, expected, tolerance);
    case DType::f4e2m1: return tally<Nibble<decode_f4e2m1>>(got, expected, tolerance);
    case DType::i4: return tally<Nibble<decode_i4>>(got, expected, tolerance);
    case DType::i8: return tally<Plain<int8_t>>(got, expected, tolerance);
    case DType::u8: return tally<Plain<uint8_t>>(got, expected, tolerance);
    case DType::i32: return tally<Plain<int32_t>>(got, expected, tolerance);
    case DType::i64: return tally<Plain<int64_t>>(got, expected, tolerance);
    case DType::none: break;
  }
  return {};
}

std::string place_of(const View& view, int64_t linear) {
  std::string index;
  for (int d = view.rank - 1; d >= 0; --d) {
    index = str(linear % view.shape[d], index.empty() ? "" : ", ", index);
    linear /= view.shape[d];
  }
  return str("[", index, "]");
}

double without_nan_sign(double value) { return std::isnan(value) ? std::fabs(value) : value; }

std::string describe(const View& got, const Expected& expected, const Tolerance& tolerance, const Tally& tally, const char* name) {
  const auto at = static_cast<size_t>(tally.first);
  const double want = expected.value[at];
  const std::string head =
      str(name, place_of(got, tally.first), " is ", without_nan_sign(tally.first_got), "; expected ", without_nan_sign(want));
  if (expected.bound.empty()) return head + " exactly";
  return str(head, " +- ", tolerance.absolute + tolerance.relative * std::fabs(want) + tolerance.bound_eps * expected.bound[at]);
}

}  // namespace

Verdict judge(const View& got, const Expected& expected, const Tolerance& tolerance, const char* name) {
  const auto broken = [](auto... parts) {  // the call cannot be judged at all
    return Verdict{.ok = false, .max_error_ratio = kInfinity, .wrong = 0, .first = str(parts...)};
  };
  if (!got.given()) {
    if (expected.value.empty()) return {};
    return broken(name, " is not given; expected ", expected.value.size(), " elements");
  }
  if (got.layout != Layout::strided) return broken(name, " is packed; expected a strided output");
  const auto size = static_cast<size_t>(got.size());
  if (expected.value.size() != size) return broken(name, " is ", got, "; the reference has ", expected.value.size(), " values");
  if (!expected.bound.empty() && expected.bound.size() != size)
    return broken(name, ": the reference has ", expected.bound.size(), " bounds for ", size, " values");
  if (!expected.any.empty() && expected.any.size() != size)
    return broken(name, ": the reference leaves open ", expected.any.size(), " of ", size, " values");

  const Tally result = tally_any(got, expected, tolerance);
  Verdict verdict{.ok = result.wrong == 0, .max_error_ratio = result.worst, .wrong = result.wrong, .first = {}};
  if (!verdict.ok) verdict.first = describe(got, expected, tolerance, result, name);
  return verdict;
}

}  // namespace eitri
