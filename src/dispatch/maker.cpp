// Tensors for tests, benchmarks and the tuner. Data depends on (seed, tensor name, element index) alone: neither on the
// number of threads nor on strides, guards or the order of requests, so two variants of a call hold the same numbers.
#include "dispatch/maker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cpu/threads.h"
#include "base/hash.h"

namespace eitri {

namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kAlignment = 64;
// Values come from a table that 16 random bits index: one multiply per four elements and one load each.
constexpr int64_t kTableSize = 1 << 16;
constexpr int64_t kParallelFrom = 1 << 20;  // elements

/// What gaps and guards hold: NaN where the dtype has one, yet unlike anything that a kernel would write (payload 0xa5).
std::byte canary_byte(DType dtype, size_t offset) {
  switch (dtype) {
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::f8e8m0: return std::byte{0xff};
    case DType::f8e4m3fnuz: return std::byte{0x80};
    case DType::f4e2m1:
    case DType::i4:
    case DType::i8:
    case DType::u8: return std::byte{0xa5};
    default: return std::byte{offset % 2 == 0 ? uint8_t{0xa5} : uint8_t{0xff}};
  }
}

/// What outputs hold before a call: NaN, or an integer that no kernel makes (-128 and -8 are outside the code range).
std::byte poison_byte(DType dtype) {
  switch (dtype) {
    case DType::f8e4m3fnuz:
    case DType::i8: return std::byte{0x80};
    case DType::i4: return std::byte{0x88};
    case DType::u8:
    case DType::i32:
    case DType::i64: return std::byte{0xa5};
    default: return std::byte{0xff};
  }
}

/// The x with P(N(0, 1) < x) = p, by bisection: runs once per table entry.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 40; ++i) {
    const double x = (low + high) / 2;
    (std::erfc(-x * M_SQRT1_2) / 2 < p ? low : high) = x;
  }
  return (low + high) / 2;
}

/// Quantiles of N(0, 1), one per index: every value is equally likely.
const std::vector<float>& normal_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(kTableSize);
    parallel(max_threads(), [&](int thread, int threads) {  // a tenth of a second on one
      const Span mine = split(kTableSize / 2, thread, threads);
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const auto x = static_cast<float>(normal_quantile((static_cast<double>(i) + 0.5) / kTableSize));
        values[static_cast<size_t>(i)] = x;
        values[static_cast<size_t>(kTableSize - 1 - i)] = -x;
      }
    });
    return values;
  }();
  return table;
}

/// The value of table entry `index` for this fill.
double value_of(Fill how, DType dtype, int64_t last_extent, uint32_t index) {
  const double uniform = static_cast<double>(index) / kTableSize;  // [0, 1)
  switch (how) {
    case Fill::normal: return normal_table()[index];
    case Fill::weight: return normal_table()[index] / std::sqrt(static_cast<double>(std::max<int64_t>(1, last_extent)));
    case Fill::code:
      if (is_float(dtype)) return normal_table()[index] * max_finite(dtype) / 4;
      if (dtype == DType::u8) return std::floor(uniform * 256);
      return std::floor(uniform * (2 * (dtype == DType::i4 ? 7 : 127) + 1)) - (dtype == DType::i4 ? 7 : 127);
    case Fill::scale: return std::exp2(2 * uniform - 1) * 1e-2;
    case Fill::probability: return uniform + 1.0 / kTableSize;
    case Fill::zero: return 0;
  }
  return 0;
}

struct Elements {
  uint64_t key;
  uint32_t operator[](int64_t i) const {
    return static_cast<uint32_t>(mix(key + static_cast<uint64_t>(i >> 2)) >> (16 * (i & 3))) & 0xffffu;
  }
};

int64_t row_length(const View& view) { return view.rank == 0 ? 1 : view.shape[view.rank - 1]; }
int64_t row_count(const View& view) { return row_length(view) == 0 ? 0 : view.size() / row_length(view); }

