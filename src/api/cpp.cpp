// The C++ face: one exported function per operator, and plans.
#include "eitri/eitri.hpp"

#include "eitri/version.hpp"
#include "ops/ops.h"

namespace eitri {
namespace {

/// The first call through any door checks the kernel tables and lets tuned rows be read.
inline void open_door() {
  static const bool opened = (all_ops(), true);
  (void)opened;
}

template <class Args> struct OpOf;
template <> struct OpOf<GemmArgs> { using type = Gemm; };
template <> struct OpOf<GroupedGemmArgs> { using type = GroupedGemm; };
template <> struct OpOf<QuantizeArgs> { using type = Quantize; };
template <> struct OpOf<ActivationArgs> { using type = Activation; };
template <> struct OpOf<RmsNormArgs> { using type = RmsNorm; };
template <> struct OpOf<TopkGatingArgs> { using type = TopkGating; };
template <> struct OpOf<MoeSortArgs> { using type = MoeSort; };
template <> struct OpOf<MoeCombineArgs> { using type = MoeCombine; };
template <> struct OpOf<FusedMoeArgs> { using type = FusedMoe; };

template <class Args> void run(const Args& args) {
  open_door();
  call<typename OpOf<Args>::type>(args);
}

}  // namespace

void gemm(const GemmArgs& args) { run(args); }
void grouped_gemm(const GroupedGemmArgs& args) { run(args); }
void quantize(const QuantizeArgs& args) { run(args); }
void activation(const ActivationArgs& args) { run(args); }
void rmsnorm(const RmsNormArgs& args) { run(args); }
void topk_gating(const TopkGatingArgs& args) { run(args); }
void moe_sort(const MoeSortArgs& args) { run(args); }
void moe_combine(const MoeCombineArgs& args) { run(args); }
void fused_moe(const FusedMoeArgs& args) { run(args); }

template <class Args> struct Plan<Args>::State {
  using Op = typename OpOf<Args>::type;
  typename Op::Problem problem;
  Route<Op> route;  // without a kernel for empty problems
};

template <class Args> Plan<Args>::Plan(const Args& args) : state_(std::make_unique<State>()) {
  open_door();
  using Op = typename State::Op;
  state_->problem = Op::check(args);
  if (!Op::empty(state_->problem)) state_->route = route<Op>(state_->problem);
}
template <class Args> Plan<Args>::~Plan() = default;
template <class Args> Plan<Args>::Plan(Plan&&) noexcept = default;
template <class Args> Plan<Args>& Plan<Args>::operator=(Plan&&) noexcept = default;

template <class Args> void Plan<Args>::run(const Args& args) const {
  require(state_ != nullptr, "plan: was moved from; expected one that holds a route");
  using Op = typename State::Op;
  const auto problem = Op::check(args);
  if (!(problem == state_->problem)) [[unlikely]]  // the keys are text: not made on every call
    fail(Code::invalid_argument, str(Op::name, ": plan was made for ", key_of(state_->problem), "; the call is ", key_of(problem)));
  if (state_->route.kernel == nullptr) Op::reference(args, nullptr);
  else detail::launch<Op>(state_->route, args, problem);
}
template <class Args> std::string_view Plan<Args>::kernel() const {
  return state_ == nullptr || state_->route.kernel == nullptr ? "" : state_->route.kernel->name;
}
template <class Args> size_t Plan<Args>::workspace_bytes() const { return state_ == nullptr ? 0 : state_->route.workspace; }

template class EITRI_EXPORT Plan<GemmArgs>;
template class EITRI_EXPORT Plan<GroupedGemmArgs>;
template class EITRI_EXPORT Plan<QuantizeArgs>;
template class EITRI_EXPORT Plan<ActivationArgs>;
template class EITRI_EXPORT Plan<RmsNormArgs>;
template class EITRI_EXPORT Plan<TopkGatingArgs>;
template class EITRI_EXPORT Plan<MoeSortArgs>;
template class EITRI_EXPORT Plan<MoeCombineArgs>;
template class EITRI_EXPORT Plan<FusedMoeArgs>;

std::string explain(std::string_view op, std::string_view problem) { return to_text(find_op(op).explain(problem, cpu_device())); }
std::string explain_json(std::string_view op, std::string_view problem) { return to_json(find_op(op).explain(problem, cpu_device())); }
std::string_view version() { return kVersion; }

}  // namespace eitri
