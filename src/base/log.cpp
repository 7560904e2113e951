#include "base/log.h"

#include <array>
#include <cstdio>
#include <mutex>
#include <unordered_set>

namespace eitri {

namespace {

constexpr std::array kLevelNames = {"off", "error", "warning", "info", "debug"};
constexpr std::array kTopicNames = {"route", "jit", "tune", "backend", "settings"};
static_assert(kTopicNames.size() == kLogTopics);

constexpr size_t kMaxWarnings = 4096;

void write_to_stderr(LogLevel level, LogTopic topic, std::string_view message, void*) {
  // One fwrite per line: lines of several threads and processes stay whole.
  const std::string line = str("eitri ", to_string(level), " [", to_string(topic), "] ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

struct State {
  std::mutex mutex;
  LogSink sink = write_to_stderr;
  void* user = nullptr;
  std::unordered_set<std::string> warned;
};

/// Never destroyed: threads may log while the process ends.
State& state() {
  static State& instance = *new State;
  return instance;
}

thread_local bool in_sink = false;

}  // namespace

std::string_view to_string(LogLevel level) {
  const auto index = static_cast<size_t>(level);
  return index < kLevelNames.size() ? kLevelNames[index] : "unknown level";
}

std::string_view to_string(LogTopic topic) {
  const auto index = static_cast<size_t>(topic);
  return index < kTopicNames.size() ? kTopicNames[index] : "unknown topic";
}

std::optional<LogLevel> log_level_from(std::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (name == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::optional<LogTopic> log_topic_from(std::string_view name) {
  for (size_t i = 0; i < kTopicNames.size(); ++i) {
    if (name == kTopicNames[i]) return static_cast<LogTopic>(i);
  }
  return std::nullopt;
}

void set_log_level(LogTopic topic, LogLevel level) { detail::log_levels[static_cast<int>(topic)].store(level, std::memory_order_relaxed); }

LogLevel log_level(LogTopic topic) { return detail::log_levels[static_cast<int>(topic)].load(std::memory_order_relaxed); }

void set_log_sink(LogSink sink, void* user) {
  // From inside a sink the mutex is already held by this thread.
  std::unique_lock lock(state().mutex, std::defer_lock);
  if (!in_sink) lock.lock();
  state().sink = sink != nullptr ? sink : write_to_stderr;
  state().user = user;
}

void forget_warnings() {
  std::lock_guard lock(state().mutex);
  state().warned.clear();
}

namespace detail {

constinit std::atomic<LogLevel> log_levels[kLogTopics] = {LogLevel::warning, LogLevel::warning, LogLevel::warning, LogLevel::warning,
                                                          LogLevel::warning};

void emit(LogLevel level, LogTopic topic, std::string_view message) {
  if (in_sink) return;
  std::lock_guard lock(state().mutex);
  in_sink = true;
  try {
    state().sink(level, topic, message, state().user);
  } catch (...) {
  }
  in_sink = false;
}

bool first_time(LogTopic topic, std::string_view key) {
  if (in_sink) return false;
  std::string full = str(to_string(topic), ":", key);
  std::lock_guard lock(state().mutex);
  if (state().warned.size() >= kMaxWarnings) return false;
  return state().warned.insert(std::move(full)).second;
}

}  // namespace detail

}  // namespace eitri