/// Elements from data to row r, rows counted in logical order; views made here ascend in memory in that order.
int64_t row_offset(const View& view, int64_t r) {
  int64_t offset = 0;
  for (int d = view.rank - 2; d >= 0; --d) {
    offset += r % view.shape[d] * view.stride[d];
    r /= view.shape[d];
  }
  return offset;
}

template <class T> void fill_from(const std::vector<T>& table, const View& view, const Elements& random, Span range) {
  const int64_t length = row_length(view);
  auto* data = static_cast<T*>(view.data);
  for (int64_t i = range.begin; i < range.end;) {
    const int64_t r = i / length, end = std::min(range.end, (r + 1) * length);
    T* out = data + row_offset(view, r) - r * length;
    while (i < end) {
      const int64_t word_end = std::min(end, (i & ~int64_t{3}) + 4);
      uint64_t word = mix(random.key + static_cast<uint64_t>(i >> 2)) >> (16 * (i & 3));
      for (; i < word_end; ++i, word >>= 16) out[i] = table[word & 0xffffu];
    }
  }
}

template <class T> void fill_big(const View& view, Fill how, const Elements& random) {
  std::vector<T> table(kTableSize);
  for (uint32_t i = 0; i < kTableSize; ++i) store_at(table.data(), view.dtype, i, value_of(how, view.dtype, row_length(view), i));
  const int64_t size = view.size();
  parallel(size < kParallelFrom ? 1 : max_threads(),
           [&](int thread, int threads) { fill_from(table, view, random, split(size, thread, threads, 4096)); });
}

/// Two elements a byte; rows begin at whole bytes, and their last extent is even.
void fill_packed(const View& view, Fill how, const Elements& random) {
  std::vector<uint8_t> table(kTableSize);
  for (uint32_t i = 0; i < kTableSize; ++i) store_at(&table[i], view.dtype, 0, value_of(how, view.dtype, row_length(view), i));
  const int64_t length = row_length(view);
  parallel(max_threads(), [&](int thread, int threads) {
    const Span mine = split(row_count(view), thread, threads);
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      auto* const out = static_cast<uint8_t*>(view.data) + row_offset(view, r) / 2;
      for (int64_t j = 0; j < length; j += 2)
        out[j / 2] = static_cast<uint8_t>(table[random[r * length + j]] | table[random[r * length + j + 1]] << 4);
    }
  });
}

/// Of many bytes, at the speed of memory: lanes that do not wait for one another, blocks that threads share out. A word that changes
/// changes its lane, for every step is a bijection.
uint64_t fingerprint(const std::byte* data, size_t size) {
  constexpr size_t kLanes = 8, kBlock = size_t{1} << 20;
  const size_t blocks = (size + kBlock - 1) / kBlock;
  std::vector<uint64_t> of_block(blocks);
  const auto look_at = [&](size_t block) {
    const std::byte* const begin = data + block * kBlock;
    const size_t bytes = std::min(kBlock, size - block * kBlock), whole = bytes / (8 * kLanes) * (8 * kLanes);
    std::array<uint64_t, kLanes> lane;
    for (size_t i = 0; i < kLanes; ++i) lane[i] = mix(i + 1);
    for (size_t at = 0; at < whole; at += 8 * kLanes)
      for (size_t i = 0; i < kLanes; ++i) {
        uint64_t word;
        std::memcpy(&word, begin + at + 8 * i, 8);
        lane[i] = std::rotl(lane[i] ^ word, 29) * 0xe9846af9b1a615dULL;
      }
    uint64_t hash = hash_bytes(begin + whole, bytes - whole);
    for (const uint64_t l : lane) hash = hash_mix(hash, l);
    of_block[block] = hash;
  };
  parallel(blocks < 4 ? 1 : max_threads(), [&](int thread, int threads) {
    for (auto block = static_cast<size_t>(thread); block < blocks; block += static_cast<size_t>(threads)) look_at(block);
  });
  uint64_t hash = hash_mix(0, size);
  for (const uint64_t h : of_block) hash = hash_mix(hash, h);
  return hash;
}

