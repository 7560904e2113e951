// What `eitri prebuild` compiles: the kernels that operators' cases and models need.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/moe_model.h"
#include "ops/prebuild_requests.h"

namespace eitri::cli {

/// The problems of an op that stand for it.
enum class CasesOf : uint8_t { benchmarks, tests_too };

void add_cases(PrebuildRequests& list, std::string_view op, CasesOf which);
void add_all_cases(PrebuildRequests& list, CasesOf which);
/// The calls of a model's MoE block, at 1, 2, 4 … 4096 tokens.
void add_model(PrebuildRequests& list, const checkpoint::MoeModel& model);

}  // namespace eitri::cli
