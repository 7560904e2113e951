// Team size and the barrier.
#include "backend/cpu/threads.h"

#include <pthread.h>
#include <sched.h>

#include "base/log.h"
#include "base/settings.h"

namespace eitri {
namespace {

/// Of the thread that called fork(), in the child. Threads that the child starts have teams of their own.
thread_local bool lost_its_team = false;

[[maybe_unused]] const int watched = ::pthread_atfork(nullptr, nullptr, [] {
  if (!team_was_opened.load(std::memory_order_relaxed)) return;
  lost_its_team = true;
  omp_set_num_threads(1);  // for oneDNN, and whoever else has this thread's team
});

}  // namespace

int max_threads() {
  if (lost_its_team) [[unlikely]] {
    warn_once(LogTopic::backend, "fork", "this process was forked from one that had opened an OpenMP team, which does not survive: operators ",
              "called by this thread stay on it; fork before the first call, or start processes with spawn, for more");
    return 1;
  }
  if (omp_in_parallel()) return 1;
  const int wanted = settings().threads;
  return wanted > 0 ? wanted : omp_get_max_threads();
}

void Barrier::wait() {
  const int phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  // A hand-over between two cores takes about 0.3 us; beyond some 20 us the other thread is probably not running.
  for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (spin > 400) sched_yield();
  }
}

int threads_for(double us_on_one, int available) {
  constexpr double kWorthwhileUs = 2.0;  // per thread; starting a team costs 0.8 us on two cores
  const double worth = us_on_one / kWorthwhileUs;
  return worth <= 1 ? 1 : worth >= available ? available : static_cast<int>(worth);
}

}  // namespace eitri
