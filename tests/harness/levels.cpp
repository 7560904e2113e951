#include "harness/levels.h"

#include "base/settings.h"

namespace eitri::harness {

const std::vector<Isa>& levels() {
  static const std::vector<Isa> all = [] {
    if (!settings().isa.empty()) return std::vector<Isa>{cpu_device().isa};
    std::vector<Isa> found;
    for (int i = 0; i <= static_cast<int>(best_isa()); ++i) found.push_back(static_cast<Isa>(i));
    return found;
  }();
  return all;
}

LevelScope::LevelScope(Isa isa) : before_(cpu_device().isa) { force_isa(isa); }
LevelScope::~LevelScope() { force_isa(before_); }

}  // namespace eitri::harness
