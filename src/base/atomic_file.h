// Files that readers see whole or not at all, and bounded reading of files that others wrote.
// Failures throw Error{io_error} naming the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace eitri {

/// The bytes of a regular file; refuses more than `max_bytes` before it has read them.
std::string read_file(const std::string& path, size_t max_bytes);

enum class FileAccess : uint8_t { owner_only /* 0600 */, everyone_reads /* 0644 */ };

/// Writes a temporary file in the folder of `path`, flushes it to the disk and renames it over
/// `path`: a reader, a crash or a full disk never meets a part of it. The last of several writers
/// wins. On failure the old file is untouched and the temporary one is removed.
void write_file_atomic(const std::string& path, std::span<const std::byte> bytes, FileAccess access = FileAccess::everyone_reads);
void write_file_atomic(const std::string& path, std::string_view text, FileAccess access = FileAccess::everyone_reads);

/// Makes `path` and missing parents with mode 0700. Refuses an existing folder that belongs to
/// somebody else or that others may write to, and a link that somebody else placed.
void make_private_dir(const std::string& path);

/// A read-only map of a file. The file must not be truncated while it is mapped: replace it with
/// write_file_atomic() instead, which leaves the mapped one as it is.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace eitri
