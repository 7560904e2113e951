// gemm.library.cublaslt and cublaslt_f8: the matrix product by NVIDIA's library. What the library's epilogue does not do (gates, activations, scales
// by row, a bias of another type) is done by gemm_epilogue of simt.cuh on fp32 or i32 sums in workspace; products of bf16, f16, f32
// and of f8e4m3 with one scale a tensor go straight to c. The knob is the index in the library's list of algorithms, best first by
// its own model; where the list is shorter, the last one runs.
//
// c = a b^T by rows is c^T = b a^T by columns, which is how the library counts: its A is our b, transposed.
#include "ops/gemm/gpu_library.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "backend/cuda/cuda.h"
#include "ops/gemm/cublaslt_library.h"
#include "ops/gemm/simt.h"

namespace eitri {
namespace cublaslt {

namespace {

constexpr int kMostAlgorithms = 8;
constexpr int kIndices[] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr Knob kKnobs[] = {{"algorithm", kIndices, true}};
constexpr size_t kLibraryWorkspace = size_t{32} << 20;

DataType data_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return kF16;
    case DType::bf16: return kBf16;
    case DType::i8: return kI8;
    case DType::i32: return kI32;
    case DType::f8e4m3: return kF8e4m3;
    default: return kF32;
  }
}

void require_ok(int status, const char* what) {
  if (status != 0) fail(Code::device_error, str("cuBLASLt: ", what, ": status ", status));
}

/// The library writes c itself.
bool is_direct(const Gemm::Problem& p) {
  if (p.gate != GateLayout::none || p.activation != ActivationKind::none || p.a == DType::i8) return false;
  if (p.a == DType::f8e4m3 && (p.a_quant != Quant::per_tensor || p.b_quant != Quant::per_tensor)) return false;
  return p.bias == DType::none || (p.bias == p.c && p.batch == 1);
}
DType output_type(const Gemm::Problem& p) { return is_direct(p) ? p.c : p.a == DType::i8 ? DType::i32 : DType::f32; }

/// What decides which algorithms there are, beside the problem.
struct Layouts {
  int64_t a_stride, b_stride, d_stride;  // of rows, in elements
  int64_t a_matrix, b_matrix, d_matrix;  // of the batch
  uint32_t a_align, b_align, d_align;    // bytes, of every row
  bool operator==(const Layouts&) const = default;
};
uint32_t alignment(const void* data, int64_t row_bytes, int64_t matrix_bytes) {
  const uint64_t all = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(row_bytes) | static_cast<uint64_t>(matrix_bytes) | 256;
  return static_cast<uint32_t>(all & (~all + 1));
}
struct Matrix {
  const void* data;
  int64_t stride, matrix;  // elements
};
Matrix matrix_of(const View& view) { return {view.data, view.stride[view.rank - 2], view.rank == 3 ? view.stride[0] : 0}; }
Layouts layouts_of(const Matrix& a, const Matrix& b, const Matrix& d, const Gemm::Problem& p) {
  const int64_t in = bits(p.a) / 8, out = bits(output_type(p)) / 8;
  // Of a single row the stride does not matter, and may be anything.
  const auto stride = [](const Matrix& m, int64_t rows, int64_t columns) { return rows == 1 ? std::max<int64_t>(columns, 1) : m.stride; };
  Layouts l{.a_stride = stride(a, p.m, p.k),
            .b_stride = stride(b, p.n, p.k),
            .d_stride = stride(d, p.m, p.n),
            .a_matrix = a.matrix,
            .b_matrix = b.matrix,
            .d_matrix = d.matrix,
            .a_align = 0,
            .b_align = 0,
            .d_align = 0};
  l.a_align = alignment(a.data, l.a_stride * in, l.a_matrix * in);
  l.b_align = alignment(b.data, l.b_stride * in, l.b_matrix * in);
  l.d_align = alignment(d.data, l.d_stride * out, l.d_matrix * out);
  return l;
}
Layouts contiguous(const Gemm::Problem& p) {
  return layouts_of({nullptr, p.k, p.m * p.k}, {nullptr, p.k, p.n * p.k}, {nullptr, p.n, p.m * p.n}, p);
}

/// A handle for each device, for the life of the process.
Handle handle_of(const Device& device) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::lock_guard lock(mutex);
  Handle& handle = handles[device.id.index];
  if (handle == nullptr) {
    const cuda::ContextScope context(device);
    const cuda::RelaxedCapture relaxed;  // it may allocate; that is no part of anybody's graph
    require_ok(library()->create(&handle), "create");
  }
  return handle;
}

