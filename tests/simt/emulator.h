// Runs kernels of device/simt.h on the CPU: every lane of a block is a fiber, and the block's lanes take turns in an order that
// the schedule says. A lane runs until it waits for others (barrier, warp function) or ends. Found are:
//
//   a barrier or warp function that not all lanes reach, or that lanes reach at different places
//   an index outside of a shared array, and a read of an element that no lane has written
//   two accesses to an element, one of them a write, with no barrier between them (whatever order they happened in)
//   a misaligned vector load or store
//
// and with AddressSanitizer whatever it finds in global memory. One block (or cluster) at a time, in the caller's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace eitri::simt_emulation {

/// Who runs first among the lanes that can. `random` also holds warps back, so that they drift apart.
enum class Order : uint8_t { forward, backward, random };
struct Grid {
  int64_t blocks = 1;
  int threads = 1;  // of a block: a multiple of warp_size, at most 1024 in a cluster
  int cluster = 1;  // blocks that run together; `blocks` is a multiple of it
  int warp_size = 32;
  Order order = Order::forward;
  uint64_t seed = 1;  // of Order::random
};

/// Calls `kernel` once for every lane of every block. "" or the first fault, with the places and lanes that take part in it; the
/// rest of the grid is not run then.
std::string run(const Grid& grid, const std::function<void()>& kernel);

}  // namespace eitri::simt_emulation
