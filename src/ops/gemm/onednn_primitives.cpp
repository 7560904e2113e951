#include "ops/gemm/onednn_primitives.h"

#if defined(EITRI_HAVE_ONEDNN) && EITRI_HAVE_ONEDNN

#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/threads.h"
#include "base/hash.h"

namespace eitri::onednn {

namespace {

using dnnl::memory;

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}
dnnl::stream& stream() {
  static thread_local dnnl::stream s(cpu());
  return s;
}

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return memory::data_type::f32;
    case DType::bf16: return memory::data_type::bf16;
    case DType::f16: return memory::data_type::f16;
    case DType::i8: return memory::data_type::s8;
    case DType::i32: return memory::data_type::s32;
    default: return memory::data_type::undef;
  }
}

/// oneDNN sizes its work by OpenMP's thread count; ours may be another (EITRI_THREADS).
class Threads {
 public:
  explicit Threads(int threads) : before_(omp_get_max_threads()) {
    if (threads > 1) team_was_opened.store(true, std::memory_order_relaxed);
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~Threads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// Memory of this thread that grows and stays: scratchpads, copies. One per purpose.
enum Purpose { kScratchpad, kWeights, kRowsA, kRowsB, kPurposes };
std::byte* scratch(Purpose purpose, size_t bytes) {
  static thread_local std::array<Buffer, kPurposes> buffers;
  Buffer& buffer = buffers[purpose];
  if (buffer.size() < bytes) buffer = Buffer(bytes);
  return buffer.data();
}

dnnl::matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b, const memory::desc& bias, const memory::desc& c,
                                      bool relu) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops ops;
#if DNNL_VERSION_MAJOR >= 3
    ops.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
#else
    ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
#endif
    attr.set_post_ops(ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  return bias.get_size() == 0 ? dnnl::matmul::primitive_desc(cpu(), a, b, c, attr)
                              : dnnl::matmul::primitive_desc(cpu(), a, b, bias, c, attr);
#else
  return bias.get_size() == 0 ? dnnl::matmul::primitive_desc({a, b, c}, attr, cpu())
                              : dnnl::matmul::primitive_desc({a, b, bias, c}, attr, cpu());
#endif
}

memory::desc plain(int64_t rows, int64_t columns, DType dtype, int64_t row_stride) {
  return memory::desc({rows, columns}, type_of(dtype), memory::dims{row_stride, 1});
}
/// Rows of b are columns of the library's k x n matrix.
memory::desc plain_weights(int64_t n, int64_t k, DType dtype, int64_t row_stride) {
  return memory::desc({k, n}, type_of(dtype), memory::dims{1, row_stride});
}

/// The layout that the library wants for about m_hint rows.
memory::desc preferred(DType dtype, int64_t n, int64_t k, int64_t m_hint) {
  const DType c = dtype == DType::i8 ? DType::i32 : dtype;
  const memory::desc any({k, n}, type_of(dtype), memory::format_tag::any);
  return describe(plain(m_hint, k, dtype, k), any, {}, plain(m_hint, n, c, n), false).weights_desc();
}

// The description in front of packed weights: its length, a checksum, the library's own descriptor. Versions 3.0 to 3.3
// cannot write theirs down: they get the question again, and give the same answer to it (checked by the size).
struct Blob {
  uint64_t bytes, checksum;
  std::byte data[kDescriptionBytes - 16];
};
static_assert(sizeof(Blob) == kDescriptionBytes);
struct Question {
  int64_t n, k, m_hint, threads;
  uint64_t dtype, answer_bytes;
};

template <class Desc> std::vector<uint8_t> serialise(Desc& desc, const Question& question) {
  const void* data = &question;
  size_t bytes = sizeof question;
  if constexpr (requires { desc.get_blob(); }) return desc.get_blob();
#if DNNL_VERSION_MAJOR < 3
  data = &desc.data;
  bytes = sizeof desc.data;
#endif
  const auto* first = static_cast<const uint8_t*>(data);
  return std::vector<uint8_t>(first, first + bytes);
}
template <class Desc> Desc deserialise(const std::vector<uint8_t>& bytes) {
  if constexpr (requires(Desc & desc) { desc.get_blob(); }) {
    return Desc(bytes);
  } else {
    const auto copy_to = [&](auto& out) {
      if (bytes.size() != sizeof out) fail(Code::invalid_argument, "gemm: b is packed by another build of oneDNN; expected this one");
      std::memcpy(&out, bytes.data(), sizeof out);
    };
#if DNNL_VERSION_MAJOR < 3
    dnnl_memory_desc_t data;
    copy_to(data);
    return Desc(data);
#else
    Question question;
    copy_to(question);
    const Threads threads(static_cast<int>(question.threads));
    const Desc desc = preferred(static_cast<DType>(question.dtype), question.n, question.k, question.m_hint);
    if (desc.get_size() != question.answer_bytes)
      fail(Code::invalid_argument, "gemm: b is packed for another machine or level; expected weights packed by this process");
    return desc;
#endif
  }
}

void write_blob(memory::desc desc, const Question& question, std::byte* to) {
  const std::vector<uint8_t> bytes = serialise(desc, question);
  Blob blob = {};
  blob.bytes = bytes.size();
  if (blob.bytes > sizeof blob.data)
    fail(Code::internal, str("pack_weights: oneDNN's layout takes ", blob.bytes, " bytes; expected at most ", sizeof blob.data));
  std::memcpy(blob.data, bytes.data(), bytes.size());
  blob.checksum = hash_bytes(blob.data, blob.bytes);
  std::memcpy(to, &blob, sizeof blob);
}

#if DNNL_VERSION_MAJOR < 3
/// Counts within the arrays of the struct, and numbers whose products do not overflow: what the library's own functions take for granted.
bool is_sound(const dnnl_memory_desc_t& d) {
  const auto& blocking = d.format_desc.blocking;
  if (d.ndims != 2 || d.format_kind != dnnl_blocked || d.offset0 != 0 || blocking.inner_nblks < 0 || blocking.inner_nblks > 4) return false;
  for (int i = 0; i < blocking.inner_nblks; ++i)
    if (blocking.inner_idxs[i] < 0 || blocking.inner_idxs[i] > 1 || blocking.inner_blks[i] < 1 || blocking.inner_blks[i] > 1024)
      return false;
  for (int i = 0; i < 2; ++i) {
    int64_t reach = 0;
    if (d.dims[i] < 0 || d.padded_dims[i] < d.dims[i] || d.padded_offsets[i] != 0 || blocking.strides[i] < 0 ||
        __builtin_mul_overflow(d.padded_dims[i], blocking.strides[i], &reach) || reach > (int64_t{1} << 56))
      return false;
  }
  return true;
}
memory::dims dims_of(const memory::desc& d) { return is_sound(d.data) ? d.dims() : memory::dims(); }
memory::data_type type_in(const memory::desc& d) { return d.data_type(); }
#else
memory::dims dims_of(const memory::desc& d) {
  const memory::dims offsets = d.get_padded_offsets();
  const bool whole = std::all_of(offsets.begin(), offsets.end(), [](int64_t offset) { return offset == 0; });
  return whole && d.get_submemory_offset() == 0 && d.get_format_kind() == memory::format_kind::blocked ? d.get_dims() : memory::dims();
}
memory::data_type type_in(const memory::desc& d) { return d.get_data_type(); }
#endif

/// The layout must be one of [k, n] elements that begins at the first byte, whatever its maker wrote: a product trusts it with every
/// address. Its size is checked for each call (check_size).
void check_layout(const memory::desc& desc, DType dtype, int64_t n, int64_t k) {
  if (dims_of(desc) == memory::dims{k, n} && type_in(desc) == type_of(dtype)) return;
  fail(Code::invalid_argument, str("gemm: b is packed for oneDNN with a layout that is not of the ", dtype, "[", n, ", ", k,
                                   "] of its header; expected what pack_weights wrote"));
}
void check_size(const memory::desc& desc, int64_t matrix_bytes) {
  if (matrix_bytes >= static_cast<int64_t>(kDescriptionBytes) && desc.get_size() <= static_cast<size_t>(matrix_bytes) - kDescriptionBytes)
    return;
  fail(Code::invalid_argument, str("gemm: b is packed for oneDNN with a layout of ", desc.get_size(), " bytes; expected at most ",
                                   matrix_bytes - static_cast<int64_t>(kDescriptionBytes), ", as its header says"));
}

memory::desc read_blob(const std::byte* packed, DType dtype, int64_t n, int64_t k) {
  Blob blob;
  std::memcpy(&blob, packed, sizeof blob);
  if (blob.bytes > sizeof blob.data || blob.checksum != hash_bytes(blob.data, blob.bytes))
    fail(Code::invalid_argument, "gemm: b is packed for oneDNN with a damaged layout description; expected what pack_weights wrote");
  const auto* first = reinterpret_cast<const uint8_t*>(blob.data);
  auto desc = deserialise<memory::desc>(std::vector<uint8_t>(first, first + blob.bytes));
  check_layout(desc, dtype, n, k);
  return desc;
}

struct Key {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  uint64_t layout;  // checksum of a packed layout, 0 for plain weights
  DType a, c, bias;
  bool relu;
  int threads;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0;
    for (const int64_t v : {key.m, key.n, key.k, key.a_stride, key.b_stride, key.c_stride}) h = hash_mix(h, static_cast<uint64_t>(v));
    for (const DType d : {key.a, key.c, key.bias}) h = hash_mix(h, static_cast<uint64_t>(d));
    return hash_mix(hash_mix(h, key.layout), static_cast<uint64_t>(key.threads) * 2 + (key.relu ? 1 : 0));
  }
};
struct Entry {
  dnnl::matmul primitive;
  memory::desc a, b, c, bias, scratchpad;
  memory::desc stored;   // b as it lies in memory
  bool reorder = false;  // stored -> b before every product: no implementation reads `stored`
};

