// One entry of the cache on disk: a folder that is published by one rename and trusted only after its manifest and checksums
// have been verified.
//
//   <root>/entries/<key>/{manifest, stamp, <binary>}   what was compiled; the stamp's time is when it was last used
//   <root>/failed/<key>/{manifest, <sources>}          a source that a compiler has refused, with what it said
//   <root>/quarantine/<key>-<pid>-<n>/                 entries that did not verify, for a look; the newest few are kept
//   <root>/tmp/<pid>-<n>-<random>/                     being written; old ones are removed
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/target.h"

namespace eitri::jit {

struct Manifest {
  std::string key;
  bool failed = false;
  std::string label, target, compiler, identity, source;  // `compiler` is its name, `source` the name of the main text
  std::vector<std::string> defines, flags, system;
  std::vector<std::pair<std::string, std::string>> closure;  // name and SHA-256 of the main text and of each header
  std::string command, log;
  int64_t created = 0;  // seconds since 1970
  double seconds = 0;   // what the compile took
  std::string file;     // the binary's name; empty for a failure
  uint64_t size = 0;
  std::string checksum;  // SHA-256 of the binary
};

/// The manifest as the file has it: a line with its own checksum, then JSON.
std::string to_text(const Manifest& manifest);
/// Throws Error{io_error} for anything but what to_text has made.
Manifest manifest_from(std::string_view text);

struct ReadEntry {
  enum class State : uint8_t { missing, corrupt, good };
  State state = State::missing;
  std::string problem;  // why it is corrupt
  Manifest manifest;
  std::string binary;
};
/// Reads and verifies an entry; `target` null: as the manifest says. With WithBinary::no only the manifest is verified.
enum class WithBinary : uint8_t { yes, no };
ReadEntry read_entry(const std::string& folder, const std::string& key, const Target* target, WithBinary with = WithBinary::yes);

/// Called at named steps; tests stop and kill the process there.
using StepHook = void (*)(std::string_view step, void* user);
struct Steps {
  StepHook hook = nullptr;
  void* user = nullptr;
  void at(std::string_view step) const {
    if (hook != nullptr) hook(step, user);
  }
};

enum class Published : uint8_t { ours, exists };
/// Writes `files` and the manifest into a new folder under `root`/tmp, flushes them, and renames the folder to `target_folder`.
/// `exists`: there is an entry of that name already; ours is gone. Throws Error{io_error} (a full disk, say), leaving nothing.
Published publish(const std::string& root, const std::string& target_folder, const Manifest& manifest,
                  const std::vector<std::pair<std::string, std::string_view>>& files, const Steps& steps);

/// Renames a folder out of the way, into quarantine (or, to delete it, into tmp). False when that cannot be done.
bool move_to_quarantine(const std::string& root, const std::string& folder, const std::string& key);
bool delete_entry(const std::string& root, const std::string& folder);

/// Says that the entry is in use now. A cache that cannot be written to keeps its old time.
void touch_stamp(const std::string& folder) noexcept;
/// When it was last touched, in nanoseconds since 1970; 0 when unknown.
int64_t stamp_time(const std::string& folder);

}  // namespace eitri::jit
