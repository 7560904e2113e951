// A call stack of its own that runs a function and can be left and entered again. The sanitizers are told about each change.
#pragma once

#include <cstddef>

namespace eitri::simt_emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  /// The next enter() starts entry(argument) on an empty stack, whatever the fiber did before. The function must end with
  /// leave_for_good() and let no exception out.
  void reset(void (*entry)(void*), void* argument);
  /// Runs the fiber until it leaves.
  void enter();
  /// Called on the fiber: back to who entered it.
  void leave();
  void leave_for_good();

 private:
  friend struct FiberStart;

  char* memory_ = nullptr;  // guard page, then the stack
  void* own_ = nullptr;     // stack pointers of whoever is not running
  void* outer_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool fresh_ = true;  // nothing on the stack
  // AddressSanitizer's: the place of this stack's escaping variables, and the stack that entered.
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] const void* outer_bottom_ = nullptr;
  [[maybe_unused]] size_t outer_size_ = 0;
};

}  // namespace eitri::simt_emulation
