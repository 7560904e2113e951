#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/atomic_file.h"
#include "base/dtype.h"
#include "base/error.h"

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

namespace eitri::checkpoint {
namespace {

struct TypeRow {
  const char* name;
  int bits;
  DType dtype;
};
constexpr TypeRow kTypes[] = {
    {"F32", 32, DType::f32},       {"F16", 16, DType::f16},       {"BF16", 16, DType::bf16},   {"F8_E4M3", 8, DType::f8e4m3},
    {"F8_E5M2", 8, DType::f8e5m2}, {"F8_E8M0", 8, DType::f8e8m0}, {"F4", 4, DType::f4e2m1},    {"I8", 8, DType::i8},
    {"U8", 8, DType::u8},          {"I32", 32, DType::i32},       {"I64", 64, DType::i64},     {"F64", 64, DType::none},
    {"I16", 16, DType::none},      {"U16", 16, DType::none},      {"U32", 32, DType::none},    {"U64", 64, DType::none},
    {"C64", 64, DType::none},      {"BOOL", 8, DType::none},      {"F6_E2M3", 6, DType::none}, {"F6_E3M2", 6, DType::none},
};

constexpr int64_t kDataAlignment = 64;  // of the tensors' data in a written file

const TypeRow* type_row(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

std::string known_types() {
  std::string out;
  for (const TypeRow& row : kTypes) out += str(out.empty() ? "" : ", ", row.name);
  return out;
}

/// A header entry before its offsets are judged.
struct Entry {
  std::string name;
  std::optional<std::string> type;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

/// Receives the header's JSON events and accepts exactly {name: {dtype, shape, data_offsets}, "__metadata__": {..}}.
/// Works without a tree, so a header costs memory in proportion to its tensors only.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderSax(const std::string& path) : path_(path) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) override { return refuse(text); }
  bool number_integer(int64_t value) override { return refuse(str(value)); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::list) return refuse(str(value));
    if (list_->size() >= kMaxListLength)
      refuse_where("more than ", kMaxListLength, " numbers in ", field_, "; expected a tensor's extents");
    list_->push_back(value);
    return true;
  }
  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      if (!metadata.emplace(key_, std::move(value)).second) refuse_where("__metadata__ has the key '", key_, "' twice");
      return true;
    }
    if (place_ != Place::entry || field_ != "dtype") return refuse(str("the string '", value, "'"));
    entries.back().type = std::move(value);
    return true;
  }
  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::root;
    } else if (place_ == Place::root) {
      place_ = key_ == "__metadata__" ? Place::metadata : Place::entry;
      if (place_ == Place::entry) entries.push_back({.name = key_, .type = {}, .shape = {}, .offsets = {}});
    } else {
      return refuse("an object");
    }
    return true;
  }
  bool key(std::string& value) override {
    if (place_ == Place::entry) {
      field_ = value;
      const Entry& entry = entries.back();
      const bool again =
          (value == "dtype" && entry.type) || (value == "shape" && entry.shape) || (value == "data_offsets" && entry.offsets);
      if (again) refuse_where("has '", value, "' twice");
      if (value != "dtype" && value != "shape" && value != "data_offsets")
        refuse_where("has the unknown key '", value, "'; expected dtype, shape and data_offsets");
    } else {
      key_ = value;
      if (place_ == Place::root && !seen_.emplace(value, 0).second) fail_file("the tensor '", value, "' is listed twice");
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::entry) {
      const Entry& entry = entries.back();
      if (!entry.type || !entry.shape || !entry.offsets)
        refuse_where("lacks ", !entry.type ? "dtype" : !entry.shape ? "shape" : "data_offsets");
    }
    place_ = place_ == Place::root ? Place::outside : Place::root;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::entry || field_ == "dtype") return refuse("an array");
    list_ = &(field_ == "shape" ? entries.back().shape : entries.back().offsets).emplace();
    place_ = Place::list;
    return true;
  }
  bool end_array() override {
    place_ = Place::entry;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text starts with an id in brackets and repeats the position; keep what follows "syntax error".
    std::string_view why = error.what();
    if (const size_t at = why.find(": "); at != std::string_view::npos) why.remove_prefix(at + 2);
    fail_file("the header is not valid JSON at byte ", position, ": ", why);
  }

 private:
  enum class Place { outside, root, metadata, entry, list };
  static constexpr size_t kMaxListLength = 64;

  template <class... Parts> [[noreturn]] void fail_file(const Parts&... parts) const {
    fail(Code::invalid_argument, str(path_, ": ", parts...));
  }
  template <class... Parts> [[noreturn]] void refuse_where(const Parts&... parts) const {
    if (place_ == Place::metadata || entries.empty()) fail_file(parts...);
    fail_file("tensor '", entries.back().name, "': ", parts...);
  }
  [[noreturn]] bool refuse(const std::string& got) const {
    switch (place_) {
      case Place::outside: fail_file("the header is ", got, "; expected an object of tensors");
      case Place::root: fail_file("the header entry '", key_, "' is ", got, "; expected an object with dtype, shape and data_offsets");
      case Place::metadata: fail_file("__metadata__ '", key_, "' is ", got, "; expected a string");
      case Place::entry:
        refuse_where(field_, " is ", got, "; expected ", field_ == "dtype" ? "a string" : "an array of non-negative integers");
      case Place::list: break;
    }
    refuse_where(field_, " holds ", got, "; expected non-negative integers below 2^64");
  }

  const std::string& path_;
  Place place_ = Place::outside;
  std::string key_, field_;
  std::map<std::string, int> seen_;
  std::vector<uint64_t>* list_ = nullptr;
};

