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

template <class Args> void run(const Args& args, Stream stream) {
  open_door();
  call<typename OpOf<Args>::type>(args, stream);
}

}  // namespace

void gemm(const GemmArgs& args, Stream stream) { run(args, stream); }
void grouped_gemm(const GroupedGemmArgs& args, Stream stream) { run(args, stream); }
void quantize(const QuantizeArgs& args, Stream stream) { run(args, stream); }
void activation(const ActivationArgs& args, Stream stream) { run(args, stream); }
void rmsnorm(const RmsNormArgs& args, Stream stream) { run(args, stream); }
void topk_gating(const TopkGatingArgs& args, Stream stream) { run(args, stream); }
void moe_sort(const MoeSortArgs& args, Stream stream) { run(args, stream); }
void moe_combine(const MoeCombineArgs& args, Stream stream) { run(args, stream); }
void fused_moe(const FusedMoeArgs& args, Stream stream) { run(args, stream); }

template <class Args> struct Plan<Args>::State {
  using Op = typename OpOf<Args>::type;
  typename Op::Problem problem;
  DeviceId where;
  Route<Op> route;  // without a kernel for problems that need none
};

template <class Args> Plan<Args>::Plan(const Args& args) : state_(std::make_unique<State>()) {
  open_door();
  using Op = typename State::Op;
  state_->problem = Op::check(args);
  state_->where = device_of<Op>(args);
  const bool needs_kernel = !Op::empty(state_->problem) || state_->where.kind != DeviceKind::cpu;
  if (needs_kernel) state_->route = route<Op>(state_->problem, state_->where);
}
template <class Args> Plan<Args>::~Plan() = default;
template <class Args> Plan<Args>::Plan(Plan&&) noexcept = default;
template <class Args> Plan<Args>& Plan<Args>::operator=(Plan&&) noexcept = default;

template <class Args> void Plan<Args>::run(const Args& args, Stream stream) const {
  require(state_ != nullptr, "plan: was moved from; expected one that holds a route");
  using Op = typename State::Op;
  const auto problem = Op::check(args);
  if (!(problem == state_->problem)) [[unlikely]]  // the keys are text: not made on every call
    fail(Code::invalid_argument, str(Op::name, ": plan was made for ", key_of(state_->problem), "; the call is ", key_of(problem)));
  const DeviceId where = device_of<Op>(args);
  require(where == state_->where, Op::name, ": plan was made for tensors on ", state_->where, "; the call's are on ", where);
  detail::check_stream(Op::name, where, stream);
  if (!detail::is_done_without_kernel<Op>(args, problem, where)) detail::launch<Op>(state_->route, args, problem, stream);
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

std::string explain(std::string_view op, std::string_view problem, DeviceId device) {
  return to_text(find_op(op).explain(problem, device_for(device)));
}
std::string explain_json(std::string_view op, std::string_view problem, DeviceId device) {
  return to_json(find_op(op).explain(problem, device_for(device)));
}
std::string_view version() { return kVersion; }

}  // namespace eitri
