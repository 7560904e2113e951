// A private temporary folder for one compile, removed with its content.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace eitri::jit {

class Scratch {
 public:
  /// In the first place that can be written to, from the `attempt`-th on: $TMPDIR, /tmp, /var/tmp, /dev/shm. Throws
  /// Error{io_error} when none is left.
  explicit Scratch(size_t attempt = 0);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }
  /// Writes a file, with the folders that its name has. Throws Error{io_error}.
  void write(const std::string& name, std::string_view text) const;
  /// Less than 1 MiB or no file is left on this file system: what failed here may succeed elsewhere.
  bool full() const;

 private:
  std::string path_;
};

/// Removes a folder and all in it; what cannot be removed stays.
void remove_tree(const std::string& path) noexcept;

}  // namespace eitri::jit