/// Descriptions of one product, and the algorithms for it. Pointers of bias and scales are set for each call, so a Product belongs to
/// one thread.
class Product {
 public:
  Product(const Gemm::Problem& p, const Layouts& l, const Device& device) : handle_(handle_of(device)) {
    const Library& lib = *library();
    const bool integer = p.a == DType::i8;
    require_ok(lib.desc_create(&desc_, integer ? kCompute32I : kCompute32F, integer ? kI32 : kF32), "describe a product");
    require_ok(lib.desc_set(desc_, kTransA, &kTransposed, sizeof kTransposed), "transpose");
    if (is_direct(p) && p.bias != DType::none) {
      const int type = data_type(p.bias);
      require_ok(lib.desc_set(desc_, kEpilogue, &kEpilogueBias, sizeof kEpilogueBias), "epilogue");
      require_ok(lib.desc_set(desc_, kBiasType, &type, sizeof type), "type of the bias");
    }
    b_ = layout(data_type(p.a), p.k, p.n, l.b_stride, l.b_matrix, p.batch);
    a_ = layout(data_type(p.a), p.k, p.m, l.a_stride, l.a_matrix, p.batch);
    d_ = layout(data_type(output_type(p)), p.n, p.m, l.d_stride, l.d_matrix, p.batch);
    find_algorithms(l);
  }
  ~Product() {
    const Library& lib = *library();
    lib.desc_destroy(desc_);
    for (const Handle h : {a_, b_, d_})
      if (h != nullptr) lib.layout_destroy(h);
  }
  Product(const Product&) = delete;

  int algorithms() const { return count_; }
  bool ran[kMostAlgorithms] = {};  // by this thread
  void set(DescAttribute attribute, const void* pointer) const {
    require_ok(library()->desc_set(desc_, attribute, &pointer, sizeof pointer), "set a pointer");
  }
  void run(int index, bool integer, const void* a, const void* b, void* d, std::byte* workspace, Stream stream) const {
    const float one = 1, zero = 0;
    const int32_t whole_one = 1, whole_zero = 0;
    const void* const alpha = integer ? static_cast<const void*>(&whole_one) : &one;
    const void* const beta = integer ? static_cast<const void*>(&whole_zero) : &zero;
    const Heuristic& choice = found_[std::min(index, count_ - 1)];
    require_ok(
        library()->matmul(handle_, desc_, alpha, b, b_, a, a_, beta, d, d_, d, d_, &choice.algorithm, workspace, kLibraryWorkspace, stream),
        "multiply");
  }

 private:
  static Handle layout(DataType type, int64_t rows, int64_t columns, int64_t stride, int64_t matrix, int64_t batch) {
    const Library& lib = *library();
    Handle made = nullptr;
    require_ok(lib.layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride), "describe a matrix");
    if (batch > 1) {
      const auto count = static_cast<int32_t>(batch);
      require_ok(lib.layout_set(made, kBatchCount, &count, sizeof count), "describe a batch");
      require_ok(lib.layout_set(made, kBatchOffset, &matrix, sizeof matrix), "describe a batch");
    }
    return made;
  }
  void find_algorithms(const Layouts& l) {
    const Library& lib = *library();
    Handle preference = nullptr;
    require_ok(lib.preference_create(&preference), "create a preference");
    const auto set = [&](PreferenceAttribute attribute, const auto& value) {
      lib.preference_set(preference, attribute, &value, sizeof value);
    };
    set(kMaxWorkspace, kLibraryWorkspace);
    set(kReductionMask, kReduceInComputeType);
    set(kAlignA, l.b_align);
    set(kAlignB, l.a_align);
    set(kAlignC, l.d_align);
    set(kAlignD, l.d_align);
    int count = 0;
    // A status that is not 0 says that there is none.
    if (lib.heuristic(handle_, desc_, b_, a_, d_, d_, preference, kMostAlgorithms, found_, &count) == 0)
      for (int i = 0; i < count; ++i)
        if (found_[i].state == 0 && found_[i].workspace <= kLibraryWorkspace) found_[count_++] = found_[i];
    lib.preference_destroy(preference);
  }

  const Handle handle_;
  Handle desc_ = nullptr, a_ = nullptr, b_ = nullptr, d_ = nullptr;
  Heuristic found_[kMostAlgorithms] = {};
  int count_ = 0;
};

