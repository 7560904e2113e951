// pack_weights: plain rows into panels of 32 columns (panel_kernels.h has the picture), or into oneDNN's own layout.
// Bound by memory: each 16 x 64 byte block of the weight is read once, transposed as 16 x 16 words, written once.
#include "ops/gemm/pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/threads.h"
#include "base/hash.h"
#include "base/view.h"
#include "ops/gemm/library.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

namespace {

constexpr char kMagic[8] = {'E', 'I', 'T', 'R', 'I', 'P', 'K', '\0'};
constexpr std::array kFormatNames = {"strided", "panel32", "onednn"};
constexpr const char* kPackOp = "pack_weights";
constexpr int64_t kLibraryDescription = 2048;  // bytes before the elements of a matrix in a layout of oneDNN (onednn_primitives.h)

bool is_version_1(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::i8; }
bool packable(DType dtype) { return is_version_1(dtype) || is_code(dtype); }
/// Codes and block scales of them, if any, go together. f4e2m1 has no meaning without block scales.
bool is_legal(DType dtype, Quant quant) {
  if (quant == Quant::none) return dtype != DType::f4e2m1;
  return is_block(quant) && block_scale_dtype(dtype, quant) != DType::none;
}

uint64_t checksum_of(const PackedHeader& header) { return hash_bytes(&header, offsetof(PackedHeader, checksum)); }

/// Bytes of a panel32 matrix of n weight rows; false when they do not fit.
bool panel32_bytes(int64_t n, int64_t k, DType dtype, Quant quant, GateLayout gate, int64_t& bytes) {
  constexpr int64_t kMaxExtent = int64_t{1} << 44;  // no product below overflows before it is checked
  if (n > kMaxExtent || k > kMaxExtent) return false;
  const int64_t outputs = gate == GateLayout::none ? n : n / 2;
  const int64_t panel = packs_as_codes(dtype, quant) ? coded_panel_bytes(panel_codes(dtype, quant), k) : panel_bytes(k, bits(dtype) / 8);
  return !__builtin_mul_overflow(panel_count(outputs, gate), panel, &bytes);
}

/// Why the header is not one that this build wrote or may read; empty when it is fine.
std::string header_fault(const PackedHeader& h) {
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return "a buffer without the mark of pack_weights";
  if (h.version < 1 || h.version > kPackVersion)
    return str("packed by format version ", h.version, ", this build reads versions 1 to ", kPackVersion);
  if (h.checksum != checksum_of(h)) return "a packed buffer with a damaged header (checksum)";
  if (h.format > static_cast<uint8_t>(PackFormat::onednn)) return str("packed in unknown format ", h.format);
  if (h.gate > static_cast<uint8_t>(GateLayout::interleaved)) return str("packed with unknown gate layout ", h.gate);
  const auto dtype = static_cast<DType>(h.dtype);
  const auto quant = static_cast<Quant>(h.quant);
  const bool library = h.format == static_cast<uint8_t>(PackFormat::onednn);
  if (!packable(dtype) || ((h.version == 1 || library) && !is_version_1(dtype))) return str("packed with dtype number ", h.dtype);
  if (!is_legal(dtype, quant) || ((h.version == 1 || library) && h.quant != 0)) return str("packed with quantisation number ", h.quant);
  int64_t total = 0;
  if ((h.rank != 2 && h.rank != 3) || h.batch < 0 || h.n < 0 || h.k < 0 || h.matrix_bytes < 0 || (h.rank == 2 && h.batch != 1) ||
      (h.gate != 0 && h.n % 2 != 0) || __builtin_mul_overflow(h.batch, h.matrix_bytes, &total) || total > (int64_t{1} << 62))
    return "a packed buffer with impossible extents";
  if (library) {
    if (h.library != library::version())
      return str("packed by oneDNN ", h.library / 100, ".", h.library % 100, ", this build has ",
                 library::version() == 0 ? std::string("no oneDNN") : str(library::version() / 100, ".", library::version() % 100));
    // A description of the layout, then at least every element.
    int64_t elements = 0, least = 0;
    if (__builtin_mul_overflow(h.n, h.k, &elements) || __builtin_mul_overflow(elements, bits(dtype) / 8, &least) ||
        (least > 0 && h.matrix_bytes - least < kLibraryDescription))
      return "a packed buffer with impossible extents";
    return {};
  }
  int64_t expected = 0;
  if (!panel32_bytes(h.n, h.k, dtype, quant, static_cast<GateLayout>(h.gate), expected) || expected != h.matrix_bytes)
    return "a packed buffer with impossible extents";
  return {};
}

struct Extents {
  int64_t batch, n, k;
};

Extents check_pack(const PackArgs& args) {
  const View& w = args.weights;
  require(w.rank == 2 || w.rank == 3, kPackOp, ": weights is ", w, "; expected rank 2 or 3");
  check_view(w, kPackOp, "weights", w.rank);
  require(w.layout == Layout::strided, kPackOp, ": weights is ", w, "; expected plain rows, not packed ones");
  require(packable(w.dtype), kPackOp, ": weights is ", w, "; expected f32, bf16, f16, i8, f8e4m3, i4 or f4e2m1");
  for (const View* view : {&args.weights, &args.scale})
    require(!view->given() || view->device.kind == DeviceKind::cpu, kPackOp, ": ", view == &args.scale ? "scale" : "weights", " is on ",
            view->device, "; expected CPU memory (packed weights are for CPUs)");
  require(args.gate <= GateLayout::interleaved, kPackOp, ": gate is number ", static_cast<int>(args.gate),
          "; expected none, separated or interleaved");
  require(args.format <= PackFormat::onednn, kPackOp, ": format is number ", static_cast<int>(args.format), "; expected panel32 or onednn");
  const Extents e{w.rank == 3 ? w.shape[0] : 1, w.shape[w.rank - 2], w.shape[w.rank - 1]};
  require(args.gate == GateLayout::none || e.n % 2 == 0, kPackOp, ": weights is ", w,
          "; expected an even number of rows (gate and up rows)");
  require(args.format != PackFormat::onednn || (args.m_hint > 0 && args.m_hint <= INT32_MAX), kPackOp, ": m_hint is ", args.m_hint,
          "; expected 1 to 2^31 - 1");
  require(args.format != PackFormat::onednn || is_version_1(w.dtype), kPackOp, ": weights is ", w,
          "; expected f32, bf16, f16 or i8 in the layout of oneDNN");
  require(is_legal(w.dtype, args.quant) && (args.quant == Quant::none || args.format == PackFormat::panel32), kPackOp, ": quant is ",
          args.quant, " and weights is ", w, "; expected block scales that go with it: i8, i4 per_1x32 or per_1x128; f8e4m3 per_1x32, ",
          "per_1x128 or per_128x128; f4e2m1 per_1x32 or per_1x16; in panel32");
  require(args.scale.given() == (args.quant != Quant::none), kPackOp, ": scale is ", args.scale, "; expected ",
          args.quant == Quant::none ? "none (quant is none)" : "block scales");
  if (args.scale.given()) check_block_scale(args.scale, kPackOp, "scale", w.dtype, args.quant, w.rank == 3 ? e.batch : -1, e.n, e.k);
  return e;
}

PackedHeader make_header(const PackArgs& args, const Extents& e) {
  PackedHeader h = {};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = is_version_1(args.weights.dtype) && args.quant == Quant::none ? 1 : kPackVersion;
  h.format = static_cast<uint8_t>(args.format);
  h.dtype = static_cast<uint8_t>(args.weights.dtype);
  h.gate = static_cast<uint8_t>(args.gate);
  h.rank = static_cast<uint8_t>(args.weights.rank);
  h.batch = e.batch;
  h.n = e.n;
  h.k = e.k;
  bool fits = true;
  if (args.format == PackFormat::onednn) {
    h.library = library::version();
    h.m_hint = static_cast<int32_t>(args.m_hint);
    h.matrix_bytes = static_cast<int64_t>(library::matrix_bytes(args));
  } else {
    h.quant = static_cast<uint8_t>(args.quant);
    fits = panel32_bytes(e.n, e.k, args.weights.dtype, args.quant, args.gate, h.matrix_bytes);
  }
  int64_t total = 0;
  fits = fits && !__builtin_mul_overflow(h.batch, h.matrix_bytes, &total) && total <= (int64_t{1} << 62);
  require(fits, kPackOp, ": weights is ", args.weights, "; expected at most 2^62 packed bytes");
  h.checksum = checksum_of(h);
  return h;
}

/// Where the rows of one weight matrix are, in bytes.
struct Rows {
  const std::byte* first;
  int64_t row_stride, element_stride, element_bytes, k;
};

/// The 64 bytes of a row at k-step `step`, zeros behind k.
void load_step(const Rows& rows, int64_t row, int64_t step, std::byte* to) {
  const int64_t per_step = kStepBytes / rows.element_bytes;
  const int64_t begin = step * per_step, count = std::min(per_step, rows.k - begin);
  const std::byte* from = rows.first + row * rows.row_stride + begin * rows.element_stride;
  if (rows.element_stride == rows.element_bytes) {
    std::memcpy(to, from, static_cast<size_t>(count * rows.element_bytes));
  } else {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(to + i * rows.element_bytes, from + i * rows.element_stride, static_cast<size_t>(rows.element_bytes));
  }
  std::memset(to + count * rows.element_bytes, 0, static_cast<size_t>((per_step - count) * rows.element_bytes));
}

void pack_panel(const Rows& rows, int64_t n, GateLayout gate, int64_t panel, std::byte* to) {
  const int64_t steps = (rows.k * rows.element_bytes + kStepBytes - 1) / kStepBytes;
  alignas(64) std::byte block[16][kStepBytes];
  int32_t sums[kPanelColumns] = {};
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t tile = 0; tile < 2; ++tile) {
      for (int64_t column = 0; column < 16; ++column) {
        const int64_t row = weight_row(n, gate, panel, tile * 16 + column);
        if (row < 0) std::memset(block[column], 0, kStepBytes);
        else load_step(rows, row, step, block[column]);
      }
      if (rows.element_bytes == 1) {
        for (int64_t column = 0; column < 16; ++column) {
          int32_t sum = 0;
          for (int64_t i = 0; i < kStepBytes; ++i) sum += static_cast<int8_t>(block[column][i]);
          sums[tile * 16 + column] += sum;
        }
      }
      for (int64_t column = 0; column < 16; ++column)
        for (int64_t r = 0; r < 16; ++r) std::memcpy(to + r * 64 + column * 4, block[column] + r * 4, 4);
      to += kTileBytes;
    }
  }
  if (rows.element_bytes == 1) std::memcpy(to, sums, sizeof sums);
}

