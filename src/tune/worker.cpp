// The child's end.
#include "tune/worker.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <iostream>

#include <omp.h>

#include "backend/cpu/available_memory.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/kept_pages.h"
#include "backend/gpu.h"
#include "base/error.h"
#include "base/log.h"
#include "dispatch/database.h"
#include "tune/sampler.h"

namespace eitri::tune {
namespace {

using nlohmann::json;

constexpr int kAnswers = 3;

void answer(const json& reply) {
  const std::string line = reply.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(kAnswers, line.data() + done, line.size() - done);
    if (n <= 0) ::_exit(4);  // nobody listens
    done += static_cast<size_t>(n);
  }
}

const Device& device_named(const std::string& text) {
  if (text == "cpu") return cpu_device();
  int index = -1;
  require(text.starts_with("cuda:"), "device is ", text, "; expected cpu or cuda:N");
  std::from_chars(text.data() + 5, text.data() + text.size(), index);
  return gpu::device(index);
}

/// A kernel that allocates without end gets std::bad_alloc instead of the machine. GPU drivers reserve address space by the
/// terabyte, so there it is left alone.
void limit_memory(const Device& device) {
  ::rlimit limit{.rlim_cur = 0, .rlim_max = 0};
  ::setrlimit(RLIMIT_CORE, &limit);
  if (device.is_gpu()) return;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  limit.rlim_cur = limit.rlim_max = available_memory() + (size_t{2} << 30);  // address space is more than memory
  ::setrlimit(RLIMIT_AS, &limit);
#endif
}

size_t pages_to_keep() { return std::min(available_memory() / 16, size_t{1} << 30); }

class Server {
 public:
  explicit Server(std::span<const TunedOp> ops) : ops_(ops) {}

  json serve(const json& request) {
    const std::string what = request.value("do", "");
    if (what == "start") return start(request);
    require(device_ != nullptr, what, ": not started");
    if (what == "open") return open(request);
    if (what == "close") {
      subject_ = {};
      // The pages of the ring and of inputs are kept for the next problem, where they are a small part of what there is.
      if (ring_arena().size() > available_memory() / 8) ring_arena() = {};
      keep_pages(pages_to_keep());
      return {{"ok", true}};
    }
    require(subject_.time != nullptr, what, ": no problem is open");
    if (what == "ring") {
      subject_.make_ring();
      return {{"ok", true}};
    }
    if (what == "damage") return {{"ok", true}, {"found", subject_.damage()}};
    const std::string kernel = request.at("kernel"), config = request.at("config");
    if (what == "check") {
      const Checked c = subject_.check(
          kernel, config, {.repeats = request.at("repeats"), .most_us = request.at("most_us"), .looks_for_damage = request.at("inputs")});
      return {{"ok", true},       {"wrong", c.wrong}, {"damaged", c.damaged}, {"slow", c.slow}, {"everywhere", !c.here_only},
              {"error", c.error}, {"us", c.us}};
    }
    if (what == "time") return {{"ok", true}, {"us", subject_.time(kernel, config, request.at("sample_us"))}};
    fail(Code::invalid_argument, str("request is ", what, "; expected start, open, ring, check, damage, time or close"));
  }

 private:
  json start(const json& request) {
    if (const int threads = request.value("threads", 0); threads > 0) omp_set_num_threads(threads);
    device_ = &device_named(request.at("device"));
    limit_memory(*device_);
    keep_pages(pages_to_keep());
    if (device_->is_gpu()) {
      const gpu::ContextScope context(*device_);
    } else if (const auto profile = stored_profile(*device_, omp_get_max_threads())) {
      set_profile(*profile);
      device_ = &cpu_device();
    }
    return {{"ok", true}};
  }

  json open(const json& request) {
    const std::string op = request.at("op");
    tuned_rows_changed();  // recipes route their calls by what has been tuned since
    for (const TunedOp& known : ops_) {
      if (known.name != op) continue;
      subject_ = {};
      subject_ = known.subject(request.at("problem").get<std::string>(), *device_, {.most_flops = request.at("most_flops")});
      return {{"ok", true}, {"fewer_rows", request.value("check", true) && subject_.prepare()}};
    }
    fail(Code::invalid_argument, str("op is ", op, "; the worker does not know it"));
  }

  const Device* device_ = nullptr;
  std::span<const TunedOp> ops_;
  Subject subject_;
};

}  // namespace

int worker_main(std::span<const TunedOp> ops) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  Server server(ops);
  for (std::string line; std::getline(std::cin, line);) {
    json reply;
    try {
      reply = server.serve(json::parse(line));
    } catch (const std::exception& error) {
      reply = {{"ok", false}, {"why", error.what()}};
    }
    answer(reply);
  }
  return 0;
}

}  // namespace eitri::tune
