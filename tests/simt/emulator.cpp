#include "simt/emulator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "base/str.h"
#include "device/simt_emulated.h"
#include "simt/fiber.h"

namespace eitri::simt_emulation {

namespace {

constexpr int kMaxThreads = 1024;

enum class State : uint8_t { ready, barrier, warp_barrier, exchange, ended };

struct LaneState {
  State state = State::ready;
  const char* what = "";  // of an exchange
  Site site = {"", 0};
  uint32_t barriers = 0;  // passed so far
  uint32_t warp_barriers = 0;
  uint64_t exchanges = 0;
  uint64_t posted = 0;
};

std::string place(Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return str(slash != nullptr ? slash + 1 : site.file, ":", site.line);
}

std::string activity(const LaneState& lane) {
  switch (lane.state) {
    case State::ready: return "still run";
    case State::barrier: return str("wait at sync() at ", place(lane.site));
    case State::warp_barrier: return str("wait at sync_warp() at ", place(lane.site));
    case State::exchange:
      return str("wait at ", lane.what, "() at ", place(lane.site), ", warp function ", lane.exchanges + 1, " of theirs");
    case State::ended: return "have ended";
  }
  return "";
}

class Machine {
 public:
  std::string run(const Grid& grid, const std::function<void()>& kernel);

  int current() const { return current_; }
  int64_t block() const { return block_; }
  const Grid& grid() const { return grid_; }
  uint64_t era() const { return era_; }
  LaneState& lane() { return lanes_[static_cast<size_t>(current_)]; }

  /// The running lane waits in `state`.
  void wait(State state, Site site) {
    lane().state = state;
    lane().site = site;
    fibers_[static_cast<size_t>(current_)]->leave();
  }
  /// What the lanes of the running lane's warp posted. Two buffers in turn: a lane can be at most one exchange ahead.
  uint64_t* words() {
    const auto warp = static_cast<size_t>(current_ / grid_.warp_size);
    return words_[warp][lane().exchanges % 2];
  }
  void note(const std::string& text) {
    if (fault_.empty()) fault_ = str("block ", block_, ": ", text);
  }
  /// Ends the run, after note(). The lane's stack is never unwound, so nothing on it may own memory at this point.
  [[noreturn]] void quit() {
    fibers_[static_cast<size_t>(current_)]->leave_for_good();
    __builtin_unreachable();
  }

 private:
  static void lane_main(void* machine);
  void run_block();
  void pass();
  bool release();
  bool release_warp(int first);
  bool release_block();
  /// "lanes 0-31 wait at ...; lanes 32-63 have ended".
  std::string describe(int begin, int end) const;