void pack_coded_panels(const PackArgs& args, const Extents& e, const PackedHeader& header, std::byte* to) {
  const int64_t outputs = args.gate == GateLayout::none ? e.n : e.n / 2;
  const int64_t panels = panel_count(outputs, args.gate), bytes = coded_panel_bytes(panel_codes(args.weights.dtype, args.quant), e.k);
  if (e.n == 0 || e.k == 0) return;
  for (int64_t matrix = 0; matrix < e.batch; ++matrix)
    check_scale_values(coded_rows(args.weights, args.scale, args.quant, matrix), kPackOp);
  // About 1 GB/s a thread.
  const double us = static_cast<double>(header.batch * header.matrix_bytes) / 1e3;
  parallel(threads_for(us, max_threads()), [&](int thread, int threads) {
    const Span mine = split(e.batch * panels, thread, threads);
    for (int64_t task = mine.begin; task < mine.end; ++task) {
      const int64_t matrix = task / panels, panel = task % panels;
      pack_coded_panel(coded_rows(args.weights, args.scale, args.quant, matrix), outputs, args.gate, panel,
                       to + matrix * header.matrix_bytes + panel * bytes);
    }
  });
}

void pack_panels(const PackArgs& args, const Extents& e, const PackedHeader& header, std::byte* to) {
  const View& w = args.weights;
  const int64_t width = bits(w.dtype) / 8;
  const int64_t outputs = args.gate == GateLayout::none ? e.n : e.n / 2;
  const int64_t panels = panel_count(outputs, args.gate), bytes = panel_bytes(e.k, width);
  // About 5 GB/s a thread: the estimate only decides whether a team is worth starting.
  const double us = static_cast<double>(header.batch * header.matrix_bytes) / 5e3;
  parallel(threads_for(us, max_threads()), [&](int thread, int threads) {
    const Span mine = split(e.batch * panels, thread, threads);
    for (int64_t task = mine.begin; task < mine.end; ++task) {
      const int64_t matrix = task / panels, panel = task % panels;
      const Rows rows{static_cast<const std::byte*>(w.data) + (w.rank == 3 ? matrix * w.stride[0] * width : 0),
                      w.stride[w.rank - 2] * width, w.stride[w.rank - 1] * width, width, e.k};
      pack_panel(rows, outputs, args.gate, panel, to + matrix * header.matrix_bytes + panel * bytes);
    }
  });
}