struct Key {
  Gemm::Problem problem;
  Layouts layouts;
  int device;
  bool operator==(const Key&) const = default;
  struct Hash {
    size_t operator()(const Key& k) const {
      uint64_t h = hash_of(k.problem);
      for (const int64_t x :
           {k.layouts.a_stride, k.layouts.b_stride, k.layouts.d_stride, k.layouts.a_matrix, k.layouts.b_matrix, k.layouts.d_matrix,
            int64_t{k.layouts.a_align}, int64_t{k.layouts.b_align}, int64_t{k.layouts.d_align}, int64_t{k.device}})
        h = (h << 5 ^ h >> 59 ^ static_cast<uint64_t>(x)) * 0xd6e8feb86659fd93ull;
      return mix(h);
    }
  };
};

/// The thread's own; a server with ragged shapes does not let it grow without bound.
Product& product_of(const Gemm::Problem& p, const Layouts& l, const Device& device) {
  constexpr size_t kMost = 512;
  static thread_local std::unordered_map<Key, std::unique_ptr<Product>, Key::Hash> products;
  const Key key{p, l, device.id.index};
  if (const auto known = products.find(key); known != products.end()) return *known->second;
  if (products.size() >= kMost) products.clear();
  return *products.emplace(key, std::make_unique<Product>(p, l, device)).first->second;
}

/// The library loads its kernels when they first run, which must not happen while a stream captures. What this thread has run needs no
/// second look.
void refuse_first_run_in_capture(Product& product, const Key& key, int index, Stream stream) {
  bool& ran_here = product.ran[index];
  if (ran_here) return;
  static std::mutex mutex;
  static std::unordered_set<uint64_t> ran;
  const uint64_t id = Key::Hash{}(key)*kMostAlgorithms + static_cast<uint64_t>(index);
  const std::lock_guard lock(mutex);
  if (!ran.contains(id) && cuda::is_capturing(stream))
    fail(Code::unsupported, "the library has not run this product yet, and the stream captures a graph; call it once before");
  if (ran.size() > 65536) ran.clear();
  ran.insert(id);
  ran_here = true;
}

Support supports(const Gemm::Problem& p, const Device& device) {
  if (p.b != DType::none) return Support::no("b is ", p.b, " and a is ", p.a, "; the library takes operands of one type");
  if (!p.common()) return Support::no("scales of blocks (", p.a_quant, ", ", p.b_quant, ") are not handed to the library");
  if (device.id.kind != DeviceKind::cuda) return Support::no("cuBLASLt is for NVIDIA GPUs");
  if (library() == nullptr) return Support::no(library_absence());
  if (cuda::device_count() <= device.id.index) return Support::no("there is no NVIDIA GPU here to ask the library about");
  if (p.b_format != WeightFormat::strided) return Support::no("b is packed for CPUs; a GPU reads plain rows (b_format=strided)");
  if (Gemm::empty(p)) return Support::no("an extent is 0");
  if (std::max({p.m, p.n, p.k, p.batch}) > INT32_MAX) return Support::no("an extent is beyond 2^31");
  if (p.a == DType::i8 && p.k > kMaxI8K) return Support::no("k = ", p.k, " could overflow i32 sums of i8 products; at most ", kMaxI8K);
  if (product_of(p, contiguous(p), device).algorithms() == 0) return Support::no("cuBLASLt has no algorithm for it");
  return Support::yes();
}

size_t sums_bytes(const Gemm::Problem& p) { return is_direct(p) ? 0 : static_cast<size_t>(p.batch * p.m * p.n) * 4; }
size_t workspace(const Gemm::Problem& p, const Config&, const Device&) { return kLibraryWorkspace + sums_bytes(p); }

Guess guess(const Gemm::Problem& p, const Device& device) {
  const Cost cost = Gemm::cost(p);
  const double rate = 0.8 * (p.a == DType::f32 ? device.profile.f32_flops : device.peak(p.a));
  const double product = std::max(cost.flops / rate, cost.bytes / (0.85 * device.profile.read_bytes)) * 1e6;
  const double finish = is_direct(p) ? 0 : memory_pass_us(device, 2.0 * static_cast<double>(sums_bytes(p)));
  return {.config = {}, .us = 3 + product + finish};
}

