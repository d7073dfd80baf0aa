#include "alloc/shim.h"

#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>

#include "alloc/calls.h"

namespace memplan {

// ---- what becomes of each request, and of each block that is freed

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

namespace {

// Into the log that is kept while a plan is served.
void log_event(Action action, const void* pointer, std::size_t bytes,
               std::uint8_t mark = 0) {
  State& s = state();
  if (s.log.is_open()) s.log.append(event_of(action, pointer, bytes, mark));
}

// A step without a mark has begun.
void note_turn(Replay& replay) {
  // Of the first one some lies outside the arena: hand back what glibc kept of that.
  if (state().turns.note() != 2) return;
  Scratch::hand_back();
  state().scratch.look_after(replay);
}

void delete_block(void* pointer) {
  if (RequestLog* log = RequestLog::current()) log->note(0, pointer);
  if (Call::release(pointer)) return;
  State& s = state();
  // Before the real free, or another thread's reuse of the address would come first.
  log_event(kFree, pointer, 0);
  if (Replay* replay = s.replays.owner(pointer)) {
    s.ledger.arena_block_died(replay->release(pointer));
    if (s.symbols.reporter != nullptr) {
      s.symbols.report_delete(s.symbols.reporter, pointer);
    }
    return;
  }
  if (s.mode.load(std::memory_order_relaxed) == Mode::kRecord) {
    s.recorder.record(kFree, pointer, 0);
  }
  const auto [bytes, refused_by] = s.ledger.outside_block_died(pointer);
  if (refused_by != nullptr) refused_by->outside_died(bytes);
  s.base_delete(pointer);
}

class Shim final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Call* const call = bytes == 0 ? nullptr : Call::current();
    if (call != nullptr) {
      if (void* place = call->serve(bytes)) return block_at(place);
    }
    c10::DataPtr block = by_mode(bytes);
    if (call != nullptr) call->served_beneath(block.data);
    if (RequestLog* log = RequestLog::current(); log != nullptr && bytes != 0) {
      auto& deleter = block.context.get_deleter();
      if (deleter == state().base_delete) deleter = &delete_block;
      log->note(bytes, block.data);
    }
    return block;
  }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return pointer.data == pointer.context.get();
  }
  c10::Deleter raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    state().base->copy_data(to, from, bytes);
  }

 private:
  static c10::DataPtr by_mode(std::size_t bytes) {
    State& s = state();
    const Mode mode = s.mode.load(std::memory_order_acquire);
    if (mode == Mode::kPass || bytes == 0) return s.base->allocate(bytes);
    if (s.interruptions.any()) {
      s.interrupted_requests.fetch_add(1, std::memory_order_relaxed);
      return s.base->allocate(bytes);
    }
    return mode == Mode::kRecord ? record(bytes) : replay(bytes);
  }
  static c10::DataPtr block_at(void* address) {
    c10::DataPtr block;
    block.data = address;
    block.context = {address, &delete_block};
    return block;
  }
  static c10::DataPtr record(std::size_t bytes) {
    State& s = state();
    c10::DataPtr block = allocate_or_note(bytes);
    // A deleter that is not the base's own belongs to somebody else's bookkeeping.
    if (block.context.get_deleter() == s.base_delete) {
      note_request(bytes);
      s.recorder.record(kAlloc, block.data, bytes);
      block.context.get_deleter() = &delete_block;
    }
    return block;
  }
  static c10::DataPtr allocate_or_note(std::size_t bytes) {
    State& s = state();
    try {
      return s.base->allocate(bytes);
    } catch (...) {
      s.recorder.record(kOom, nullptr, bytes);
      throw;
    }
  }
  static c10::DataPtr replay(std::size_t bytes) {
    State& s = state();
    Replay* replay = s.replay.load(std::memory_order_acquire);
    if (Lanes* lanes = s.lanes.load(std::memory_order_acquire)) {
      replay = lanes->serving(bytes);
    }
    if (replay == nullptr) return outside(bytes, nullptr);
    bool turned = false;
    void* address = replay->allocate(bytes, &turned);
    if (turned) note_turn(*replay);
    if (address == nullptr) {
      // A program whose plan was given up is to pay nothing for it, books included.
      const bool aside = replay->aside();
      if (aside && !s.log.is_open()) return s.base->allocate(bytes);
      if (aside) replay->outside_born(round_up(bytes, kAlignment));
      return outside(bytes, replay);
    }
    s.ledger.arena_block_born(round_up(bytes, kAlignment));
    log_event(kAlloc, address, bytes);
    if (s.symbols.reporter != nullptr) {
      s.symbols.report_new(s.symbols.reporter, address, bytes);
    }
    return block_at(address);
  }
  static c10::DataPtr outside(std::size_t bytes, Replay* refused_by) {
    State& s = state();
    c10::DataPtr block = s.base->allocate(bytes);
    if (block.context.get_deleter() == s.base_delete) {
      s.ledger.outside_block_born(block.data, round_up(bytes, kAlignment), refused_by);
      log_event(kAlloc, block.data, bytes);
      block.context.get_deleter() = &delete_block;
    }
    return block;
  }
};

// Never destroyed, since tensors carry its deleter.
c10::Allocator& shim() {
  static Shim* const the_shim = new Shim;
  return *the_shim;
}

}  // namespace

// ---- what glibc keeps

namespace {

// Blocks from `mapped` bytes on are mapped one by one, and twice as much may stay free at
// the heap's end: as glibc's own thresholds relate, which move up to the first of these.
constexpr std::uint64_t kMostMapped = 32 << 20, kLeastMapped = 128 << 10;

}  // namespace

