// A strict reader of the safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without
// holes. The file is hostile input: whatever is odd is refused, with the file, the tensor, what was found and what was
// expected. Files are mapped, never copied; a tensor is a pointer into the mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eitri/types.hpp"

namespace eitri::checkpoint {

/// One tensor of a file. `data` lives as long as the SafetensorsFile.
struct Tensor {
  std::string name;
  std::string file;           // for messages
  std::string type;           // the format's spelling: "BF16", "F64", ...
  DType dtype = DType::none;  // none for types that Eitri does not compute with (F64, BOOL, I16, ...)
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  int64_t size() const;  // product of shape; checked when the header was read
};

/// "BF16[128, 4096]".
std::string to_string(const Tensor& tensor);

/// Largest header that is read, in bytes; the limit of the reference implementation.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

class SafetensorsFile {
 public:
  /// Maps and checks `path`. Throws Error{io_error} when it cannot be opened and Error{invalid_argument} when it is not a
  /// well-formed safetensors file.
  static SafetensorsFile open(const std::string& path);
  /// The same over bytes that the caller keeps alive; `path` is for messages only.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& path);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  /// In the order of their offsets.
  std::span<const Tensor> tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// nullptr when there is none of that name.
  const Tensor* find(std::string_view name) const;
  /// Throws, naming the closest tensors, when there is none of that name.
  const Tensor& at(std::string_view name) const;

 private:
  SafetensorsFile() = default;
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
  std::string path_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of a folder: model.safetensors, or the shards that model.safetensors.index.json lists. Shards are opened
/// when one of their tensors is first asked for.
class TensorFolder {
 public:
  static TensorFolder open(const std::string& folder);
  TensorFolder(TensorFolder&&) noexcept = default;
  TensorFolder& operator=(TensorFolder&&) noexcept = default;

  const std::string& path() const { return folder_; }
  bool has(std::string_view name) const;
  const Tensor& at(std::string_view name);
  /// Names that start with `prefix`, sorted.
  std::vector<std::string> names(std::string_view prefix = {}) const;

 private:
  TensorFolder() = default;
  SafetensorsFile& shard(const std::string& file);

  std::string folder_;
  std::map<std::string, std::string, std::less<>> shard_of_;  // tensor name -> file name
  std::map<std::string, std::unique_ptr<SafetensorsFile>, std::less<>> shards_;
};

/// Up to `limit` of `names`, those that share the longest beginning with `wanted` first: for "unknown name" messages.
std::string closest_names(std::string_view wanted, std::vector<std::string> names, size_t limit = 5);

/// A tensor to write; `data` holds bytes_for(dtype, product of shape) bytes.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::none;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  int64_t alignment = 0;  // of its first byte in the file, at most 64 and a divisor of its size; 0: that of the dtype
};

/// Writes a file that the reader above, and everyone else's, accepts: larger alignments first, header padded to 64 bytes.
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace eitri::checkpoint