std::string join(const std::vector<uint64_t>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += str(i == 0 ? "" : ", ", values[i]);
  return out + "]";
}

/// Bytes of a tensor; refuses products that overflow and sub-byte tensors that end inside a byte.
uint64_t bytes_of(const Entry& entry, const TypeRow& type, const std::string& where) {
  constexpr uint64_t kLimit = uint64_t{1} << 56;  // also keeps bits below 2^63
  uint64_t count = 1;
  for (const uint64_t extent : *entry.shape) {
    require(extent <= kLimit, where, "shape is ", join(*entry.shape), "; expected extents up to 2^56");
    if (extent != 0 && count > kLimit / extent)
      fail(Code::invalid_argument, str(where, "shape ", join(*entry.shape), " has more than 2^56 elements"));
    count *= extent;
  }
  const uint64_t bits = count * static_cast<uint64_t>(type.bits);
  require(bits % 8 == 0, where, count, " elements of ", type.name, " end inside a byte; expected a multiple of ", type.bits == 4 ? 2 : 4);
  return bits / 8;
}

Tensor check_entry(Entry& entry, uint64_t data_start, std::span<const std::byte> data, const std::string& path) {
  const std::string where = str(path, ": tensor '", entry.name, "': ");
  const TypeRow* type = type_row(*entry.type);
  require(type != nullptr, where, "dtype is '", *entry.type, "'; expected one of ", known_types());
  const uint64_t bytes = bytes_of(entry, *type, where);
  require(entry.offsets->size() == 2, where, "data_offsets is ", join(*entry.offsets), "; expected [begin, end]");
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  require(begin <= end, where, "data_offsets is ", join(*entry.offsets), "; expected begin <= end");
  require(end <= data.size(), where, "data_offsets is ", join(*entry.offsets), " but the file has only ", data.size(),
          " bytes of tensor data (truncated?)");
  require(end - begin == bytes, where, "data_offsets ", join(*entry.offsets), " span ", end - begin, " bytes; expected ", bytes, " for ",
          type->name, join(*entry.shape));
  const uint64_t align = static_cast<uint64_t>(std::max(1, type->bits / 8));
  require((data_start + begin) % align == 0, where, "starts at byte ", data_start + begin, " of the file; expected a multiple of ", align,
          " for ", type->name);
  Tensor tensor{.name = std::move(entry.name),
                .file = path,
                .type = type->name,
                .dtype = type->dtype,
                .shape = {},
                .data = data.data() + begin,
                .bytes = static_cast<int64_t>(bytes)};
  for (const uint64_t extent : *entry.shape) tensor.shape.push_back(static_cast<int64_t>(extent));
  return tensor;
}

}  // namespace

int64_t Tensor::size() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string to_string(const Tensor& tensor) {
  std::string out = tensor.type + "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) out += str(i == 0 ? "" : ", ", tensor.shape[i]);
  return out + "]";
}

