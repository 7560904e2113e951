// An operator of the user's own: declared in one line, written as the body of a C++ function, compiled on the first call and
// checked on every one.
//
//   UserOp scale("scale(x: f32[n], y: out f32[n], alpha: f32)",
//                {.body = "for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);"});
//   scale(x, y, 0.5f);
//
// In the body every extent name is an int64_t, every scalar a constant of its type, and every tensor an object with
// x(i, j), x.data, x.shape[d], x.stride(d) and x.size(). Tensors are contiguous (x[i] runs over all elements) unless declared
// `strided`. bf16 and f16 elements convert to and from float. The body runs on the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "jit/cache.h"
#include "jit/declaration.h"

namespace eitri::jit {

/// One argument of a call. Integers and floats stay apart: an i32 parameter takes no 1.5.
class UserValue {
 public:
  UserValue(const View& view) : kind_(Kind::tensor), view_(&view) {}
  template <class T>
  requires std::is_arithmetic_v<T> UserValue(T value) {
    if constexpr (std::is_floating_point_v<T>) kind_ = Kind::real, real_ = static_cast<double>(value);
    else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8)
      kind_ = value > INT64_MAX ? Kind::huge : Kind::integer, integer_ = static_cast<int64_t>(value);
    else kind_ = Kind::integer, integer_ = value;
  }

 private:
  friend class UserOp;
  enum class Kind : uint8_t { tensor, real, integer, huge };  // huge: does not fit int64_t
  Kind kind_ = Kind::integer;
  union {
    const View* view_;
    double real_;
    int64_t integer_;
  };
};

struct UserSource {
  std::string body;
  std::string before = {};              // in front of the function: includes, types, functions
  std::vector<std::string> flags = {};  // "-fopenmp", "-ffast-math", …
  HeaderSet headers = {};               // what `before` may include by "name"
};

class UserOp {
 public:
  /// Reads the declaration; nothing is compiled yet. `cache` null: default_cache(). Throws Error{invalid_argument}.
  UserOp(std::string_view declaration, UserSource source, Cache* cache = nullptr);
  UserOp(const UserOp&) = delete;
  UserOp& operator=(const UserOp&) = delete;

  /// Checks the arguments, compiles on the first call, and runs. Any thread. What the body throws passes through.
  template <class... Args> void operator()(const Args&... args) const {
    if constexpr (sizeof...(Args) == 0) {
      call({});
    } else {
      const UserValue values[] = {UserValue(args)...};
      call(values);
    }
  }
  void call(std::span<const UserValue> args) const;

  /// Compiles and loads now. Throws Error{compile_failed} with the compiler's message, whose lines count from the start of the
  /// body ("<name>") or of the text before it ("<name> before").
  void compile() const;
  const Declaration& declaration() const { return declaration_; }
  /// The whole text that is compiled.
  std::string generated_source() const;

 private:
  /// What the generated function gets per argument; the same struct is in its prelude.
  struct Argument {
    void* data;
    int64_t shape[kMaxRank];
    int64_t stride[kMaxRank];
    double real;
    int64_t integer;
  };
  using Entry = void (*)(const Argument*, const int64_t* extents);

  void check(std::span<const UserValue> args, Argument* out, int64_t* extents) const;
  void check_scalar(const UserParameter& p, const UserValue& value, Argument& out) const;
  void check_tensor(const UserParameter& p, const UserValue& value, Argument& out) const;
  void bind_extents(std::span<const UserValue> args, int64_t* extents) const;
  Entry load() const;

  const Declaration declaration_;
  const UserSource source_;
  Cache* const cache_;
  mutable std::mutex mutex_;
  mutable std::atomic<Entry> entry_ = nullptr;
};

}  // namespace eitri::jit