/// Bytes of the buffer that hold elements of the tensor, row by row, begin ascending.
template <class F> void for_each_run(const View& view, size_t lead, F&& run) {
  const int64_t length = row_length(view), rows = row_count(view);
  const auto bytes = static_cast<size_t>(bytes_for(view.dtype, length));
  for (int64_t r = 0; r < rows; ++r) {
    const size_t begin = lead + static_cast<size_t>(bytes_for(view.dtype, row_offset(view, r)));
    run(begin, begin + bytes);
  }
}

/// The bytes of the buffer around and between those runs.
template <class F> void for_each_gap(const View& view, size_t lead, size_t buffer_bytes, F&& gap) {
  size_t from = 0;
  for_each_run(view, lead, [&](size_t begin, size_t end) {
    if (begin > from) gap(from, begin);
    from = end;
  });
  if (buffer_bytes > from) gap(from, buffer_bytes);
}

}  // namespace

View Maker::place(const char* name, DType dtype, std::initializer_list<int64_t> shape, bool gaps, bool is_output) {
  auto tensor = std::make_shared<Tensor>();
  tensor->name = name;
  tensor->is_output = is_output;
  View view(nullptr, dtype, shape);
  const bool packed = is_packed(dtype);
  // Odd gaps, so that rows start at every alignment that the dtype allows; even ones where elements share a byte.
  if (gaps && view.rank >= 2 && view.size() > 0) {
    int64_t step = view.shape[view.rank - 1];
    if (packed) step += step % 2;
    for (int d = view.rank - 2; d >= 0; --d) {
      step += packed ? 6 : 7;
      view.stride[d] = step;
      step *= view.shape[d];
    }
  } else if (packed && view.rank >= 2 && view.shape[view.rank - 1] % 2 != 0) {
    fail(Code::invalid_argument, str("maker: ", name, " is ", view, "; expected an even last extent of a packed dtype"));
  }
  tensor->bytes = static_cast<size_t>(span_bytes(view));
  tensor->lead = options_.guards ? kGuardBytes : 0;
  if (gaps) tensor->lead += static_cast<size_t>(std::max(1, bits(dtype) / 8));
  const size_t tail = options_.guards ? kGuardBytes : 0;
  tensor->buffer = Buffer(std::max(kAlignment, tensor->lead + tensor->bytes + tail));
  view.data = tensor->buffer.data() + tensor->lead;
  tensor->view = view;

  tensor->canaries = options_.guards || gaps;
  tensor->zero_pads = options_.zero_pads && !is_output;
  if (tensor->canaries && !tensor->zero_pads) {  // a fresh buffer holds zeros
    std::byte* data = tensor->buffer.data();
    for_each_gap(view, tensor->lead, tensor->buffer.size(), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) data[i] = canary(*tensor, i);
    });
  }
  if (is_output && options_.poison) poison(*tensor);
  tensors_.push_back(std::move(tensor));
  return view;
}

void Maker::fill(const char* name, const View& view, Fill how) {
  if (how == Fill::zero || view.size() == 0) return;  // a fresh buffer holds zeros
  const Elements random{hash_mix(options_.seed, hash_bytes(name))};
  const bool big = view.size() >= kTableSize;
  if (big && is_packed(view.dtype) && row_length(view) % 2 == 0) return fill_packed(view, how, random);
  if (big && bits(view.dtype) == 8) return fill_big<uint8_t>(view, how, random);
  if (big && bits(view.dtype) == 16) return fill_big<uint16_t>(view, how, random);
  if (big && bits(view.dtype) == 32) return fill_big<uint32_t>(view, how, random);
  const int64_t length = row_length(view), rows = row_count(view);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t offset = row_offset(view, r);
    for (int64_t j = 0; j < length; ++j)
      store_at(view.data, view.dtype, offset + j, value_of(how, view.dtype, length, random[r * length + j]));
  }
}