  Grid grid_;
  int lanes_of_cluster_ = 1;
  const std::function<void()>* kernel_ = nullptr;
  std::mt19937_64 rng_;
  int64_t block_ = 0;  // the first of its cluster
  int current_ = 0;
  uint64_t era_ = 0;  // counts blocks over the life of the process: shared arrays are static
  std::string fault_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<LaneState> lanes_;
  std::vector<int> order_;
  uint64_t words_[kMaxThreads / 32][2][64];
};

Machine& machine() {
  static Machine one;
  return one;
}

void Machine::lane_main(void* argument) {
  auto& self = *static_cast<Machine*>(argument);
  const auto me = static_cast<size_t>(self.current_);
  try {
    (*self.kernel_)();
  } catch (const std::exception& error) {
    self.note(str("lane ", me, " threw ", error.what()));
  } catch (...) {
    self.note(str("lane ", me, " threw an exception"));
  }
  self.lanes_[me].state = State::ended;
  self.fibers_[me]->leave_for_good();
}

std::string Machine::run(const Grid& grid, const std::function<void()>& kernel) {
  if (grid.warp_size != 32 && grid.warp_size != 64) return str("warp_size is ", grid.warp_size, "; expected 32 or 64");
  if (grid.threads < 1 || grid.threads > kMaxThreads || grid.threads % grid.warp_size != 0)
    return str("threads is ", grid.threads, "; expected a multiple of ", grid.warp_size, ", at most ", kMaxThreads);
  if (grid.cluster < 1 || grid.cluster * grid.threads > kMaxThreads)
    return str("cluster is ", grid.cluster, "; expected 1 or more, ", kMaxThreads, " threads in all at most");
  if (grid.blocks < 1 || grid.blocks % grid.cluster != 0)
    return str("blocks is ", grid.blocks, "; expected a multiple of the cluster, at least 1");
  grid_ = grid;
  lanes_of_cluster_ = grid.threads * grid.cluster;
  kernel_ = &kernel;
  rng_.seed(grid.seed);
  fault_.clear();
  while (fibers_.size() < static_cast<size_t>(lanes_of_cluster_)) fibers_.push_back(std::make_unique<Fiber>());
  const int64_t clusters = grid.blocks / grid.cluster;
  for (int64_t i = 0; i < clusters && fault_.empty(); ++i) {
    block_ = (grid.order == Order::backward ? clusters - 1 - i : i) * grid.cluster;
    run_block();
  }
  return fault_;
}

void Machine::run_block() {
  ++era_;
  lanes_.assign(static_cast<size_t>(lanes_of_cluster_), {});
  order_.resize(lanes_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    order_[i] = static_cast<int>(grid_.order == Order::backward ? order_.size() - 1 - i : i);
    fibers_[i]->reset(lane_main, this);
  }
  for (;;) {
    pass();
    if (!fault_.empty()) return;
    const bool released = release();
    if (!fault_.empty()) return;
    const auto is = [](State s) { return [s](const LaneState& lane) { return lane.state == s; }; };
    if (std::all_of(lanes_.begin(), lanes_.end(), is(State::ended))) return;
    if (released || std::any_of(lanes_.begin(), lanes_.end(), is(State::ready))) continue;
    fault_ = str("block ", block_, ": not all lanes get to the same place: ", describe(0, lanes_of_cluster_));
    return;
  }
}

/// Every lane that can run does so until it waits or ends; under the random order, those of about half the warps.
void Machine::pass() {
  uint64_t held = 0;
  if (grid_.order == Order::random) {
    std::shuffle(order_.begin(), order_.end(), rng_);
    held = rng_();
    bool some = false;
    for (int i = 0; i < lanes_of_cluster_ && !some; ++i)
      some = lanes_[static_cast<size_t>(i)].state == State::ready && (held >> (i / grid_.warp_size) & 1) == 0;
    if (!some) held = 0;
  }
  for (const int i : order_) {
    if (lanes_[static_cast<size_t>(i)].state != State::ready || (held >> (i / grid_.warp_size) & 1) != 0) continue;
    current_ = i;
    fibers_[static_cast<size_t>(i)]->enter();
    if (!fault_.empty()) return;
  }
}

bool Machine::release() {
  bool any = false;
  for (int first = 0; first < lanes_of_cluster_ && fault_.empty(); first += grid_.warp_size) any |= release_warp(first);
  return fault_.empty() && (release_block() || any);
}

bool Machine::release_warp(int first) {
  const auto begin = lanes_.begin() + first, end = begin + grid_.warp_size;
  const State state = begin->state;
  if (state != State::exchange && state != State::warp_barrier) return false;
  if (std::any_of(begin, end, [&](const LaneState& lane) { return lane.state != state; })) return false;
  const bool same = std::all_of(begin, end, [&](const LaneState& lane) {
    return lane.site.line == begin->site.line && std::strcmp(lane.site.file, begin->site.file) == 0 && lane.exchanges == begin->exchanges &&
           lane.barriers == begin->barriers && std::strcmp(lane.what, begin->what) == 0;
  });
  if (!same) {
    fault_ = str("block ", block_, ": the lanes of a warp are at different warp functions: ", describe(first, first + grid_.warp_size));
    return false;
  }
  for (auto lane = begin; lane != end; ++lane) {
    lane->state = State::ready;
    if (state == State::warp_barrier) ++lane->warp_barriers;
  }
  return true;
}

bool Machine::release_block() {
  const LaneState& first = lanes_.front();
  if (std::any_of(lanes_.begin(), lanes_.end(), [](const LaneState& lane) { return lane.state != State::barrier; })) return false;
  const bool same = std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneState& lane) {
    return lane.site.line == first.site.line && std::strcmp(lane.site.file, first.site.file) == 0;
  });
  if (!same) {
    fault_ = str("block ", block_, ": lanes are at different barriers: ", describe(0, lanes_of_cluster_));
    return false;
  }
  for (LaneState& lane : lanes_) {
    lane.state = State::ready;
    ++lane.barriers;
  }
  return true;
}

