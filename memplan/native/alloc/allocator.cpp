#include "alloc/allocator.h"

#include "alloc/state.h"

namespace memplan {

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

void log_event(Action action, const void* pointer, std::size_t bytes,
               std::uint8_t mark) {
  State& s = state();
  if (s.log.is_open()) s.log.append(event_of(action, pointer, bytes, mark));
}

namespace {

// A step without a mark has begun.
void note_turn(Replay& replay) {
  // Of the first one some lies outside the arena: hand back what glibc kept of that.
  if (state().turns.note() != 2) return;
  Scratch::hand_back();
  state().scratch.look_after(replay);
}

void delete_block(void* pointer) {
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
    State& s = state();
    const Mode mode = s.mode.load(std::memory_order_acquire);
    if (mode == Mode::kPass || bytes == 0) return s.base->allocate(bytes);
    if (s.interruptions.any()) {
      s.interrupted_requests.fetch_add(1, std::memory_order_relaxed);
      return s.base->allocate(bytes);
    }
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
    c10::DataPtr block;
    block.data = address;
    block.context = {address, &delete_block};
    return block;
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

}  // namespace

c10::Allocator& shim() {
  static Shim* const the_shim = new Shim;
  return *the_shim;
}

}  // namespace memplan
