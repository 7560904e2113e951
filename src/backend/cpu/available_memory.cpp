#include "backend/cpu/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace eitri {

size_t available_memory() {
  size_t bytes = size_t{1} << 62;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name, unit; meminfo >> name;) {
    size_t kib = 0;
    if (name == "MemAvailable:" && meminfo >> kib) bytes = kib << 10;
    std::getline(meminfo, unit);
  }
  const auto number = [](const char* path) {
    size_t value = 0;
    return std::ifstream(path) >> value ? value : size_t{0};
  };
  const size_t limit = number("/sys/fs/cgroup/memory.max"), used = number("/sys/fs/cgroup/memory.current");
  if (limit > 0) bytes = std::min(bytes, limit > used ? limit - used : 0);
  return bytes;
}

}  // namespace eitri
