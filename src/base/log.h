// log(level, topic, parts...): diagnostics for the user of the library. Never throws, any thread
// may call it, and the parts are joined only when somebody listens.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/str.h"

namespace eitri {

enum class LogLevel : uint8_t { off, error, warning, info, debug };
enum class LogTopic : uint8_t { route, jit, tune, backend, settings };
inline constexpr int kLogTopics = 5;

std::string_view to_string(LogLevel level);
std::string_view to_string(LogTopic topic);
std::optional<LogLevel> log_level_from(std::string_view name);
std::optional<LogTopic> log_topic_from(std::string_view name);

/// Messages up to this level are passed on; `warning` for every topic until somebody asks for more
/// (EITRI_LOG does, once the settings are read).
void set_log_level(LogTopic topic, LogLevel level);
LogLevel log_level(LogTopic topic);

/// Receives complete messages without a line end, one at a time. What it logs or throws is dropped.
using LogSink = void (*)(LogLevel level, LogTopic topic, std::string_view message, void* user);
/// Replaces the sink; nullptr brings back the default, which writes lines to stderr. After the
/// return the old sink is no longer running, so its user data may go.
void set_log_sink(LogSink sink, void* user = nullptr);

namespace detail {
extern std::atomic<LogLevel> log_levels[kLogTopics];
void emit(LogLevel level, LogTopic topic, std::string_view message);
/// True the first time that a (topic, key) is seen.
bool first_time(LogTopic topic, std::string_view key);
}  // namespace detail

inline bool log_enabled(LogLevel level, LogTopic topic) noexcept {
  return level <= detail::log_levels[static_cast<int>(topic)].load(std::memory_order_relaxed);
}

template <class... Parts> void log(LogLevel level, LogTopic topic, const Parts&... parts) noexcept {
  if (!log_enabled(level, topic)) return;
  try {
    detail::emit(level, topic, str(parts...));
  } catch (...) {  // out of memory: the message is lost, the caller goes on
  }
}

/// A warning that is given once per process and key, for conditions that every call would repeat.
/// Keys are remembered up to a bound; behind it new ones stay silent.
template <class... Parts> void warn_once(LogTopic topic, std::string_view key, const Parts&... parts) noexcept {
  if (!log_enabled(LogLevel::warning, topic)) return;
  try {
    if (detail::first_time(topic, key)) detail::emit(LogLevel::warning, topic, str(parts...));
  } catch (...) {
  }
}

/// Tests only: every warning may be given again.
void forget_warnings();

}  // namespace eitri
