#include "alloc/calls.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

namespace memplan {

namespace {

thread_local Call* current_call = nullptr;
thread_local RequestLog* current_log = nullptr;

// Whether any thread ever had one of these. Where none had, no thread looks at its own:
// a thread's first look takes a block from its heap, which pins what lies below it. Programs
// of two threads that serve a plan, and call nothing, took 16 to 28 MiB more.
std::atomic<bool> any_current = false;

// What a mark gets: it has an address, and nobody looks at what is there.
char marked;

// The arenas of all calls, by their first byte beyond. One of which blocks are alive stays.
// strays: blocks in hosts that outlived their call.
struct Arenas {
  std::mutex mutex;
  std::map<const void*, std::pair<const void*, Call*>> by_end;
  std::multiset<const void*> strays;
  void counts() { count = by_end.size() + strays.size(); }
  std::atomic<std::size_t> count = 0;
};

// Never destroyed: frees arrive until the process is gone.
Arenas& arenas() {
  static Arenas* const the_arenas = new Arenas;
  return *the_arenas;
}

}  // namespace

Call::Call(void* arena, std::size_t bytes, std::vector<Step> steps)
    : arena_(static_cast<char*>(arena)), bytes_(bytes), steps_(std::move(steps)) {
  std::lock_guard lock(arenas().mutex);
  arenas().by_end[arena_ + bytes_] = {arena_, this};
  arenas().counts();
}

Call::~Call() {
  std::lock_guard lock(arenas().mutex);
  if (alive() > 0) {
    arenas().by_end[arena_ + bytes_].second = nullptr;
  } else {
    arenas().by_end.erase(arena_ + bytes_);
    arenas().counts();
  }
}

Call* Call::current() {
  return any_current.load(std::memory_order_relaxed) ? current_call : nullptr;
}

void Call::begin() {
  any_current = true;
  outer_ = std::exchange(current_call, this);
  outcome_ = {};
  step_ = nullptr;
  host_ = nullptr;
  expects_host_ = false;
}

CallOutcome Call::end() {
  current_call = std::exchange(outer_, nullptr);
  outcome_.kept += scratch_.size();
  scratch_.clear();
  if (!lent_.empty()) {
    outcome_.kept += lent_.size();
    std::lock_guard lock(arenas().mutex);
    arenas().strays.insert(lent_.begin(), lent_.end());
    arenas().counts();
    lent_.clear();
  }
  return outcome_;
}

void Call::mark(std::size_t step) {
  outcome_.kept += scratch_.size();
  scratch_.clear();
  step_ = step < steps_.size() ? &steps_[step] : nullptr;
  expects_host_ = step == steps_.size() + 1;
  next_ = 0;
}

void* Call::serve(std::size_t bytes) {
  if (bytes >= kMark) {
    mark(bytes - kMark);
    return &marked;
  }
  if (step_ == nullptr) return nullptr;  // before the first step
  if (next_ == step_->requests.size() || step_->requests[next_].bytes != bytes) {
    // The rest of the step is not what is known of it.
    ++outcome_.missed;
    next_ = step_->requests.size();
    return nullptr;
  }
  const std::size_t now = next_++;
  const std::int64_t offset = step_->requests[now].offset;
  if (offset < 0) return nullptr;
  const bool lent = static_cast<std::size_t>(offset) >= bytes_;
  if (lent && host_ == nullptr) return nullptr;
  void* block = lent ? host_ + (offset - static_cast<std::int64_t>(bytes_)) : arena_ + offset;
  if (step_->scratch[now]) scratch_.push_back(block);
  if (lent) {
    lent_.push_back(block);
    return block;
  }
  alive_.fetch_add(1, std::memory_order_relaxed);
  return block;
}

namespace {

// Remove the last of these that is `block`; whether there was one.
bool take(std::vector<void*>& blocks, void* block) {
  const auto found = std::find(blocks.rbegin(), blocks.rend(), block);
  if (found == blocks.rend()) return false;
  blocks.erase(std::next(found).base());
  return true;
}

}  // namespace

void Call::died(void* block) {
  alive_.fetch_sub(1);
  take(scratch_, block);
}

bool Call::returned(void* block) {
  if (!take(lent_, block)) return false;
  take(scratch_, block);
  return true;
}

bool Call::release(void* block) {
  if (block == &marked) return true;
  if (Call* call = current(); call != nullptr) {
    if (call->contains(block)) {
      call->died(block);
      return true;
    }
    if (call->returned(block)) return true;
  }
  if (arenas().count.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(arenas().mutex);
  if (const auto stray = arenas().strays.find(block); stray != arenas().strays.end()) {
    arenas().strays.erase(stray);
    arenas().counts();
    return true;
  }
  const auto found = arenas().by_end.upper_bound(block);
  if (found == arenas().by_end.end() || block < found->second.first) return false;
  if (Call* call = found->second.second) call->alive_.fetch_sub(1);
  return true;
}

void Call::lock() { arenas().mutex.lock(); }
void Call::unlock() { arenas().mutex.unlock(); }

RequestLog* RequestLog::current() {
  return any_current.load(std::memory_order_relaxed) ? current_log : nullptr;
}

void RequestLog::begin() {
  entries_.clear();
  any_current = true;
  current_log = this;
}

std::vector<RequestLog::Entry> RequestLog::end() {
  current_log = nullptr;
  return std::exchange(entries_, {});
}

}  // namespace memplan
