// Threads of CPU kernels: the caller's OpenMP team. Inside a parallel region of the caller an operator stays on the
// calling thread, as OpenMP itself would do; a process with its own pool (PyTorch) calls us from one thread.
#pragma once

#include <omp.h>
#include <cstdint>

#include <algorithm>
#include <atomic>
#if defined(__SANITIZE_THREAD__)
#include <thread>
#include <vector>
#endif

namespace eitri {

/// Threads an operator may use now: EITRI_THREADS if set, else omp_get_max_threads(), 1 inside a parallel region. 1 for good in the
/// thread that lives on in a child of fork(), once a team was opened before: libgomp would wait for threads that the child has not.
int max_threads();

/// Whether this process has opened a team of more than one thread.
inline std::atomic<bool> team_was_opened{false};

/// Runs body(thread, threads) on `threads` threads and waits. ThreadSanitizer does not know libgomp's barriers, so under
/// it plain std::thread takes its place (same work split, slower start).
template <class Body> void parallel(int threads, Body&& body) {
  if (threads <= 1) {
    body(0, 1);
    return;
  }
#if defined(__SANITIZE_THREAD__)
  std::vector<std::thread> team;
  for (int t = 1; t < threads; ++t) team.emplace_back([&, t] { body(t, threads); });
  body(0, threads);
  for (auto& thread : team) thread.join();
#else
  if (!team_was_opened.load(std::memory_order_relaxed)) team_was_opened.store(true, std::memory_order_relaxed);
#pragma omp parallel num_threads(threads)
  { body(omp_get_thread_num(), omp_get_num_threads()); }
#endif
}

/// The part [begin, end) of n items that belongs to `part` of `parts`, multiples of `step`, sizes differing by one step.
struct Span {
  int64_t begin, end;
};
inline Span split(int64_t n, int part, int parts, int64_t step = 1) {
  const int64_t steps = (n + step - 1) / step;
  const int64_t begin = steps * part / parts * step, end = steps * (part + 1) / parts * step;
  return {std::min(begin, n), std::min(end, n)};
}

/// A barrier for the threads of one parallel() call; spins, then yields.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_ = 0, phase_ = 0;
};

/// Threads worth starting for a job of `us` microseconds on one thread: a team costs about 1 us to start.
int threads_for(double us_on_one, int available);

}  // namespace eitri