std::shared_ptr<const Entry> build(const Key& key, const std::byte* packed) {
  auto entry = std::make_shared<Entry>();
  entry->a = plain(key.m, key.k, key.a, key.a_stride);
  entry->c = plain(key.m, key.n, key.c, key.c_stride);
  if (key.bias != DType::none) entry->bias = memory::desc({1, key.n}, type_of(key.bias), memory::format_tag::ab);
  entry->stored = packed != nullptr ? read_blob(packed, key.a, key.n, key.k) : plain_weights(key.n, key.k, key.a, key.b_stride);
  const auto attempt = [&](const memory::desc& b) {
    const auto desc = describe(entry->a, b, entry->bias, entry->c, key.relu);
    entry->b = desc.weights_desc();
    entry->scratchpad = desc.scratchpad_desc();
    entry->primitive = dnnl::matmul(desc);
  };
  try {
    attempt(entry->stored);
  } catch (const dnnl::error&) {
    entry->reorder = true;
    attempt(memory::desc({key.k, key.n}, type_of(key.a), memory::format_tag::any));
  }
  return entry;
}

std::shared_ptr<const Entry> find(const Key& key, const std::byte* packed) {
  static thread_local Key last_key = {};
  static thread_local std::shared_ptr<const Entry> last;
  if (last != nullptr && last_key == key) return last;
  static std::shared_mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Entry>, KeyHash> table;
  constexpr size_t kMost = 1024;  // a server with ragged shapes rebuilds some: about 0.2 ms each
  {
    std::shared_lock lock(mutex);
    if (const auto it = table.find(key); it != table.end()) last = it->second;
    else last = nullptr;
  }
  if (last == nullptr) {
    last = build(key, packed);
    std::unique_lock lock(mutex);
    if (table.size() >= kMost) table.clear();
    table.emplace(key, last);
  }
  last_key = key;
  return last;
}