View Maker::input(const char* name, DType dtype, std::initializer_list<int64_t> shape, Fill how) {
  const View view = place(name, dtype, shape, options_.strided, false);
  fill(name, view, how);
  return view;
}

View Maker::dense(const char* name, DType dtype, std::initializer_list<int64_t> shape, Fill how) {
  const View view = place(name, dtype, shape, false, false);
  fill(name, view, how);
  return view;
}

View Maker::output(const char* name, DType dtype, std::initializer_list<int64_t> shape) {
  return place(name, dtype, shape, options_.strided, true);
}

std::byte* Maker::raw(const char* name, size_t bytes) {
  return static_cast<std::byte*>(place(name, DType::u8, {static_cast<int64_t>(bytes)}, false, false).data);
}

View Maker::shared(const std::string& key, const std::function<View()>& make) {
  for (const Maker* lender : lenders_) {
    if (lender->options_.seed != options_.seed || lender->options_.zero_pads != options_.zero_pads) continue;
    for (const Shared& s : lender->shared_) {
      if (s.key != key) continue;
      borrowed_.insert(borrowed_.end(), s.tensors.begin(), s.tensors.end());
      shared_.push_back(s);
      return s.view;
    }
  }
  const auto before = static_cast<std::ptrdiff_t>(tensors_.size());
  const View view = make();
  shared_.push_back({key, view, {tensors_.begin() + before, tensors_.end()}});
  return view;
}

std::byte Maker::canary(const Tensor& tensor, size_t offset) {
  return tensor.zero_pads ? std::byte{0} : canary_byte(tensor.view.dtype, offset);
}

void Maker::poison(Tensor& tensor) {
  const auto value = static_cast<int>(poison_byte(tensor.view.dtype));
  for_each_run(tensor.view, tensor.lead, [&](size_t begin, size_t end) { std::memset(tensor.buffer.data() + begin, value, end - begin); });
}

void Maker::poison_outputs() {
  for (const auto& tensor : tensors_)
    if (tensor->is_output) poison(*tensor);
}

std::vector<Mirror::Range> Maker::own_ranges() const {
  std::vector<Mirror::Range> out;
  for (const auto& tensor : tensors_) out.push_back({tensor->buffer.data(), tensor->buffer.size()});
  return out;
}
std::vector<Mirror::Range> Maker::ranges() const {
  std::vector<Mirror::Range> out = own_ranges();
  for (const auto& tensor : borrowed_) out.push_back({tensor->buffer.data(), tensor->buffer.size()});
  return out;
}

void Maker::seal() {
  for (const auto& tensor : tensors_)
    if (!tensor->is_output) tensor->seal = fingerprint(tensor->buffer.data() + tensor->lead, tensor->bytes) | 1;
}

std::string Maker::damage(const Tensor& tensor) {
  const std::byte* data = tensor.buffer.data();
  const size_t start = tensor.lead, stop = tensor.lead + tensor.bytes;
  std::string found;
  if (tensor.canaries) {
    for_each_gap(tensor.view, tensor.lead, tensor.buffer.size(), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end && found.empty(); ++i) {
        if (data[i] == canary(tensor, i)) continue;
        found = i < start   ? str(start - i, " bytes before its start")
                : i >= stop ? str(i - stop, " bytes after its end")
                            : str("in the gap between rows, at byte ", i - start);
      }
    });
    if (!found.empty()) return str(tensor.name, " (", tensor.view, ") was overwritten ", found);
  }
  if (tensor.seal != 0 && tensor.seal != (fingerprint(data + start, tensor.bytes) | 1))
    return str(tensor.name, " (", tensor.view, ") is an input, but was written to");
  return {};
}

std::string Maker::damage() const {
  for (const auto& tensor : tensors_)
    if (std::string found = damage(*tensor); !found.empty()) return found;
  return {};
}
std::string Maker::damage_of_outputs() const {
  for (const auto& tensor : tensors_)
    if (tensor->is_output)
      if (std::string found = damage(*tensor); !found.empty()) return found;
  return {};
}

}  // namespace eitri