View view_of(const PackedHeader& h, const void* buffer) {
  const DType dtype = static_cast<DType>(h.dtype);
  View view = h.rank == 3 ? View(buffer, dtype, {h.batch, h.n, h.k}) : View(buffer, dtype, {h.n, h.k});
  view.layout = Layout::packed;
  return view;
}

void check_buffer(const void* buffer, const char* op) {
  require(buffer != nullptr && reinterpret_cast<uintptr_t>(buffer) % 64 == 0, op, ": buffer is ",
          buffer == nullptr ? "null" : "not aligned", "; expected a 64-byte aligned address");
}

}  // namespace

std::span<const char* const> enum_names(WeightFormat) { return kFormatNames; }

size_t packed_bytes(const PackArgs& args) {
  const PackedHeader header = make_header(args, check_pack(args));
  return sizeof header + static_cast<size_t>(header.batch * header.matrix_bytes);
}

View pack_weights(const PackArgs& args, void* buffer) {
  const Extents e = check_pack(args);
  check_buffer(buffer, kPackOp);
  const PackedHeader header = make_header(args, e);
  auto* to = static_cast<std::byte*>(buffer);
  View bytes(buffer, DType::u8, {static_cast<int64_t>(sizeof header) + header.batch * header.matrix_bytes});
  require(!overlap(bytes, args.weights), kPackOp, ": buffer overlaps weights; expected memory of its own");
  require(!overlap(bytes, args.scale), kPackOp, ": buffer overlaps scale; expected memory of its own");
  if (args.format == PackFormat::onednn) {
    for (int64_t i = 0; i < e.batch; ++i) library::pack_matrix(args, i, to + sizeof header + i * header.matrix_bytes);
  } else if (packs_as_codes(args.weights.dtype, args.quant)) {
    pack_coded_panels(args, e, header, to + sizeof header);
  } else {
    pack_panels(args, e, header, to + sizeof header);
  }
  std::memcpy(to, &header, sizeof header);  // last: an interrupted pack leaves no valid header in fresh memory
  return view_of(header, buffer);
}