void Scratch::look_after(Replay& replay) {
  std::uint64_t now = mapped_.load();
  std::uint64_t wanted = kMostMapped;
  if (replay.aside()) {
    if (now == kOwn) return;
    // glibc moves its own to the largest block it mapped that was freed.
    wanted = std::clamp(replay.largest_request(), kLeastMapped, kMostMapped);
  } else if (now == kMostMapped || !replay.pays()) {
    return;
  }
  if (now == wanted || !mapped_.compare_exchange_strong(now, wanted)) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(wanted));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(2 * wanted));
  if (wanted < now) hand_back();
}

void Scratch::hand_back() { malloc_trim(0); }

// ---- from request to request, and around forks

namespace {

// What `before_fork` locked.
Lanes* lanes_locked = nullptr;

// A thread takes one of these locks while it holds another in this order only.
void before_fork() {
  State& s = state();
  Call::lock();
  s.turns.lock();
  s.log.lock();
  s.ledger.lock();
  lanes_locked = s.lanes.load();
  if (lanes_locked != nullptr) lanes_locked->lock();
  s.replays.lock();
}

void in_parent() {
  State& s = state();
  s.replays.unlock();
  if (lanes_locked != nullptr) lanes_locked->unlock();
  s.ledger.unlock();
  s.log.unlock();
  s.turns.unlock();
  Call::unlock();
}

// A forked child (a data loader's worker) is another program: it passes through, and
// what it frees of the parent's arena it frees in its own copy only.
void in_child() {
  State& s = state();
  s.mode.store(Mode::kPass);
  s.recorder.let_go();
  in_parent();
  s.log.take();
}

// From now on, forked children are on their own; once is enough, again is harmless.
void let_children_go() {
  static const int registered = pthread_atfork(&before_fork, &in_parent, &in_child);
  static_cast<void>(registered);
}

// From now on, blocks in these arenas are known for what they are. False if there were
// too many before them.
bool know(const std::vector<Replay*>& replays) {
  State& s = state();
  if (!s.replays.has_room(replays.size())) return false;
  s.turns.clear();
  s.interrupted_requests.store(0);
  s.ledger.begin_maxima();
  s.replays.add(replays);
  return true;
}

}  // namespace

std::string check(const std::string& path) {
  c10::Symbols symbols;
  if (std::string missing = c10::find_symbols(path, symbols); !missing.empty()) {
    return missing;
  }
  State& s = state();
  if (s.base != nullptr) return {};
  // The probe calls through the shim, which needs to know whom to pass on to.
  s.base = symbols.get_allocator();
  std::string fault = c10::probe(symbols, &shim());
  s.base = nullptr;
  return fault;
}

std::string install(const std::string& path) {
  State& s = state();
  if (s.base != nullptr) return {};
  if (std::string fault = check(path); !fault.empty()) return fault;
  c10::find_symbols(path, s.symbols);
  s.base = s.symbols.get_allocator();
  s.base_delete = s.base->raw_deleter();
  // torch's own has priority 0; another's, if it is higher, stays in force.
  s.symbols.set_allocator(&shim(), 1);
  if (s.symbols.get_allocator() != &shim()) {
    s.base = nullptr;
    return "another CPU allocator is installed, with a higher priority";
  }
  let_children_go();
  return {};
}

void start_recording(Journal* journal, StackCapture capture, std::uint64_t limit,
                     bool requests) {
  State& s = state();
  let_children_go();
  s.recorder.start(journal, capture, limit);
  if (requests) s.mode.store(Mode::kRecord);
}

const Observation* observation() {
  static constexpr Observation kObservation = {
      [] { return state().recorder.stack(); },
      [](const Observed* seen) { state().recorder.observe(*seen); },
  };
  return &kObservation;
}

RecordingEnd stop_recording(const std::string& end) {
  State& s = state();
  Mode recording = Mode::kRecord;
  s.mode.compare_exchange_strong(recording, Mode::kPass);
  return s.recorder.stop(end);
}

bool start_replay(Replay* replay) {
  if (!know({replay})) return false;
  State& s = state();
  s.scratch.look_after(*replay);
  Scratch::hand_back();  // what reading and checking the plan took
  s.lanes.store(nullptr, std::memory_order_release);
  s.replay.store(replay, std::memory_order_release);
  s.mode.store(Mode::kReplay, std::memory_order_release);
  return true;
}

bool start_lanes(const std::vector<Replay*>& replays) {
  if (!know(replays)) return false;
  State& s = state();
  Scratch::hand_back();
  // It lives for ever: threads hold what is in it.
  s.lanes.store(new Lanes(replays), std::memory_order_release);
  s.mode.store(Mode::kReplay, std::memory_order_release);
  return true;
}

void mark_step(std::uint8_t kind) {
  State& s = state();
  const Mode mode = s.mode.load();
  s.recorder.record(kStep, nullptr, 0, kind);
  if (mode == Mode::kReplay) {
    if (Lanes* lanes = s.lanes.load()) {
      lanes->next_step();
    } else {
      // The warm-up is over, or a plan was given up for another: hand back what glibc
      // kept.
      Replay* replay = s.replay.load();
      if (replay->next_step()) Scratch::hand_back();
      s.scratch.look_after(*replay);
    }
    log_event(kStep, nullptr, 0, kind);
  }
}

}  // namespace memplan
