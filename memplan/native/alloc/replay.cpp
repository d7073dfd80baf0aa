#include "alloc/replay.h"

#include <algorithm>
#include <utility>

namespace memplan {
namespace {

constexpr double kUnknown = -1.0;  // in `touched_`
// Steps whose counts are kept for whoever asks; those after them are not.
constexpr std::size_t kMostSteps = 4096;
// Blocks from this size on are worth a look at their pages; fewer bytes of pages are not
// worth the search for them.
constexpr std::uint64_t kLarge = 1 << 20;
// One part in so many, of the most bytes that were ever alive, may be resident beyond
// them; and so many are returned beyond what is needed, not to search at every request.
constexpr std::uint64_t kSlackPart = 16;
constexpr std::uint64_t kAtOncePart = 64;
// Arenas from this size on are asked huge pages for.
constexpr std::uint64_t kWorthHuge = 32 << 20;
// Steps at most after which pages are cold.
constexpr std::uint32_t kMostCold = 4096;
// Sparse blocks return their pages in one step of so many: what a longer step touched
// does not stay for good, and most steps find their pages in place.
constexpr std::size_t kSparseSteps = 4;

}  // namespace

Replay::Replay(Table table, std::uint64_t reserve, std::uint32_t cold)
    : server_(std::move(table), reserve, kAlignment),
      arena_(reserve),
      cold_(cold),
      touched_(server_.table().requests.size(), kUnknown) {
  allow_huge();
}

// Blocks of elastic steps, and sparse ones, are looked at page by page.
void Replay::allow_huge() {
  const Table& table = server_.table();
  const bool elastic = std::any_of(table.steps.begin(), table.steps.end(),
                                   [](const Step& step) { return step.elastic; });
  const bool sparse = std::any_of(table.requests.begin(), table.requests.end(),
                                  [](const Request& request) { return request.sparse; });
  if (!elastic && !sparse && table.arena_bytes >= kWorthHuge) {
    arena_.allow_huge(table.arena_bytes);
  }
}

void* Replay::allocate(std::uint64_t bytes, bool* turned) {
  std::lock_guard lock(mutex_);
  if (bytes > largest_request()) largest_.store(bytes, std::memory_order_relaxed);
  if (aside()) {
    server_.pass(bytes);
    return nullptr;
  }
  if (server_.overdue()) {
    overdue_ = true;
    go_aside();
    server_.pass(bytes);
    return nullptr;
  }
  if (server_.turns(bytes)) {
    end_step();
    if (turned != nullptr) *turned = true;
  }
  const auto [offset, entry] = server_.serve(bytes);
  const std::uint64_t rounded = round_up(bytes, kAlignment);
  if (offset < 0) {
    outside_.fetch_add(static_cast<std::int64_t>(rounded), std::memory_order_relaxed);
    keep_within();
    return nullptr;
  }
  const auto begin = static_cast<std::uint64_t>(offset);
  arena_.note_use(begin, rounded);
  if (entry != kNoMatch) follow_pages(entry, begin, bytes);
  keep_within();
  return arena_.address(begin);
}

std::uint64_t Replay::release(void* pointer) {
  std::lock_guard lock(mutex_);
  const std::uint64_t offset = arena_.offset_of(pointer);
  const std::uint64_t bytes = server_.ranges().give_back(offset);
  if (bytes != 0) arena_.note_use(offset, bytes);
  if (bytes < kLarge) return bytes;
  bool goes = aside();
  if (const auto block = followed_.find(offset); block != followed_.end()) {
    const std::size_t entry = block->second;
    if (touched_[entry] == kUnknown && !server_.table().requests[entry].sparse) {
      touched_[entry] = arena_.resident_part(offset, bytes);
    }
    goes = goes || (server_.table().requests[entry].sparse &&
                    steps_ % kSparseSteps == 0);
    followed_.erase(block);
  }
  if (goes) arena_.return_pages(offset, bytes);
  return bytes;
}

// How many bytes may be resident in the arena, and alive outside it.
std::uint64_t Replay::allowance() const {
  const std::uint64_t most = most_live_ + std::max(most_live_ / kSlackPart, slack_) + kLarge;
  if (!server_.in_order()) return most;
  // Where the program does as planned, a plan is taken at its word, until all of it came
  // by once: what is resident then is about what will be needed.
  const std::uint64_t planned = outside() + server_.table().arena_bytes;
  const bool first_pass = steps_ <= adopted_ + server_.table().loop_end;
  return std::max(most, first_pass ? planned : std::min(planned, most_live_ / 4 * 5));
}

void Replay::keep_within() {
  const std::uint64_t in_use = server_.ranges().bytes_in_use(), beside = outside();
  most_live_ = std::max(most_live_, in_use + beside);
  const std::uint64_t held = arena_.resident() + beside, most = allowance();
  if (held <= most || held <= in_vain_ || arena_.resident() < in_use + kLarge) return;
  const std::uint64_t more = std::max(most_live_ / kAtOncePart, kLarge);
  returned_ += arena_.return_dead(server_.ranges().used(), held - most + more);
  const std::uint64_t now = arena_.resident() + beside;
  in_vain_ = now > most ? now + kLarge : 0;
}

// While unsettled, a large block's pages are made new the first time that it is made in
// its place: those that are resident when it is freed, it has touched. Only a few in each
// step: all of a step's blocks are many times the bytes that are alive at once.
void Replay::follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes < kLarge || !server_.looped()) return;
  const std::uint64_t at_most = std::max(most_live_ / kAtOncePart, kLarge);
  const bool unknown = unsettled_ && touched_[entry] == kUnknown &&
                       (looked_at_ == 0 || looked_at_ + bytes <= at_most);
  if (unknown) {
    looked_at_ += bytes;
    arena_.return_pages(offset, bytes, true);
    arena_.note_use(offset, bytes);
  }
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
  in_vain_ = looked_at_ = 0;
  if (end.adopted) {
    touched_.assign(server_.table().requests.size(), kUnknown);
    followed_.clear();  // of the table before
    adopted_ = steps_;
  }
  if (end.adopted || std::exchange(overdue_, false)) {
    aside_.store(false, std::memory_order_relaxed);
  }
  const Ranges::Map& used = server_.ranges().used();
  // What the table before left behind, or all that nobody needs any more.
  if (end.adopted || aside()) returned_ += arena_.return_dead(used, arena_.size());
  if (end.adopted) allow_huge();
  if (cold_ != 0) return_cold();
  return end.adopted || (server_.looped() && !end.hot);
}

void Replay::return_cold() {
  const std::uint64_t back = arena_.refaulted() - refaulted_before_;
  if (cooled_ > kLarge && back > cooled_ / 2 && cold_ < kMostCold) {
    cold_ *= 2;
    cooled_ = 0;
  }
  if (cooled_ == 0) refaulted_before_ = arena_.refaulted();
  const std::uint64_t cooled = arena_.release_cold(server_.ranges().used(), cold_);
  cooled_ += cooled;
  returned_ += cooled;
}

void Replay::unsettle(bool unsettled) {
  std::lock_guard lock(mutex_);
  unsettled_ = unsettled;
}

void Replay::stand_aside(bool aside) {
  std::lock_guard lock(mutex_);
  overdue_ = false;
  if (aside) {
    go_aside();
  } else {
    aside_.store(false, std::memory_order_relaxed);
  }
}

void Replay::go_aside() {
  aside_.store(true, std::memory_order_relaxed);
  followed_.clear();
  returned_ += arena_.return_dead(server_.ranges().used(), arena_.size());
}

}  // namespace memplan
