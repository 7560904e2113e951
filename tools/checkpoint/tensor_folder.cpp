// A folder of safetensors: one file, or shards with an index.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace eitri::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// A shard must be a plain file name: an index cannot point out of its folder.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

TensorFolder TensorFolder::open(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) fail(Code::io_error, str("checkpoint: '", folder, "' is not a folder"));
  TensorFolder out;
  out.folder_ = folder;
  const fs::path index = fs::path(folder) / kIndex;
  if (!fs::exists(index, error)) {
    if (!fs::exists(fs::path(folder) / kSingle, error))
      fail(Code::io_error, str("checkpoint: ", folder, " has neither ", kSingle, " nor ", kIndex));
    for (const Tensor& tensor : out.shard(kSingle).tensors()) out.shard_of_.emplace(tensor.name, kSingle);
    return out;
  }
  const std::string text = read_file(index.string(), kMaxHeaderBytes);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  require(!json.is_discarded() && json.is_object(), index.string(), ": is not a JSON object");
  const auto map = json.find("weight_map");
  require(map != json.end() && map->is_object(), index.string(), ": lacks the object 'weight_map'");
  for (const auto& [name, shard] : map->items()) {
    require(shard.is_string(), index.string(), ": weight_map['", name, "'] is ", shard.dump(), "; expected a file name");
    const auto& shard_name = shard.get_ref<const std::string&>();
    require(is_plain_file_name(shard_name), index.string(), ": weight_map['", name, "'] is '", shard_name,
            "'; expected a file name without folders");
    out.shard_of_.emplace(name, shard_name);
  }
  return out;
}

SafetensorsFile& TensorFolder::shard(const std::string& file) {
  auto& slot = shards_[file];
  if (slot == nullptr) {
    const fs::path path = fs::path(folder_) / file;
    std::error_code error;
    if (!fs::exists(path, error))
      fail(Code::io_error, str("checkpoint: the index lists ", file, " but ", path.string(), " does not exist"));
    slot = std::make_unique<SafetensorsFile>(SafetensorsFile::open(path.string()));
  }
  return *slot;
}

bool TensorFolder::has(std::string_view name) const { return shard_of_.find(name) != shard_of_.end(); }

const Tensor& TensorFolder::at(std::string_view name) {
  const auto it = shard_of_.find(name);
  if (it == shard_of_.end())
    fail(Code::invalid_argument, str("checkpoint: ", folder_, " has no tensor '", name, "'; ", closest_names(name, names())));
  const Tensor* tensor = shard(it->second).find(name);
  if (tensor == nullptr)
    fail(Code::invalid_argument,
         str("checkpoint: the index of ", folder_, " puts tensor '", name, "' into ", it->second, ", which does not have it"));
  return *tensor;
}

std::vector<std::string> TensorFolder::names(std::string_view prefix) const {
  std::vector<std::string> out;
  for (auto it = shard_of_.lower_bound(prefix); it != shard_of_.end() && it->first.starts_with(prefix); ++it) out.push_back(it->first);
  return out;
}

}  // namespace eitri::checkpoint