std::vector<Source> sources(const Gemm::Problem& p, const Config&, const Device& device) {
  std::vector<Source> out;
  if (!is_direct(p)) out.push_back(gemm_epilogue_entry(p, output_type(p)).source());
  else out.push_back({});  // keeps the places
  // For rows and biases that the library has no algorithm for, unlike the contiguous ones that supports() asked about.
  const Kernel<Gemm> tile = gemm_simt_tile();
  for (Source& source : tile.sources(p, tile.guess(p, device).config, device)) {
    source.on_demand = true;
    out.push_back(std::move(source));
  }
  return out;
}

void launch(const GemmArgs& args, const Gemm::Problem& p, const Config& config, Launch& launch) {
  const bool direct = is_direct(p), integer = p.a == DType::i8;
  std::byte* const sums = launch.workspace + kLibraryWorkspace;
  const Matrix a = matrix_of(args.a), b = matrix_of(args.b), d = direct ? matrix_of(args.c) : Matrix{sums, p.n, p.m * p.n};
  const Layouts l = layouts_of(a, b, d, p);
  // Rows that share memory (a stride of 0 repeats one) are no matrix to the library.
  const bool apart = l.a_stride >= p.k && l.b_stride >= p.k;
  // The library wants vectors of a bias.
  const bool odd_bias = direct && p.bias != DType::none && reinterpret_cast<uintptr_t>(args.bias.data) % 16 != 0;
  Product* const found = apart && !odd_bias ? &product_of(p, l, launch.device) : nullptr;
  if (found == nullptr || found->algorithms() == 0) {
    const Kernel<Gemm> tile = gemm_simt_tile();
    Launch other = launch;
    const cuda::Function* const function = &launch.load(launch, 1);
    other.functions = &function;
    tile.launch(args, p, tile.guess(p, launch.device).config, other);
    return;
  }
  Product& product = *found;
  refuse_first_run_in_capture(product, {p, l, launch.device.id.index}, config[0], launch.stream);
  if (direct && p.bias != DType::none) product.set(kBiasPointer, args.bias.data);
  if (direct && p.a == DType::f8e4m3) {
    product.set(kScaleAPointer, args.b_scale.data);
    product.set(kScaleBPointer, args.a_scale.data);
  }
  product.run(config[0], integer, a.data, b.data, const_cast<void*>(d.data), launch.workspace, launch.stream);
  if (direct) return;
  const GemmEpilogueGrid grid = gemm_epilogue_grid(gemm_finish(args, p), p, sums, p.m * p.n, p.n);
  launch_kernel(launch, 0, {.blocks = grid.blocks, .threads = kGemmEpilogueThreads}, grid);
}

}  // namespace

namespace {

Kernel<Gemm> made(const char* name, double sum_error, Support (*takes)(const Gemm::Problem&, const Device&)) {
  return {.name = name,
          .family = Family::library,
          .target = Target::any_gpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false, .sum_error = sum_error},
          .supports = takes,
          .knobs = kKnobs,
          .guess = guess,
          .workspace = workspace,
          .launch = launch,
          .sources = sources};
}

}  // namespace
}  // namespace cublaslt

Kernel<Gemm> gpu_library_row() {
  return cublaslt::made("gemm.library.cublaslt", 1, [](const Gemm::Problem& p, const Device& device) {
    if (p.a == DType::f8e4m3) return Support::no("a is f8e4m3; gemm.library.cublaslt_f8 takes it");
    return cublaslt::supports(p, device);
  });
}

// The tensor cores of sm_90 align the 8-bit products of a step to the largest one and keep about 14 bits of each, so that sums are off
// by more than fp32 additions are: by up to 7 times the bound for those, at k = 64 to 80, in the tests on an H200.
Kernel<Gemm> gpu_library_row_f8() {
  return cublaslt::made("gemm.library.cublaslt_f8", 16, [](const Gemm::Problem& p, const Device& device) {
    if (p.a != DType::f8e4m3) return Support::no("a is ", p.a, "; gemm.library.cublaslt takes it");
    return cublaslt::supports(p, device);
  });
}

std::string gpu_library_state() {
  if (cublaslt::library() == nullptr) return "no: " + cublaslt::library_absence();
  const size_t version = cublaslt::library()->get_version();
  return str("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace eitri