/// Rows that overlap (stride below the row's length) are legal inputs of ours, but not of the library.
View without_overlap(const View& rows, Purpose purpose) {
  if (rows.shape[0] <= 1 || rows.stride[0] >= rows.shape[1]) return rows;
  const auto bytes = static_cast<size_t>(bytes_for(rows.dtype, rows.shape[1]));
  std::byte* to = scratch(purpose, bytes * static_cast<size_t>(rows.shape[0]));
  for (int64_t r = 0; r < rows.shape[0]; ++r) std::memcpy(to + static_cast<size_t>(r) * bytes, row(rows, r), bytes);
  return View(to, rows.dtype, {rows.shape[0], rows.shape[1]});
}
int64_t stride_of(const View& rows) { return rows.shape[0] > 1 ? rows.stride[0] : rows.shape[1]; }

template <class Body> auto guarded(Body&& body) {
  try {
    return body();
  } catch (const dnnl::error& error) {
    fail(error.status == dnnl_out_of_memory ? Code::out_of_memory : Code::internal,
         str("gemm: oneDNN failed: ", error.message, " (status ", static_cast<int>(error.status), ")"));
  }
}

}  // namespace

uint16_t version() {
  const auto* v = dnnl::version();
  return static_cast<uint16_t>(v->major * 100 + v->minor);
}

std::string refusal(DType a, DType c) {
  struct Known {
    std::once_flag once;
    bool ok = false;
  };
  static std::array<std::array<Known, 16>, 16> known;
  Known& k = known[static_cast<size_t>(a)][static_cast<size_t>(c)];
  std::call_once(k.once, [&] {
    try {
      describe(plain(32, 64, a, 64), plain_weights(32, 64, a, 64), {}, plain(32, 32, c, 32), false);
      k.ok = true;
    } catch (const dnnl::error&) {
    }
  });
  const uint16_t v = version();
  // vpmaddubsw, which it takes there, holds sums of two products in 16 bits and saturates.
  if (a == DType::i8 && best_isa() < Isa::x86_avx512)
    return str("oneDNN ", v / 100, ".", v % 100, " has no exact product of i8 on this machine, which has no AVX512-VNNI");
  return k.ok ? std::string() : str("oneDNN ", v / 100, ".", v % 100, " has no product of ", a, " into ", c, " on this machine");
}