View packed_view(const void* buffer, size_t bytes) {
  check_buffer(buffer, "packed_view");
  require(bytes >= sizeof(PackedHeader), "packed_view: buffer is ", bytes, " bytes; expected at least ", sizeof(PackedHeader),
          " (a header)");
  const auto& header = *static_cast<const PackedHeader*>(buffer);
  const std::string fault = header_fault(header);
  require(fault.empty(), "packed_view: buffer is ", fault, "; expected a buffer of pack_weights");
  const auto needed = sizeof header + static_cast<size_t>(header.batch * header.matrix_bytes);
  require(bytes >= needed, "packed_view: buffer is ", bytes, " bytes; expected ", needed, " (it is truncated)");
  return view_of(header, buffer);
}

const PackedHeader& packed_header(const View& view, const char* op, const char* arg) {
  require(view.layout == Layout::packed, op, ": ", arg, " is ", view, "; expected packed weights");
  require(view.device.kind == DeviceKind::cpu, op, ": ", arg, " is ", view, " on ", view.device,
          "; expected plain rows (packed weights are for CPUs)");
  require(view.data != nullptr && reinterpret_cast<uintptr_t>(view.data) % 64 == 0, op, ": ", arg, " is ", view,
          view.data == nullptr ? " at null" : " at an odd address", "; expected a 64-byte aligned buffer of pack_weights");
  const auto& header = *static_cast<const PackedHeader*>(view.data);
  // Weights of one shape have one header, so a call usually meets a header that this thread has verified before.
  static thread_local std::array<PackedHeader, 16> verified;
  // Unsigned: the header may be a hostile file's.
  const auto slot = (static_cast<uint64_t>(header.n) * 31 + static_cast<uint64_t>(header.k) * 7 + static_cast<uint64_t>(header.batch) +
                     header.dtype + header.quant) %
                    verified.size();
  if (std::memcmp(&verified[slot], &header, sizeof header) != 0) [[unlikely]] {
    const std::string fault = header_fault(header);
    if (!fault.empty()) fail(Code::invalid_argument, str(op, ": ", arg, " is ", fault, "; expected a buffer of pack_weights"));
    verified[slot] = header;
  }
  const bool same = view.rank == header.rank && static_cast<uint8_t>(view.dtype) == header.dtype && view.shape[view.rank - 1] == header.k &&
                    view.shape[view.rank - 2] == header.n && (view.rank == 2 || view.shape[0] == header.batch);
  if (!same) [[unlikely]]
    require(false, op, ": ", arg, " is ", view, "; expected ", view_of(header, view.data), ", as its buffer says");
  return header;
}

