// Prebuild, seal and user ops for users: thin covers of jit/ over the process's cache.
#include "eitri/jit.hpp"

#include "base/error.h"
#include "jit/cache.h"
#include "jit/prebuild.h"
#include "jit/user_op.h"
#include "ops/prebuild_requests.h"

namespace eitri {
namespace {

PrebuildResult compile_all(std::span<const jit::CompileRequest> requests, std::string_view what) {
  const jit::PrebuildReport report = jit::prebuild(jit::default_cache(), requests);
  if (const std::string failures = report.failures(); !failures.empty())
    fail(Code::compile_failed, str("prebuild of ", what, ": these kernels are not there:\n", failures));
  PrebuildResult result{.kernels = report.items.size(), .seconds = report.seconds};
  for (const jit::PrebuildItem& item : report.items) result.compiled += item.origin == jit::Origin::compiled;
  return result;
}

jit::HeaderSet headers_of(const UserHeaders& headers) {
  jit::HeaderSet out;
  for (const auto& [name, text] : headers) out.add(name, text);
  return out;
}

jit::UserSource inner(UserOpSource&& s) {
  return {.body = std::move(s.body),
          .before = std::move(s.before),
          .flags = std::move(s.flags),
          .headers = headers_of(s.headers),
          .gpu = {.body = std::move(s.gpu.body),
                  .entry = std::move(s.gpu.entry),
                  .before = std::move(s.gpu.before),
                  .threads = s.gpu.threads,
                  .blocks = std::move(s.gpu.blocks),
                  .flags = std::move(s.gpu.flags),
                  .headers = headers_of(s.gpu.headers)}};
}

}  // namespace

void seal() { jit::default_cache().seal(); }

PrebuildResult prebuild(std::string_view op, std::span<const std::string> problems, std::string_view targets) {
  find_op(op);  // refused even without problems
  PrebuildRequests list(parse_gpu_targets("prebuild: targets", targets));
  for (const std::string& problem : problems) list.add(op, problem);
  return compile_all(list.requests(), op);
}

PrebuildResult prebuild(std::string_view op, std::string_view problem, std::string_view targets) {
  const std::string one[] = {std::string(problem)};
  return prebuild(op, one, targets);
}

UserOp::UserOp(std::string_view declaration, UserOpSource source)
    : op_(std::make_unique<jit::UserOp>(declaration, inner(std::move(source)))) {}
UserOp::~UserOp() = default;
UserOp::UserOp(UserOp&&) noexcept = default;
UserOp& UserOp::operator=(UserOp&&) noexcept = default;

const jit::UserOp& UserOp::op() const {
  require(op_ != nullptr, "user op: was moved from; expected one that holds a declaration");
  return *op_;
}

void UserOp::call(std::span<const UserValue> args, Stream stream) const { op().call(args, stream); }
void UserOp::check(std::span<const UserValue> args) const { op().check(args); }
void UserOp::compile() const { op().compile(); }
std::string UserOp::generated_source() const { return op().generated_source(); }
std::string UserOp::generated_gpu_source() const { return op().generated_gpu_source(); }

PrebuildResult UserOp::prebuild(std::string_view targets) const {
  std::vector<jit::CompileRequest> requests;
  for (const jit::Target* target : parse_gpu_targets(op().declaration().name + ": targets", targets))
    requests.push_back(op().gpu_request(*target));
  return compile_all(requests, op().declaration().name);
}

}  // namespace eitri
