#include "jit/user_op.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/view.h"

namespace eitri::jit {

namespace {

constexpr const char* kEntry = "eitri_user_op";

/// Loads a library from memory: for a cache that keeps nothing on disk, or lies on a file system without execution.
void* load_from_memory(const Binary& binary, std::string& why) {
  const int fd = ::memfd_create("eitri-user-op", MFD_CLOEXEC);
  if (fd < 0) {
    why = str("no memory file: ", std::generic_category().message(errno));
    return nullptr;
  }
  size_t done = 0;
  while (done < binary.bytes.size()) {
    const ssize_t written = ::write(fd, binary.bytes.data() + done, binary.bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  void* library = nullptr;
  if (done == binary.bytes.size()) {
    library = ::dlopen(str("/proc/self/fd/", fd).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const message = ::dlerror();
      why = message != nullptr ? message : "no reason given";
    }
  } else {
    why = "out of memory";
  }
  // The loader tells libraries apart by path: a second one would be taken for the first while "/proc/self/fd/7" is in use
  // again. So the number stays taken once something is loaded from it.
  if (library == nullptr) ::close(fd);
  return library;
}

std::string wanted_type(const UserParameter& p) {
  return p.is_tensor() ? str(p.strided ? "strided " : "", p.type) : str("a number of type ", p.type);
}

/// "op: x <got>; expected <type><more>"; no text is made unless it is needed.
template <class... Got> void want(bool ok, const std::string& op, const UserParameter& p, const char* more, const Got&... got) {
  if (!ok) [[unlikely]]
    fail(Code::invalid_argument, str(op, ": ", p.name, got..., "; expected ", wanted_type(p), more));
}

}  // namespace

UserOp::UserOp(std::string_view declaration, UserSource source, Cache* cache, const GpuLauncher& launcher)
    : declaration_(parse_declaration(declaration)), source_(std::move(source)), cache_(cache), launcher_(launcher) {
  check_gpu_source(declaration_, source_.gpu);
  if (source_.gpu.given() && source_.gpu.blocks != "elements")
    blocks_.emplace(source_.gpu.blocks, declaration_.extents, declaration_.name + ": gpu.blocks");
}

UserOp::~UserOp() {
  for (const Loaded* at = loaded_.load(); at != nullptr;) delete std::exchange(at, at->next);
}

std::string UserOp::generated_source() const { return user_op_text(declaration_, source_.before, source_.body); }

void UserOp::call(std::span<const UserValue> args, Stream stream) const {
  Argument arguments[kMaxUserArguments];
  int64_t extents[kMaxUserExtents];
  const DeviceId where = check(args, arguments, extents);
  if (where.kind != DeviceKind::cpu) return call_on_gpu(where, stream, arguments, extents);
  require(stream == nullptr, declaration_.name, ": a stream is given; expected none for tensors in host memory");
  Entry entry = entry_.load(std::memory_order_acquire);
  if (entry == nullptr) [[unlikely]]
    entry = load();
  entry(arguments, extents);
}

void UserOp::check(std::span<const UserValue> args) const {
  Argument arguments[kMaxUserArguments];
  int64_t extents[kMaxUserExtents];
  check(args, arguments, extents);
}

void UserOp::compile() const {
  require(!source_.body.empty() || !source_.gpu.given(), declaration_.name, ": there is no source for the CPU; expected a body");
  if (entry_.load(std::memory_order_acquire) == nullptr) load();
}

UserOp::Entry UserOp::load() const {
  const std::lock_guard lock(mutex_);
  if (const Entry entry = entry_.load(std::memory_order_acquire)) return entry;
  CompileRequest request = {.label = declaration_.name, .flags = source_.flags, .target = &host_target()};
  request.source = {.name = declaration_.name + ".cpp", .text = generated_source(), .headers = source_.headers};
  request.source.headers.add(user_op_headers());
  const std::shared_ptr<const Binary> binary = (cache_ != nullptr ? *cache_ : default_cache()).get(request);
  std::string why = "no file";
  void* library = binary->path.empty() ? nullptr : ::dlopen(binary->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = load_from_memory(*binary, why);
  if (library == nullptr) fail(Code::compile_failed, str(declaration_.name, ": its compiled library cannot be loaded: ", why));
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, kEntry));
  if (entry == nullptr) fail(Code::compile_failed, str(declaration_.name, ": its compiled library has no function ", kEntry));
  entry_.store(entry, std::memory_order_release);  // never unloaded: its code may have started threads
  return entry;
}

void UserOp::check_scalar(const UserParameter& p, const UserValue& value, Argument& out) const {
  const std::string& op = declaration_.name;
  using Kind = UserValue::Kind;
  want(value.kind_ != Kind::tensor, op, p, "", " is a tensor");
  want(value.kind_ != Kind::huge, op, p, "", " is an integer of 2^63 or more");
  if (p.scalar == UserScalar::f32 || p.scalar == UserScalar::f64) {
    out.real = value.kind_ == Kind::real ? value.real_ : static_cast<double>(value.integer_);
    const bool fits =
        p.scalar == UserScalar::f64 || !std::isfinite(out.real) || std::fabs(out.real) <= double{std::numeric_limits<float>::max()};
    want(fits, op, p, "", " is the number ", out.real);
    return;
  }
  if (value.kind_ == Kind::real) want(false, op, p, "", " is the number ", value.real_, " of a floating-point type");
  out.integer = value.integer_;
  const bool fits = p.scalar == UserScalar::i64 || (out.integer >= INT32_MIN && out.integer <= INT32_MAX);
  want(fits, op, p, "", " is the number ", out.integer);
}

void UserOp::check_tensor(const UserParameter& p, const UserValue& value, DeviceId where, Argument& out) const {
  const std::string& op = declaration_.name;
  want(value.kind_ == UserValue::Kind::tensor, op, p, "", " is a number");
  const View& view = *value.view_;
  want(view.given(), op, p, "", " is not given");
  want(view.dtype == p.dtype && view.rank == static_cast<int>(p.shape.size()), op, p, "", " is ", view);
  want(view.layout == Layout::strided, op, p, " that is not packed", " is ", view);
  want(view.device.kind == DeviceKind::cpu || source_.gpu.given(), op, p, " in host memory (there is no source for GPUs)", " is on a GPU");
  const bool here = view.device.kind != DeviceKind::cpu || !source_.body.empty() || !source_.gpu.given();
  want(here, op, p, " on a GPU (there is no source for the CPU)", " is in host memory");
  want(view.device == where, op, p, " where the first tensor is", " is on another device than that");
  if (p.use == UserUse::in) check_view(view, op.c_str(), p.name.c_str(), view.rank);
  else check_output(view, op.c_str(), p.name.c_str(), view.rank);
  want(p.strided || is_contiguous(view), op, p, " that is contiguous", " is ", view);
  out.data = view.data;
  for (int d = 0; d < view.rank; ++d) {
    out.shape[d] = view.shape[d];
    out.stride[d] = view.stride[d];
  }
}

/// Gives every extent name its number and checks all shapes. Plain names bind first, so that "2*k" is checked, not solved,
/// wherever k stands alone too.
void UserOp::bind_extents(std::span<const UserValue> args, int64_t* extents) const {
  const Declaration& d = declaration_;
  int from[kMaxUserExtents];  // which argument gave it
  for (size_t i = 0; i < d.extents.size(); ++i) from[i] = -1;
  const auto each = [&](auto&& visit) {
    for (size_t i = 0; i < d.parameters.size(); ++i) {
      for (size_t k = 0; k < d.parameters[i].shape.size(); ++k) visit(i, d.parameters[i].shape[k], args[i].view_->shape[k]);
    }
  };
  for (const bool plain : {true, false}) {
    each([&](size_t i, const UserExtent& e, int64_t value) {
      if (e.name < 0 || from[e.name] >= 0 || (e.factor == 1) != plain) return;
      if (value % e.factor != 0) return;  // refused below
      extents[e.name] = value / e.factor;
      from[e.name] = static_cast<int>(i);
    });
  }
  each([&](size_t i, const UserExtent& e, int64_t value) {
    const UserParameter& p = d.parameters[i];
    if (e.name < 0) {
      want(value == e.factor, d.name, p, "", " is ", *args[i].view_);
      return;
    }
    if (from[e.name] < 0) {
      fail(Code::invalid_argument,
           str(d.name, ": ", p.name, " is ", *args[i].view_, "; expected ", wanted_type(p), " (a multiple of ", e.factor, ")"));
    }
    // check_view has limited `value`, but not the product.
    int64_t product = 0;
    const bool equal = !__builtin_mul_overflow(e.factor, extents[e.name], &product) && product == value;
    if (!equal) {
      fail(Code::invalid_argument, str(d.name, ": ", p.name, " is ", *args[i].view_, "; expected ", wanted_type(p), " with ",
                                       d.extents[static_cast<size_t>(e.name)], " = ", extents[e.name], " (from ",
                                       d.parameters[static_cast<size_t>(from[e.name])].name, ")"));
    }
  });
}

DeviceId UserOp::check(std::span<const UserValue> args, Argument* out, int64_t* extents) const {
  const Declaration& d = declaration_;
  require(args.size() == d.parameters.size(), d.name, ": ", args.size(), " arguments are given; expected ", d.parameters.size());
  bool tensors = false;
  DeviceId where;
  for (size_t i = 0; i < args.size(); ++i) {
    out[i] = {};
    const UserParameter& p = d.parameters[i];
    if (p.is_tensor()) {
      if (!tensors && args[i].kind_ == UserValue::Kind::tensor) where = args[i].view_->device;
      check_tensor(p, args[i], where, out[i]);
      tensors = true;
    } else {
      check_scalar(p, args[i], out[i]);
    }
  }
  if (!tensors) return where;
  bind_extents(args, extents);
  for (size_t i = 0; i < args.size(); ++i) {
    if (d.parameters[i].use == UserUse::in) continue;
    for (size_t k = 0; k < args.size(); ++k) {
      if (k == i || !d.parameters[k].is_tensor()) continue;
      require(!overlap(*args[i].view_, *args[k].view_), d.name, ": ", d.parameters[i].name, " overlaps ", d.parameters[k].name,
              "; expected an output in memory of its own (declare one inout parameter to work in place)");
    }
  }
  return where;
}

}  // namespace eitri::jit
