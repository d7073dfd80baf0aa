#include "alloc/replay.h"

#include <utility>

namespace memplan {
namespace {

constexpr double kUnknown = -1.0;  // in `touched_`
// Steps whose counts are kept for whoever asks; those after them are not.
constexpr std::size_t kMostSteps = 4096;
// Blocks from this size on are worth a look at their pages.
constexpr std::uint64_t kLarge = 1 << 20;
// Sparse blocks return their pages in one step of so many: what a longer step touched
// does not stay for good, and most steps find their pages in place.
constexpr std::size_t kSparseSteps = 4;

}  // namespace

Replay::Replay(Table table, std::uint64_t reserve, std::uint32_t cold)
    : server_(std::move(table), reserve, kAlignment),
      arena_(reserve),
      cold_(cold),
      touched_(server_.table().requests.size(), kUnknown) {}

void* Replay::allocate(std::uint64_t bytes, bool* turned) {
  std::lock_guard lock(mutex_);
  if (server_.turns(bytes)) {
    end_step();
    if (turned != nullptr) *turned = true;
  }
  const auto [offset, entry] = server_.serve(bytes);
  if (server_.matcher().outgrown() && !returning_) {
    // Where this step's blocks come to lie is anyone's guess: nothing else may stay.
    arena_.return_dead_pages(server_.ranges().used());
    if (offset >= 0) arena_.return_pages(static_cast<std::uint64_t>(offset), bytes);
    returning_ = true;
  }
  if (offset < 0) return nullptr;
  const auto begin = static_cast<std::uint64_t>(offset);
  arena_.note_use(begin, round_up(bytes, kAlignment));
  if (entry != Matcher::kNoMatch) follow_pages(entry, begin, bytes);
  return arena_.address(begin);
}

std::uint64_t Replay::release(void* pointer) {
  std::lock_guard lock(mutex_);
  const std::uint64_t offset = arena_.offset_of(pointer);
  const std::uint64_t bytes = server_.ranges().give_back(offset);
  if (bytes != 0) arena_.note_use(offset, bytes);
  if (bytes < kLarge) return bytes;
  bool goes = returning_;
  if (const auto block = followed_.find(offset); block != followed_.end()) {
    const std::size_t entry = block->second;
    if (unsettled_ && touched_[entry] == kUnknown) {
      touched_[entry] = arena_.resident_part(offset, bytes);
    }
    goes = goes || (server_.table().requests[entry].sparse &&
                    steps_ % kSparseSteps == 0);
    followed_.erase(block);
  }
  if (goes) arena_.return_pages(offset, bytes);
  return bytes;
}

// While unsettled, a large block's pages are made new the first time that it is made in
// its place: those that are resident when it is freed, it has touched.
void Replay::follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes < kLarge || !server_.matcher().looped()) return;
  const bool unknown = unsettled_ && touched_[entry] == kUnknown;
  if (unknown) arena_.return_pages(offset, bytes);
  if (unknown || server_.table().requests[entry].sparse) followed_[offset] = entry;
}

bool Replay::next_step() {
  std::lock_guard lock(mutex_);
  return end_step();
}

bool Replay::end_step() {
  const StepEnd end = server_.next_step();
  if (end.hot && ended_.size() < kMostSteps) ended_.push_back(end);
  ++steps_;
  if (end.adopted) {
    touched_.assign(server_.table().requests.size(), kUnknown);
    followed_.clear();  // of the table before
    returning_ = true;
  }
  if (returning_) arena_.return_dead_pages(server_.ranges().used());
  returning_ = unsettled_;
  if (cold_ != 0) returned_ += arena_.release_cold(server_.ranges().used(), cold_);
  return server_.matcher().looped() && !end.hot;
}

void Replay::unsettle(bool unsettled) {
  std::lock_guard lock(mutex_);
  unsettled_ = unsettled;
  if (unsettled) returning_ = true;
}

}  // namespace memplan
