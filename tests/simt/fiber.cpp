#include "simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define EITRI_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EITRI_ASAN 1
#endif
#endif
#if defined(EITRI_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace eitri::simt_emulation {

namespace {

constexpr size_t kStackBytes = 128 << 10;  // reserved; only touched pages cost memory
size_t guard_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

/// Where a new stack begins. Not instrumented: it never returns, so that its frame would stay poisoned.
struct FiberStart {
#if defined(EITRI_ASAN)
  __attribute__((no_sanitize("address")))
#endif
  static void
  run(Fiber* fiber) {
#if defined(EITRI_ASAN)
    __sanitizer_finish_switch_fiber(fiber->fake_stack_, &fiber->outer_bottom_, &fiber->outer_size_);
#endif
    fiber->entry_(fiber->argument_);
    __builtin_trap();  // the function has to leave for good
  }
};

#if defined(__x86_64__)

// void eitri_fiber_change(void** save /*rdi*/, void* to /*rsi*/): what a call must preserve, and the stack pointer.
extern "C" void eitri_fiber_change(void** save, void* to);
asm(R"(
.text
.globl eitri_fiber_change
.type eitri_fiber_change, @function
eitri_fiber_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size eitri_fiber_change, .-eitri_fiber_change
)");

// A new stack looks as if eitri_fiber_change had been called from the trampoline, which takes the fiber from r12.
extern "C" void eitri_fiber_begin();
asm(R"(
.text
.globl eitri_fiber_begin
.type eitri_fiber_begin, @function
eitri_fiber_begin:
  movq %r12, %rdi
  subq $8, %rsp
  callq *%r13
  ud2
.size eitri_fiber_begin, .-eitri_fiber_begin
)");

static void* new_stack(char* end, Fiber* fiber) {
  auto** top = reinterpret_cast<void**>(end) - 8;
  for (int i = 0; i < 8; ++i) top[i] = nullptr;
  top[2] = reinterpret_cast<void*>(&FiberStart::run);    // r13
  top[3] = fiber;                                        // r12
  top[6] = reinterpret_cast<void*>(&eitri_fiber_begin);  // return address; rsp is then a multiple of 16 plus 8
  return top;
}

#else

struct Context {
  ucontext_t state;
};
static void begin(unsigned low, unsigned high) { FiberStart::run(reinterpret_cast<Fiber*>(uint64_t{high} << 32 | low)); }
static void eitri_fiber_change(void** save, void* to) {
  Context here;
  *save = &here;
  swapcontext(&here.state, &static_cast<Context*>(to)->state);
}
static void* new_stack(char* end, Fiber* fiber) {
  auto* context = new (end - kStackBytes) Context;
  getcontext(&context->state);
  context->state.uc_stack.ss_sp = end - kStackBytes + sizeof(Context);
  context->state.uc_stack.ss_size = kStackBytes - sizeof(Context);
  context->state.uc_link = nullptr;
  const auto bits = reinterpret_cast<uint64_t>(fiber);
  makecontext(&context->state, reinterpret_cast<void (*)()>(begin), 2, static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32));
  return context;
}

#endif

Fiber::Fiber() {
  void* memory = mmap(nullptr, guard_bytes() + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, guard_bytes(), PROT_NONE);
}

Fiber::~Fiber() { munmap(memory_, guard_bytes() + kStackBytes); }

void Fiber::reset(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
#if defined(EITRI_ASAN)
  if (!fresh_) __asan_unpoison_memory_region(memory_ + guard_bytes(), kStackBytes);  // frames that were abandoned
#endif
  fresh_ = true;
  own_ = new_stack(memory_ + guard_bytes() + kStackBytes, this);
}

void Fiber::enter() {
  fresh_ = false;
#if defined(EITRI_ASAN)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, memory_ + guard_bytes(), kStackBytes);
  eitri_fiber_change(&outer_, own_);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  eitri_fiber_change(&outer_, own_);
#endif
}

void Fiber::leave() {
#if defined(EITRI_ASAN)
  __sanitizer_start_switch_fiber(&fake_stack_, outer_bottom_, outer_size_);
  eitri_fiber_change(&own_, outer_);
  __sanitizer_finish_switch_fiber(fake_stack_, &outer_bottom_, &outer_size_);
#else
  eitri_fiber_change(&own_, outer_);
#endif
}

void Fiber::leave_for_good() {
#if defined(EITRI_ASAN)
  // The fake stack is kept for the next start: to make one for every lane of every block would take most of the time.
  __sanitizer_start_switch_fiber(&fake_stack_, outer_bottom_, outer_size_);
#endif
  eitri_fiber_change(&own_, outer_);
}

}  // namespace eitri::simt_emulation
