#include "alloc/serving.h"

#include <sys/resource.h>

namespace memplan {
namespace {

std::int64_t ns_of(const timeval& time) {
  return (std::int64_t{time.tv_sec} * 1'000'000 + time.tv_usec) * 1'000;
}

}  // namespace

Turn turn_now() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return {now_ns(), usage.ru_minflt, ns_of(usage.ru_utime) + ns_of(usage.ru_stime)};
}

std::uint64_t Turns::note() {
  const Turn turn = turn_now();
  std::lock_guard lock(mutex_);
  if (turns_.size() == kMost) turns_.pop_front();
  turns_.push_back(turn);
  return ++count_;
}

void Turns::clear() {
  std::lock_guard lock(mutex_);
  turns_.clear();
  count_ = 0;
}

std::uint64_t Turns::count() {
  std::lock_guard lock(mutex_);
  return count_;
}

std::vector<Turn> Turns::kept() {
  std::lock_guard lock(mutex_);
  return {turns_.begin(), turns_.end()};
}

}  // namespace memplan
