// The reference of moe_combine: the sum as it is written in eitri/ops.hpp, in double.
#include <cmath>

#include "ops/moe_combine/moe_combine.h"

namespace eitri {

void MoeCombine::reference(const Args& args, Oracle* oracle) {
  const int64_t tokens = args.out.shape[0], hidden = args.out.shape[1], top_k = args.reverse.shape[1];
  const int64_t local = args.num_local_tokens.given() ? static_cast<int64_t>(load(args.num_local_tokens, {0})) : tokens;
  Expected out;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < hidden; ++j) {
      double sum = 0, bound = 0;
      for (int64_t s = 0; s < top_k && t < local; ++s) {
        const auto r = static_cast<int64_t>(load(args.reverse, {t, s}));
        if (r < 0 || r >= args.y.shape[0]) continue;
        const double weight = args.weights.given() ? load(args.weights, {t, s}) : 1;
        const double product = weight * load(args.y, {r, j});
        sum += product;
        bound += std::fabs(product);
      }
      if (args.shared.given() && t < local) {
        const double shared = load(args.shared, {t, j});
        sum += shared;
        bound += std::fabs(shared);
      }
      store(args.out, {t, j}, sum);
      if (oracle == nullptr) continue;
      out.value.push_back(sum);
      out.bound.push_back(std::isfinite(bound) ? bound : 0);
    }
  }
  if (oracle != nullptr) *oracle = {std::move(out)};
}

}  // namespace eitri
