#include "alloc/shim.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "alloc/c10.h"

namespace memplan {
namespace {

enum class Mode : int { kPass, kRecord, kReplay };

constexpr std::size_t kMaxReplays = 256;

struct State {
  c10::Symbols symbols;
  c10::Allocator* base = nullptr;
  c10::Deleter base_delete = nullptr;
  std::atomic<Mode> mode = Mode::kPass;

  // Recording. A closed journal is kept: another thread may be about to append.
  std::atomic<Journal*> journal = nullptr;
  StackCapture capture = nullptr;

  // Replay. Arenas of earlier plans stay: their blocks may still be alive.
  std::array<std::atomic<Replay*>, kMaxReplays> replays = {};
  std::atomic<std::size_t> replay_count = 0;
  std::atomic<Replay*> replay = nullptr;

  std::mutex marks_mutex;
  std::vector<StepMark> marks;
};

// Leaked on purpose: frees arrive until the process is gone.
State& state() {
  static State* const the_state = new State;
  return *the_state;
}

std::int32_t thread_id() {
  thread_local const auto id = static_cast<std::int32_t>(syscall(SYS_gettid));
  return id;
}

void log(Action action, const void* pointer, std::size_t bytes, std::uint8_t mark = 0) {
  State& s = state();
  Journal* journal = s.journal.load(std::memory_order_acquire);
  if (journal == nullptr) return;
  Event event{};
  event.address = reinterpret_cast<std::uint64_t>(pointer);
  event.size = static_cast<std::int64_t>(bytes);
  event.thread = thread_id();
  event.action = action;
  event.mark = mark;
  event.stack = action == kAlloc && s.capture != nullptr ? s.capture(*journal) : -1;
  event.time_ns = now_ns();
  journal->append(event);
}

Replay* owner(const void* pointer) {
  State& s = state();
  const std::size_t count = s.replay_count.load(std::memory_order_acquire);
  for (std::size_t i = count; i-- > 0;) {
    Replay* replay = s.replays[i].load(std::memory_order_relaxed);
    if (replay->contains(pointer)) return replay;
  }
  return nullptr;
}

void delete_block(void* pointer) {
  State& s = state();
  if (Replay* replay = owner(pointer)) {
    replay->release(pointer);
    if (s.symbols.reporter != nullptr) {
      s.symbols.report_delete(s.symbols.reporter, pointer);
    }
    return;
  }
  if (s.mode.load(std::memory_order_relaxed) == Mode::kRecord) {
    // Before the real free, or another thread's reuse of the address would come first.
    log(kFree, pointer, 0);
  }
  s.base_delete(pointer);
}

class Shim final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    State& s = state();
    const Mode mode = s.mode.load(std::memory_order_acquire);
    if (mode == Mode::kPass || bytes == 0) return s.base->allocate(bytes);
    return mode == Mode::kRecord ? record(bytes) : replay(bytes);
  }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return pointer.data == pointer.context.get();
  }
  c10::Deleter raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    state().base->copy_data(to, from, bytes);
  }

 private:
  static c10::DataPtr record(std::size_t bytes) {
    c10::DataPtr block = state().base->allocate(bytes);
    // A deleter that is not the base's own belongs to somebody else's bookkeeping.
    if (block.context.get_deleter() == state().base_delete) {
      log(kAlloc, block.data, bytes);
      block.context.get_deleter() = &delete_block;
    }
    return block;
  }
  static c10::DataPtr replay(std::size_t bytes) {
    State& s = state();
    void* address = s.replay.load(std::memory_order_acquire)->allocate(bytes);
    if (address == nullptr) return s.base->allocate(bytes);
    if (s.symbols.reporter != nullptr) {
      s.symbols.report_new(s.symbols.reporter, address, bytes);
    }
    c10::DataPtr block;
    block.data = address;
    block.context = {address, &delete_block};
    return block;
  }
};

Shim& shim() {
  static Shim* const the_shim = new Shim;
  return *the_shim;
}

// A forked child (a data loader's worker) is another program: it passes through, and
// what it frees of the parent's arena it frees in its own copy only.
void in_child() {
  State& s = state();
  s.mode.store(Mode::kPass);
  s.journal.store(nullptr);
  const std::size_t count = s.replay_count.load();
  for (std::size_t i = 0; i < count; ++i) s.replays[i].load()->forget_lock();
}

void clear_marks() {
  std::lock_guard lock(state().marks_mutex);
  state().marks.clear();
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
  pthread_atfork(nullptr, nullptr, &in_child);
  return {};
}

void start_recording(Journal* journal, StackCapture capture) {
  State& s = state();
  clear_marks();
  s.capture = capture;
  s.journal.store(journal);
  s.mode.store(Mode::kRecord);
}

RecordingEnd stop_recording(const std::string& end) {
  State& s = state();
  s.mode.store(Mode::kPass);
  Journal* journal = s.journal.exchange(nullptr);
  if (journal == nullptr) return {0, 0, 0};
  const int error = journal->close(end);
  return {error, journal->seen(), journal->written()};
}

void start_replay(Replay* replay) {
  State& s = state();
  clear_marks();
  const std::size_t count = s.replay_count.load();
  s.replays.at(count).store(replay);
  s.replay_count.store(count + 1, std::memory_order_release);
  s.replay.store(replay, std::memory_order_release);
  s.mode.store(Mode::kReplay, std::memory_order_release);
}

void pass_through() { state().mode.store(Mode::kPass); }

void mark_step(std::uint8_t kind) {
  State& s = state();
  const Mode mode = s.mode.load();
  if (mode == Mode::kRecord) {
    log(kStep, nullptr, 0, kind);
  } else if (mode == Mode::kReplay) {
    // The warm-up is over: hand back what glibc kept of it.
    if (s.replay.load()->next_step()) malloc_trim(0);
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::lock_guard lock(s.marks_mutex);
  s.marks.push_back({now_ns(), usage.ru_minflt, kind});
}

std::vector<StepMark> step_marks() {
  std::lock_guard lock(state().marks_mutex);
  return state().marks;
}

}  // namespace memplan
