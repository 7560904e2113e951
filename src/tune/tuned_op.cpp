#include "tune/tuned_op.h"

namespace eitri::tune {

std::vector<Config> every_config(Knobs knobs) {
  std::vector<Config> out = {{}};
  for (size_t i = 0; i < knobs.size(); ++i) {
    std::vector<Config> longer;
    for (const Config& config : out)
      for (const int value : knobs[i].values) {
        longer.push_back(config);
        longer.back().value[i] = value;
      }
    out = std::move(longer);
  }
  return out;
}

}  // namespace eitri::tune