const std::byte* packed_matrix(const View& view, int64_t index) {
  const auto& header = *static_cast<const PackedHeader*>(view.data);
  return static_cast<const std::byte*>(view.data) + sizeof header + index * header.matrix_bytes;
}

WeightFormat weight_format(const View& view, const char* op, const char* arg) {
  if (view.layout == Layout::strided) return WeightFormat::strided;
  return packed_header(view, op, arg).format == static_cast<uint8_t>(PackFormat::onednn) ? WeightFormat::onednn : WeightFormat::panel32;
}

Quant packed_quant(const View& view) {
  return view.layout == Layout::packed ? static_cast<Quant>(static_cast<const PackedHeader*>(view.data)->quant) : Quant::none;
}

double weight_at(const View& view, int64_t b, int64_t n, int64_t k) {
  if (view.layout == Layout::strided) {
    if (view.rank == 3) return load(view, {b, n, k});
    return load(view, {n, k});
  }
  const PackedHeader& h = packed_header(view, "weight_at", "view");
  if (h.format != static_cast<uint8_t>(PackFormat::panel32))
    fail(Code::internal, "weight_at: view is in a layout of oneDNN; expected panel32");
  // The panel and column whose weight_row is n.
  int64_t output = n, up = 0;
  const auto gate = static_cast<GateLayout>(h.gate);
  if (gate == GateLayout::separated) up = n / (h.n / 2), output = n % (h.n / 2);
  if (gate == GateLayout::interleaved) up = n % 2, output = n / 2;
  const int64_t panel = gate == GateLayout::none ? output / kPanelColumns : output / 16;
  const int64_t tile = gate == GateLayout::none ? output % kPanelColumns / 16 : up;
  if (const auto quant = static_cast<Quant>(h.quant); packs_as_codes(view.dtype, quant)) {
    const PanelCodes codes = panel_codes(view.dtype, quant);
    const std::byte* const at = packed_matrix(view, view.rank == 3 ? b : 0) + panel * coded_panel_bytes(codes, h.k);
    return coded_value(codes, at, tile * 16 + output % 16, k);
  }
  const int64_t width = bits(view.dtype) / 8, byte = k * width;
  const std::byte* at = packed_matrix(view, view.rank == 3 ? b : 0) + panel * panel_bytes(h.k, width) + byte / kStepBytes * 2 * kTileBytes +
                        tile * kTileBytes + byte % kStepBytes / 4 * 64 + output % 16 * 4 + byte % 4;
  return load_at(at, view.dtype, 0);
}

}  // namespace eitri
