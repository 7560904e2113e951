#include "base/view.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"

namespace eitri {

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;

char* at(const void* data, DType dtype, int64_t offset) {
  const int64_t width = bits(dtype);
  const int64_t bytes = width < 8 ? offset / 2 : offset * (width / 8);
  return static_cast<char*>(const_cast<void*>(data)) + bytes;
}

bool is_empty(const View& view) { return std::find(view.shape, view.shape + view.rank, 0) != view.shape + view.rank; }

int64_t offset_of(const View& view, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  int i = 0;
  for (int64_t position : index) offset += position * view.stride[i++];
  return offset;
}

/// Bytes of an element, 1 for the packed dtypes.
int64_t element_alignment(DType dtype) { return std::max(1, bits(dtype) / 8); }

/// The bytes that the view spans fit in kMaxBytes, computed without overflow.
bool span_fits(const View& view) {
  int64_t elements = 1;
  for (int i = 0; i < view.rank; ++i) {
    if (view.layout == Layout::packed) {
      if (__builtin_mul_overflow(elements, view.shape[i], &elements)) return false;
      continue;
    }
    int64_t reach = 0;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.stride[i], &reach)) return false;
    if (__builtin_add_overflow(elements, reach, &elements)) return false;
  }
  return elements <= kMaxBytes / element_alignment(view.dtype);
}

/// double -> float such that a later rounding to a narrower format equals one rounding of the
/// double: truncate, and keep "something was cut off" in the last bit (round to odd).
float to_odd_float(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  uint32_t magnitude = float_bits(nearest) & 0x7fffffffu;
  const double magnitude_value = static_cast<double>(bits_float(magnitude));
  if (magnitude_value > std::fabs(value)) --magnitude;  // infinity becomes the largest finite
  return std::copysign(bits_float(magnitude | 1u), nearest);
}

template <class T> T load_as(const void* pointer) {
  T value;
  std::memcpy(&value, pointer, sizeof value);
  return value;
}
template <class T> void store_as(void* pointer, T value) { std::memcpy(pointer, &value, sizeof value); }

void store_nibble(void* data, int64_t index, uint8_t code) {
  auto* byte = reinterpret_cast<uint8_t*>(at(data, DType::i4, index & ~int64_t{1}));
  const bool high = (index & 1) != 0;
  *byte = high ? pack_nibbles(*byte, code) : pack_nibbles(code, unpack_nibble(*byte, 1));
}

uint8_t load_nibble(const void* data, int64_t index) {
  const auto pair = load_as<uint8_t>(at(data, DType::i4, index & ~int64_t{1}));
  return unpack_nibble(pair, static_cast<int>(index & 1));
}

template <class T> T to_integer(double value) {
  if (std::isnan(value)) return 0;
  const double rounded = std::nearbyint(value);
  if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) {
    return std::numeric_limits<T>::max();
  }
  return static_cast<T>(rounded);
}

}  // namespace

bool is_contiguous(const View& view) {
  if (view.layout == Layout::packed) return false;
  if (is_empty(view)) return true;
  int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] != 1 && view.stride[i] != step) return false;
    step *= view.shape[i];
  }
  return true;
}

bool has_unit_inner_stride(const View& view) { return view.rank == 0 || view.shape[view.rank - 1] <= 1 || view.stride[view.rank - 1] == 1; }

int64_t span_bytes(const View& view) {
  if (!view.given() || is_empty(view)) return 0;
  if (view.layout == Layout::packed) return bytes_for(view.dtype, view.size());
  int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.shape[i] - 1) * view.stride[i];
  return bytes_for(view.dtype, last + 1);
}

void* row(const View& view, int64_t index) { return at(view.data, view.dtype, index * view.stride[0]); }

View slice(const View& view, int64_t index) {
  View out = view;
  out.data = row(view, index);
  --out.rank;
  std::copy(view.shape + 1, view.shape + kMaxRank, out.shape);
  std::copy(view.stride + 1, view.stride + kMaxRank, out.stride);
  out.shape[kMaxRank - 1] = out.stride[kMaxRank - 1] = 0;
  return out;
}

View rows(const View& view, int64_t begin, int64_t end) {
  View out = view;
  out.data = row(view, begin);
  out.shape[0] = end - begin;
  return out;
}