struct SafetensorsFile::Mapping {
  MappedFile file;
};

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  auto mapping = std::make_unique<Mapping>(Mapping{MappedFile(path)});
  SafetensorsFile file = parse(mapping->file.bytes(), path);
  file.mapping_ = std::move(mapping);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& path) {
  require(bytes.size() >= 8, path, ": is ", bytes.size(),
          " bytes long; expected at least 8 (a safetensors file starts with its header's length)");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  require(header_bytes <= kMaxHeaderBytes, path, ": header length is ", header_bytes, "; expected at most ", kMaxHeaderBytes,
          " (is this a safetensors file?)");
  require(header_bytes <= bytes.size() - 8, path, ": header length is ", header_bytes, " but only ", bytes.size() - 8,
          " bytes follow (truncated?)");
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  require(!header.empty() && header.front() == '{', path, ": the header does not start with '{'");

  HeaderSax sax(path);
  nlohmann::json::sax_parse(header, &sax);
  const uint64_t data_start = 8 + header_bytes;
  const std::span<const std::byte> data = bytes.subspan(data_start);

  SafetensorsFile file;
  file.path_ = path;
  file.metadata_ = std::move(sax.metadata);
  for (Entry& entry : sax.entries) file.tensors_.push_back(check_entry(entry, data_start, data, path));
  // By offset; an empty tensor sorts before the one that starts at the same byte.
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return a.data != b.data ? a.data < b.data : a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
  });
  uint64_t covered = 0;
  const Tensor* before = nullptr;
  for (const Tensor& tensor : file.tensors_) {
    const auto begin = static_cast<uint64_t>(tensor.data - data.data());
    require(begin >= covered, path, ": tensor '", tensor.name, "' starts at data offset ", begin, " inside tensor '",
            before != nullptr ? before->name : "", "', which ends at ", covered);
    require(begin == covered, path, ": bytes ", covered, " to ", begin, " of the tensor data, before tensor '", tensor.name,
            "', belong to no tensor");
    covered = begin + static_cast<uint64_t>(tensor.bytes);
    before = &tensor;
  }
  require(covered == data.size(), path, ": the tensors end at data offset ", covered, " but the file has ", data.size(),
          " bytes of tensor data");
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.index_.emplace(file.tensors_[i].name, i);
  return file;
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const Tensor& SafetensorsFile::at(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) {
    std::vector<std::string> names;
    for (const Tensor& t : tensors_) names.push_back(t.name);
    fail(Code::invalid_argument, str(path_, ": no tensor '", name, "'; ", closest_names(name, std::move(names))));
  }
  return *tensor;
}

std::string closest_names(std::string_view wanted, std::vector<std::string> names, size_t limit) {
  if (names.empty()) return "it has no tensors";
  const auto shared = [&](const std::string& name) {
    const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), name.begin(), name.end());
    return a - wanted.begin();
  };
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) { return shared(a) > shared(b); });
  std::string out = names.size() > limit ? str("closest of ", names.size(), ": ") : std::string("it has: ");
  for (size_t i = 0; i < std::min(limit, names.size()); ++i) out += str(i == 0 ? "" : ", ", names[i]);
  return out;
}

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  const auto alignment = [](const TensorToWrite& t) { return t.alignment != 0 ? t.alignment : std::max<int64_t>(1, bits(t.dtype) / 8); };
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return alignment(*a) > alignment(*b); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<int64_t> sizes;
  int64_t offset = 0;
  for (const TensorToWrite* tensor : order) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& row) { return row.dtype == tensor->dtype; });
    require(tensor->dtype != DType::none && type != std::end(kTypes), path, ": tensor '", tensor->name, "' is ", tensor->dtype,
            "; safetensors has no such type");
    require(!header.contains(tensor->name), path, ": tensor '", tensor->name, "' is given twice");
    int64_t count = 1;
    for (const int64_t extent : tensor->shape) count *= extent;
    sizes.push_back(bytes_for(tensor->dtype, count));
    require(alignment(*tensor) <= kDataAlignment && sizes.back() % alignment(*tensor) == 0, path, ": tensor '", tensor->name, "' has ",
            sizes.back(), " bytes; expected a multiple of its alignment, ", alignment(*tensor));
    header[tensor->name] = {{"dtype", type->name}, {"shape", tensor->shape}, {"data_offsets", {offset, offset + sizes.back()}}};
    offset += sizes.back();
  }
  std::string text = header.dump();
  text.append((kDataAlignment - (8 + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  const uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += text;
  file.reserve(file.size() + static_cast<size_t>(offset));
  for (size_t i = 0; i < order.size(); ++i) {
    if (sizes[i] > 0) file.append(static_cast<const char*>(order[i]->data), static_cast<size_t>(sizes[i]));
  }
  write_file_atomic(path, std::string_view(file));
}

}  // namespace eitri::checkpoint
