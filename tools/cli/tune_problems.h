// Where the problems of `eitri tune` come from: an option, a CSV of shapes, a model, a record of misses, rows that are stale.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/moe_model.h"
#include "ops/fused_moe/fused_moe.h"
#include "tune/tuner.h"

namespace eitri::cli {

using Problems = std::vector<tune::TuneProblem>;

/// "m=1,n=4096,k=4096" with the op's defaults for the rest; on a GPU plain weights are the default.
tune::TuneProblem problem_from_text(const std::string& op, const std::string& text, const Device& device);
/// A CSV with a header. Columns that are fields of the op's problem are taken by name, in any case; the rest is passed over, as is what
/// the peer's untuned files have besides (dtype, outdtype, q_dtype_w and bias are understood for gemm). Without the op's bucketed
/// field (m, tokens) every value of `ladder`. Throws Error{invalid_argument} naming file and line.
Problems problems_from_csv(const std::string& op, const std::string& path, const std::vector<int64_t>& ladder, const Device& device);
/// The MoE blocks of a model for these token counts, and before them the calls that recipes make of them.
Problems problems_of_model(const std::string& model, const std::string& weights, const std::vector<int64_t>& tokens, const Device& device);
/// The MoE block of a model, its weights packed as calls on CPUs have them; w: bf16 or i8.
FusedMoe::Problem block_of(const checkpoint::MoeModel& model, int64_t tokens, DType w);
/// The misses of this machine, most time first; `skipped` counts those of other machines, `problems` says what cannot be read.
Problems problems_from_record(const std::string& path, const Device& device, size_t& skipped, std::vector<std::string>& problems);
/// Whether the row was made with another text of its kernel than there is now, or of one that is no more.
bool is_of_the_past(const std::string& op, const TunedRow& row);
/// Problems of the folder's rows that are.
Problems stale_problems(const std::string& folder, const Device& device);
/// 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096 up to `most`.
std::vector<int64_t> default_ladder(int64_t most);

/// Each problem once, in order.
Problems without_repeats(Problems problems);
/// Part i of n (1-based) of the list: every n-th, so that all parts hold small and large ones. `grows`: of a list that is another one when the
/// next part is asked for (a record, stale rows), by what each problem says.
Problems shard_of(const Problems& problems, const std::string& shard, bool grows);

}  // namespace eitri::cli