void detail::check_view_fully(const View& view, const char* op, const char* arg, int rank) {
  const auto expect = [&](bool ok, const auto&... wanted) { require(ok, op, ": ", arg, " is ", view, "; expected ", wanted...); };
  expect(view.given(), "a tensor of rank ", rank);
  expect(bits(view.dtype) != 0, "a dtype that eitri knows, not number ", int(view.dtype));
  expect(view.rank == rank, "rank ", rank);
  expect(view.layout == Layout::strided || view.layout == Layout::packed, "a layout that eitri knows, not number ", int(view.layout));
  for (int i = 0; i < rank; ++i) {
    expect(view.shape[i] >= 0, "extents >= 0 (dimension ", i, ")");
    expect(view.layout == Layout::packed || view.stride[i] >= 0, "strides >= 0 (dimension ", i, ")");
  }
  if (is_empty(view)) return;  // nothing is addressed: pointer and strides are free

  expect(span_fits(view), "at most 2^62 bytes from the first to the last element");
  expect(view.data != nullptr, "data that is not null (the tensor has elements)");
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  const int64_t alignment = element_alignment(view.dtype);
  expect(address % static_cast<uintptr_t>(alignment) == 0, "data aligned to ", alignment, " bytes");
  if (is_packed(view.dtype) && view.layout == Layout::strided && rank > 0) {
    expect(has_unit_inner_stride(view), "inner stride 1 (two elements share a byte)");
    for (int i = 0; i < rank - 1; ++i) {
      expect(view.shape[i] == 1 || view.stride[i] % 2 == 0, "even outer strides (two elements share a byte; dimension ", i, ")");
    }
  }
}

void detail::check_output_fully(const View& view, const char* op, const char* arg, int rank) {
  check_view_fully(view, op, arg, rank);
  if (view.layout == Layout::packed || is_empty(view)) return;
  int order[kMaxRank] = {};  // dimensions by rising stride
  int dimensions = 0;
  for (int i = 0; i < rank; ++i) {
    if (view.shape[i] <= 1) continue;
    int place = dimensions++;
    for (; place > 0 && view.stride[order[place - 1]] > view.stride[i]; --place) {
      order[place] = order[place - 1];
    }
    order[place] = i;
  }
  int64_t reach = 0;  // offset of the last element that the dimensions seen so far address
  for (int i = 0; i < dimensions; ++i) {
    require(view.stride[order[i]] > reach, op, ": ", arg, " is ", view,
            "; expected strides that keep elements apart (it is written; dimension ", order[i], ")");
    reach += (view.shape[order[i]] - 1) * view.stride[order[i]];
  }
}

double load(const View& view, std::initializer_list<int64_t> index) { return load_at(view.data, view.dtype, offset_of(view, index)); }

void store(const View& view, std::initializer_list<int64_t> index, double value) {
  store_at(view.data, view.dtype, offset_of(view, index), value);
}

double load_at(const void* data, DType dtype, int64_t index) {
  const char* pointer = at(data, dtype, index);
  switch (dtype) {
    case DType::f32: return double{load_as<float>(pointer)};
    case DType::f16: return double{decode_f16(load_as<uint16_t>(pointer))};
    case DType::bf16: return double{decode_bf16(load_as<uint16_t>(pointer))};
    case DType::f8e4m3: return double{decode_f8e4m3(load_as<uint8_t>(pointer))};
    case DType::f8e4m3fnuz: return double{decode_f8e4m3fnuz(load_as<uint8_t>(pointer))};
    case DType::f8e5m2: return double{decode_f8e5m2(load_as<uint8_t>(pointer))};
    case DType::f8e8m0: return double{decode_e8m0(load_as<uint8_t>(pointer))};
    case DType::f4e2m1: return double{decode_f4e2m1(load_nibble(data, index))};
    case DType::i4: return double{decode_i4(load_nibble(data, index))};
    case DType::i8: return double(load_as<int8_t>(pointer));
    case DType::u8: return double(load_as<uint8_t>(pointer));
    case DType::i32: return double(load_as<int32_t>(pointer));
    case DType::i64: return double(load_as<int64_t>(pointer));
    case DType::none: break;
  }
  fail(Code::internal, str("load: dtype is ", dtype, "; expected a dtype with elements"));
}

void store_at(void* data, DType dtype, int64_t index, double value) {
  char* pointer = at(data, dtype, index);
  const float narrow = to_odd_float(value);
  switch (dtype) {
    case DType::f32: return store_as(pointer, static_cast<float>(value));
    case DType::f16: return store_as(pointer, encode_f16(narrow));
    case DType::bf16: return store_as(pointer, encode_bf16(narrow));
    case DType::f8e4m3: return store_as(pointer, encode_f8e4m3(narrow));
    case DType::f8e4m3fnuz: return store_as(pointer, encode_f8e4m3fnuz(narrow));
    case DType::f8e5m2: return store_as(pointer, encode_f8e5m2(narrow));
    case DType::f8e8m0: return store_as(pointer, encode_e8m0(narrow));
    case DType::f4e2m1: return store_nibble(data, index, encode_f4e2m1(narrow));
    case DType::i4: return store_nibble(data, index, encode_i4(narrow));
    case DType::i8: return store_as(pointer, encode_i8(narrow));
    case DType::u8: return store_as(pointer, to_integer<uint8_t>(value));
    case DType::i32: return store_as(pointer, to_integer<int32_t>(value));
    case DType::i64: return store_as(pointer, to_integer<int64_t>(value));
    case DType::none: break;
  }
  fail(Code::internal, str("store: dtype is ", dtype, "; expected a dtype with elements"));
}

}  // namespace eitri