std::string Machine::describe(int begin, int end) const {
  std::string text;
  for (int i = begin; i < end;) {
    const std::string what = activity(lanes_[static_cast<size_t>(i)]);
    int last = i;
    while (last + 1 < end && activity(lanes_[static_cast<size_t>(last + 1)]) == what) ++last;
    text += str(text.empty() ? "" : "; ", last == i ? "lane " : "lanes ", i);
    if (last > i) text += str("-", last);
    text += str(" ", what);
    i = last + 1;
  }
  return text;
}

/// Did the access happen before what the running lane does now, by the rules and not by luck?
bool is_ordered(const Cell::Access& before, const LaneState& now, int lane, int warp_size) {
  if (before.lane < 0 || before.lane == lane || before.interval != now.barriers) return true;
  return before.lane / warp_size == lane / warp_size && before.warp_interval < now.warp_barriers;
}

const char* verb(Use use) { return use == Use::read ? "reads" : use == Use::write ? "writes" : "adds to"; }

}  // namespace

std::string run(const Grid& grid, const std::function<void()>& kernel) { return machine().run(grid, kernel); }

int thread() { return machine().current() % machine().grid().threads; }
int64_t block() { return machine().block() + cluster_rank(); }
int cluster_rank() { return machine().current() / machine().grid().threads; }
int block_size() { return machine().grid().threads; }
int64_t grid_size() { return machine().grid().blocks; }
int warp_size() { return machine().grid().warp_size; }

void barrier(Site site) {
  if (machine().grid().cluster > 1) fault("sync() in a cluster, whose shared arrays are one here,", thread(), block_size(), site);
  machine().wait(State::barrier, site);
}
void cluster_barrier(Site site) { machine().wait(State::barrier, site); }
void warp_barrier(Site site) { machine().wait(State::warp_barrier, site); }

const uint64_t* exchange(const char* what, uint64_t mine, Site site) {
  Machine& m = machine();
  uint64_t* const words = m.words();
  words[m.current() % m.grid().warp_size] = mine;
  m.lane().what = what;
  m.wait(State::exchange, site);
  ++m.lane().exchanges;
  return words;
}

void fault(const char* what, int64_t value, int64_t limit, Site site) {
  machine().note(str(what, " at ", place(site), " by lane ", thread(), ": ", value, " of ", limit));
  machine().quit();
}

void access(Cell* cells, void* values, size_t element_bytes, int64_t count, uint64_t& era, int64_t index, Use use, Site site) {
  Machine& m = machine();
  if (index < 0 || index >= count) fault("shared access out of bounds", index, count, site);
  if (era != m.era()) {
    era = m.era();
    std::fill_n(cells, count, Cell{});
    std::memset(values, 0xff, element_bytes * static_cast<size_t>(count));
  }
  Cell& cell = cells[index];
  const int me = m.current(), width = m.grid().warp_size;
  const auto kind = use == Use::atomic ? Cell::Kind::atomic : Cell::Kind::plain;
  const auto refuse = [&](const Cell::Access& other, const char* did) {
    m.note(str("race: lane ", me, " ", verb(use), " shared element ", index, " at ", place(site), ", which lane ", other.lane, " ", did,
               " with no barrier between"));
    m.quit();
  };
  if (use != Use::write && cell.write.lane < 0) {
    m.note(str("lane ", me, " ", verb(use), " shared element ", index, " at ", place(site), ", which no lane has written"));
    m.quit();
  }
  const bool both_atomic = use == Use::atomic && cell.write.kind == Cell::Kind::atomic;
  if (!both_atomic && !is_ordered(cell.write, m.lane(), me, width)) refuse(cell.write, "has written");
  if (use != Use::read)
    for (const Cell::Access& read : cell.reads)
      if (!is_ordered(read, m.lane(), me, width)) refuse(read, "has read");
  const Cell::Access now{.lane = me, .kind = kind, .interval = m.lane().barriers, .warp_interval = m.lane().warp_barriers};
  if (use != Use::read) cell.write = now;
  // Two readers of different lanes suffice to find any later writer: one of them is not the writer itself.
  else if (cell.reads[0].lane == me || is_ordered(cell.reads[0], m.lane(), me, width)) cell.reads[0] = now;
  else cell.reads[1] = now;
}

}  // namespace eitri::simt_emulation