void multiply(const Product& product) {
  guarded([&] {
    const Threads threads(product.threads);
    const View a = without_overlap(product.a, kRowsA);
    const View b = product.packed != nullptr ? View() : without_overlap(product.b, kRowsB);
    Key key = {};
    key.m = a.shape[0];
    key.n = product.n;
    key.k = a.shape[1];
    key.a_stride = stride_of(a);
    key.c_stride = stride_of(product.c);
    key.a = a.dtype;
    key.c = product.c.dtype;
    key.bias = product.bias.dtype;
    key.relu = product.relu;
    key.threads = product.threads;
    if (product.packed != nullptr) std::memcpy(&key.layout, product.packed + offsetof(Blob, checksum), sizeof key.layout);
    else key.b_stride = stride_of(b);

    const auto entry = find(key, product.packed);
    if (product.packed != nullptr) check_size(entry->stored, product.packed_bytes);
    void* weights = product.packed != nullptr ? const_cast<std::byte*>(product.packed) + kDescriptionBytes : b.data;
    memory b_memory(entry->stored, cpu(), weights);
    if (entry->reorder) {
      memory wanted(entry->b, cpu(), scratch(kWeights, entry->b.get_size()));
      dnnl::reorder(b_memory, wanted).execute(stream(), b_memory, wanted);
      b_memory = wanted;
    }
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, memory(entry->a, cpu(), a.data)},
        {DNNL_ARG_WEIGHTS, b_memory},
        {DNNL_ARG_DST, memory(entry->c, cpu(), product.c.data)},
        {DNNL_ARG_SCRATCHPAD, memory(entry->scratchpad, cpu(), scratch(kScratchpad, entry->scratchpad.get_size()))}};
    if (product.bias.given()) args.emplace(DNNL_ARG_BIAS, memory(entry->bias, cpu(), product.bias.data));
    entry->primitive.execute(stream(), args);
    stream().wait();
  });
}

size_t packed_bytes(DType dtype, int64_t n, int64_t k, int64_t m_hint) {
  const DType c = dtype == DType::i8 ? DType::i32 : dtype;
  if (const std::string reason = refusal(dtype, c); !reason.empty())
    fail(Code::unsupported, str("pack_weights: format is onednn; expected panel32 (", reason, ")"));
  return guarded([&] { return kDescriptionBytes + (preferred(dtype, n, k, m_hint).get_size() + 63) / 64 * 64; });
}

void pack(const View& rows, int64_t m_hint, std::byte* to) {
  guarded([&] {
    const int64_t n = rows.shape[0], k = rows.shape[1];
    require(k == 1 || rows.stride[1] == 1, "pack_weights: weights is ", rows, "; expected inner stride 1 (format onednn)");
    const View apart = without_overlap(rows, kRowsB);
    const memory::desc wanted = preferred(rows.dtype, n, k, m_hint);
    const Threads threads(omp_get_max_threads());
    write_blob(wanted,
               {.n = n,
                .k = k,
                .m_hint = m_hint,
                .threads = omp_get_max_threads(),
                .dtype = static_cast<uint64_t>(rows.dtype),
                .answer_bytes = wanted.get_size()},
               to);
    memory from(plain_weights(n, k, rows.dtype, stride_of(apart)), cpu(), apart.data);
    memory into(wanted, cpu(), to + kDescriptionBytes);
    dnnl::reorder(from, into).execute(stream(), from, into);
    stream().wait();
  });
}

void unpack(const std::byte* packed, int64_t packed_bytes, DType dtype, int64_t n, int64_t k, std::byte* rows) {
  guarded([&] {
    const Threads threads(omp_get_max_threads());
    if (dtype != DType::i8) {
      const memory::desc stored = read_blob(packed, dtype, n, k);
      check_size(stored, packed_bytes);
      memory from(stored, cpu(), const_cast<std::byte*>(packed) + kDescriptionBytes);
      memory into(plain_weights(n, k, dtype, k), cpu(), rows);
      dnnl::reorder(from, into).execute(stream(), from, into);
      stream().wait();
      return;
    }
    constexpr int64_t kRows = 64;
    std::vector<int8_t> identity(static_cast<size_t>(kRows * k));
    std::vector<int32_t> values(static_cast<size_t>(kRows * n));
    for (int64_t first = 0; first < k; first += kRows) {
      const int64_t count = std::min(kRows, k - first);
      std::fill(identity.begin(), identity.end(), int8_t{0});
      for (int64_t i = 0; i < count; ++i) identity[static_cast<size_t>(i * k + first + i)] = 1;
      multiply({.a = View(identity.data(), DType::i8, {count, k}),
                .b = {},
                .packed = packed,
                .packed_bytes = packed_bytes,
                .n = n,
                .c = View(values.data(), DType::i32, {count, n}),
                .threads = omp_get_max_threads()});
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < n; ++j) rows[j * k + first + i] = static_cast<std::byte>(values[static_cast<size_t>(i * n + j)]);
    }
  });
}

}  // namespace eitri::onednn

#endif
