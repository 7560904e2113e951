// Keeps several processes from compiling the same thing at once. Only that: a published entry proves itself, so an
// unreliable or missing lock costs time, never a wrong result.
//
// A lock is a flock on a small file in a local folder ($XDG_RUNTIME_DIR or /tmp), not in the cache, which may lie on a network
// file system. The kernel releases it when the holder dies, however it dies. The files are never deleted (a deleted one could
// be held by one process and made anew by another); there are at most 4096 of them, so keys may share one.
#pragma once

#include <string>

namespace eitri::jit {

/// The folder for lock files, made when missing; empty when no private one can be had.
std::string default_lock_folder();

class BuildLock {
 public:
  BuildLock() = default;
  /// Tries once, without waiting. `subject` tells those who wait what is being made.
  BuildLock(const std::string& folder, const std::string& key, const std::string& subject);
  BuildLock(BuildLock&& other) noexcept;
  BuildLock& operator=(BuildLock&& other) noexcept;
  ~BuildLock();

  bool held() const { return fd_ >= 0; }
  /// False: this file system or folder has no locks; do without.
  bool usable() const { return usable_; }

 private:
  int fd_ = -1;
  bool usable_ = false;
};

/// "pid 4711 on host n03, since 12 s, making rmsnorm.simt.row"; what the holder wrote about itself, for messages only.
std::string lock_holder(const std::string& folder, const std::string& key);

}  // namespace eitri::jit
