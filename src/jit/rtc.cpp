#include "jit/rtc.h"

#include <dlfcn.h>

#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "jit/process.h"

namespace eitri::jit {

namespace {

/// The functions of the library; all return 0 for success.
struct RtcApi {
  using Program = struct OpaqueProgram*;
  int (*create)(Program*, const char* text, const char* name, int headers, const char* const* texts, const char* const* names) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int options, const char* const*) = nullptr;
  int (*log_size)(Program, size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*binary_size)(Program, size_t*) = nullptr;
  int (*binary)(Program, char*) = nullptr;
  const char* (*error)(int) = nullptr;
};

class RtcCompiler final : public Compiler {
 public:
  RtcCompiler(const RtcKind& kind, std::string path, std::vector<std::string> companions, std::string identity)
      : kind_(kind), path_(std::move(path)), companions_(std::move(companions)), identity_(std::move(identity)) {}

  std::string_view name() const override { return kind_.name; }
  const std::string& identity() const override { return identity_; }
  const std::string& path() const override { return path_; }
  bool makes(const Target& target) const override { return target.machine == kind_.machine; }

  Compiled compile(const CompileRequest& request, const Closure& closure) const override {
    std::vector<std::string> options = {str(kind_.arch_option, request.target->name)};
    options.insert(options.end(), kind_.options.begin(), kind_.options.end());
    for (const std::string& define : request.defines) options.push_back("-D" + define);
    options.insert(options.end(), request.flags.begin(), request.flags.end());

    Compiled out;
    std::vector<std::string> shown = {kind_.name};
    shown.insert(shown.end(), options.begin(), options.end());
    shown.push_back(request.source.name);
    out.command = command_line(shown);
    const RtcApi* const api = load(out.log);
    if (api == nullptr) return out;

    std::vector<const char*> names, texts, arguments;
    for (const auto& [name, text] : closure.headers) {
      names.push_back(name.c_str());
      texts.push_back(text.c_str());
    }
    for (const std::string& option : options) arguments.push_back(option.c_str());
    RtcApi::Program program = nullptr;
    int error = api->create(&program, request.source.text.c_str(), request.source.name.c_str(), static_cast<int>(names.size()),
                            texts.data(), names.data());
    if (error != 0) {
      out.log = str(kind_.name, ": no program: ", api->error(error));
      return out;
    }
    error = api->compile(program, static_cast<int>(arguments.size()), arguments.data());
    out.log = text_of(*api, program);
    size_t size = 0;
    if (error != 0) {
      // 6 is "compilation failed" in both libraries; anything else is the library's own trouble.
      out.verdict = error == 6 || error == 5;  // 5: an option that it does not know
      if (out.log.empty()) out.log = str(kind_.name, ": ", api->error(error));
    } else if (api->binary_size(program, &size) != 0 || size == 0) {
      out.log += str(kind_.name, ": it made no binary");
    } else {
      out.binary.resize(size);
      out.ok = api->binary(program, out.binary.data()) == 0;
    }
    api->destroy(&program);
    return out;
  }

 private:
  static std::string text_of(const RtcApi& api, RtcApi::Program program) {
    size_t size = 0;
    if (api.log_size(program, &size) != 0 || size <= 1) return {};
    std::string text(size, '\0');
    if (api.log(program, text.data()) != 0) return {};
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
    return text;
  }

  /// The library is never unloaded: it keeps threads and statics of its own.
  const RtcApi* load(std::string& why) const {
    const std::lock_guard lock(mutex_);
    if (loaded_) return &api_;
    // Loaded by path, they are there when the library asks for them by name, wherever its own search would have looked.
    for (const std::string& companion : companions_) ::dlopen(companion.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const message = ::dlerror();
      why = str(kind_.name, ": cannot load ", path_, ": ", message != nullptr ? message : "no reason given");
      return nullptr;
    }
    std::string missing;
    const auto get = [&](auto& function, const std::string& name) {
      void* const symbol = ::dlsym(library, (kind_.prefix + name).c_str());
      if (symbol == nullptr) missing += str(missing.empty() ? "" : ", ", kind_.prefix, name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    get(api_.create, "CreateProgram");
    get(api_.destroy, "DestroyProgram");
    get(api_.compile, "CompileProgram");
    get(api_.log_size, "GetProgramLogSize");
    get(api_.log, "GetProgramLog");
    get(api_.binary_size, str(kind_.get_binary, "Size"));
    get(api_.binary, kind_.get_binary);
    get(api_.error, "GetErrorString");
    if (!missing.empty()) {
      why = str(kind_.name, ": ", path_, " lacks ", missing);
      return nullptr;
    }
    log(LogLevel::info, LogTopic::jit, "loaded ", path_);
    loaded_ = true;
    return &api_;
  }

  RtcKind kind_;
  std::string path_;
  std::vector<std::string> companions_;
  std::string identity_;
  mutable std::mutex mutex_;
  mutable RtcApi api_;
  mutable bool loaded_ = false;
};

}  // namespace

FoundCompiler make_rtc(const RtcKind& kind, const std::string& path, const std::vector<std::string>& companions) {
  try {
    std::string identity = str(kind.name, ", ", content_identity(path));
    for (const std::string& file : companions) identity += str("; ", content_identity(file));
    return {std::make_shared<RtcCompiler>(kind, path, companions, std::move(identity)), {}};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace eitri::jit
