// Names of the row enums, config text, and which targets a device runs.
#include "dispatch/kernel.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "backend/backend.h"
#include "jit/cache.h"
#include "jit/embedded.h"

namespace eitri {

std::span<const char* const> enum_names(Family) {
  static constexpr const char* kNames[] = {"assembly", "tile_template", "library", "triton", "dsl", "simt", "recipe", "reference"};
  return kNames;
}

std::span<const char* const> enum_names(Target) {
  static constexpr const char* kNames[] = {"any", "any_cpu", "x86_avx2", "x86_avx512", "x86_amx", "any_gpu", "sm_90a", "gfx942", "gfx950"};
  return kNames;
}

std::string to_string(const Config& config, Knobs knobs) {
  std::string out;
  for (size_t i = 0; i < knobs.size(); ++i) out += str(i == 0 ? "" : ";", knobs[i].name, "=", config.value[i]);
  return out;
}

bool parse_config(std::string_view text, Knobs knobs, Config& config, std::string& why) {
  config = {};
  std::array<bool, kMaxKnobs> seen = {};
  try {
    for (const auto& [name, value] : detail::split_pairs(text, ';')) {
      size_t i = 0;
      while (i < knobs.size() && name != knobs[i].name) ++i;
      if (i == knobs.size()) {
        why = str("unknown knob ", name);
        return false;
      }
      detail::parse_value(name, value, config.value[i]);
      // A kernel is only asked for what it offers: a file could say 0 where it divides.
      if (std::ranges::find(knobs[i].values, config.value[i]) == knobs[i].values.end()) {
        why = str("knob ", name, " is ", config.value[i], "; expected a value that the kernel offers");
        return false;
      }
      seen[i] = true;
    }
  } catch (const Error& error) {
    why = error.what();
    return false;
  }
  for (size_t i = 0; i < knobs.size(); ++i) {
    if (!seen[i]) {
      why = str("knob ", knobs[i].name, " is missing");
      return false;
    }
  }
  return true;
}

Support target_runs_on(Target target, const Device& device) {
  if (target == Target::any) return Support::yes();
  if (device.is_gpu()) {
    if (target == Target::any_gpu || to_string(target) == device.arch()) return Support::yes();
    return Support::no("needs ", to_string(target), "; the device is a GPU, ", device.arch());
  }
  Isa need = Isa::portable;
  switch (target) {
    case Target::any_cpu: return Support::yes();
    case Target::x86_avx2: need = Isa::x86_avx2; break;
    case Target::x86_avx512: need = Isa::x86_avx512; break;
    case Target::x86_amx: need = Isa::x86_amx_emulated; break;
    default: return Support::no("needs ", to_string(target), "; the device is a CPU");
  }
  if (device.isa >= need) return Support::yes();
  return Support::no("needs ", to_string(target), "; the level in use is ", to_string(device.isa));
}

jit::CompileRequest compile_request(const Source& source, std::string_view label, const Device& device) {
  return {.label = std::string(label),
          .source = jit::embedded_bundle(source.file),
          .defines = source.defines,
          .flags = {},
          .target = &jit::target_named(device.arch())};
}

const gpu::Function& load_source(const Source& source, std::string_view label, const Device& device, Stream stream) {
  if (device.id.kind != DeviceKind::cuda) fail(Code::unsupported, str(label, ": no backend loads kernels on ", device.arch()));
  // What this process has loaded, by text: the cache's own key needs the closure of includes, which takes longer.
  static std::mutex mutex;
  static std::map<std::string, const gpu::Function*, std::less<>> loaded;
  std::string name = str(device.id.index, "|", source.file, "|", source.entry);
  for (const std::string& define : source.defines) name += str("|", define);
  {
    const std::lock_guard lock(mutex);
    if (const auto known = loaded.find(name); known != loaded.end()) return *known->second;
  }
  if (gpu::is_capturing(stream))
    fail(Code::unsupported,
         str(label, ": its kernel is not loaded yet, and the stream captures a graph; call it once before (or make a Plan)"));
  const auto binary = jit::default_cache().get(compile_request(source, label, device));
  const gpu::Function& function = gpu::load(binary->bytes, binary->key, source.entry, device);
  const std::lock_guard lock(mutex);
  loaded.emplace(std::move(name), &function);
  return function;
}

Functions load_sources(const std::vector<Source>& sources, std::string_view label, const Device& device, Stream stream) {
  Functions out = {};
  if (sources.size() > kMaxFunctions) fail(Code::internal, str(label, ": ", sources.size(), " sources; at most ", kMaxFunctions));
  for (size_t i = 0; i < sources.size(); ++i)
    if (sources[i].file != nullptr && !sources[i].on_demand) out[i] = &load_source(sources[i], label, device, stream);
  return out;
}

}  // namespace eitri
