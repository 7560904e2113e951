// Team size and the barrier.
#include "backend/cpu/threads.h"

#include <sched.h>

#include "base/settings.h"

namespace eitri {

int max_threads() {
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
