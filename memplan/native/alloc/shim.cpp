#include "alloc/shim.h"

#include <pthread.h>

#include "alloc/allocator.h"
#include "alloc/c10.h"
#include "alloc/state.h"

namespace memplan {
namespace {

// What `before_fork` locked.
Lanes* lanes_locked = nullptr;

// A thread takes one of these locks while it holds another in this order only.
void before_fork() {
  State& s = state();
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

std::uint64_t recorded_events() { return state().recorder.events(); }

void label_block(std::uint64_t address, int device, std::size_t code, StackOf stack_of) {
  state().recorder.label(address, device, code, stack_of);
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

Counts outside_lanes() {
  const Lanes* lanes = state().lanes.load();
  return lanes == nullptr ? Counts{} : lanes->outside();
}

void pass_through() { state().mode.store(Mode::kPass); }

void interrupt() { state().interruptions.add(); }

bool resume() { return state().interruptions.remove(); }

const std::atomic<int>* interruptions() { return state().interruptions.count(); }

std::uint64_t interrupted_requests() { return state().interrupted_requests.load(); }

TensorBytes tensor_bytes() { return state().ledger.sums(); }

void open_log() { state().log.open(); }

std::vector<Event> take_log() { return state().log.take(); }

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

Turns& turns() { return state().turns; }

}  // namespace memplan
