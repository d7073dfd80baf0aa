#include "alloc/journal.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "alloc/crc32.h"

namespace memplan {
namespace {

constexpr char kMagic[8] = {'M', 'P', 'L', 'N', 'J', 'R', 'N', '1'};
constexpr std::size_t kBlockEvents = 1 << 16;
constexpr std::size_t kMaxWaiting = 1 << 22;  // 160 MiB; beyond it events are dropped
constexpr std::size_t kStackBytes = 1 << 20;  // readers refuse blocks of over 64 MiB
constexpr auto kInterval = std::chrono::milliseconds(250);

}  // namespace

std::int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Journal::Journal(int descriptor, std::string_view info) : descriptor_(descriptor) {
  waiting_.reserve(2 * kBlockEvents);
  spare_.reserve(2 * kBlockEvents);
  write_all(kMagic, sizeof kMagic);
  write_block(kInfo, info.data(), info.size());
  // The program's signals are the program's: the writer takes none of them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  writer_ = std::thread(&Journal::run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Journal::append(const Event& event) {
  std::lock_guard lock(mutex_);
  ++seen_;
  if (closing_ || error_ != 0 || waiting_.size() >= kMaxWaiting) return;
  waiting_.push_back(event);
  if (waiting_.size() == kBlockEvents) wake_.notify_one();
}

void Journal::append_stack(std::string json) {
  std::lock_guard lock(mutex_);
  stacks_.push_back(std::move(json));
}

int Journal::close(std::string_view end) {
  {
    std::lock_guard lock(mutex_);
    if (closing_) return error_;
    closing_ = true;
  }
  wake_.notify_one();
  if (writer_.joinable()) writer_.join();
  write_block(kEnd, end.data(), end.size());
  if (descriptor_ >= 0 && ::close(descriptor_) != 0 && error_ == 0) error_ = errno;
  descriptor_ = -1;
  return error_;
}

void Journal::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    wake_.wait_for(lock, kInterval,
                   [&] { return closing_ || waiting_.size() >= kBlockEvents; });
    flush(lock);
  }
  flush(lock);  // it may have been closed before this thread ever waited
}

void Journal::flush(std::unique_lock<std::mutex>& lock) {
  if (waiting_.empty() && stacks_.empty()) return;
  std::swap(spare_, waiting_);
  std::vector<std::string> stacks = std::exchange(stacks_, {});
  lock.unlock();
  // Stacks first: an event must not refer to one that a cut has taken away.
  write_stacks(stacks);
  for (std::size_t at = 0; at < spare_.size(); at += kBlockEvents) {
    const std::size_t count = std::min(kBlockEvents, spare_.size() - at);
    if (write_block(kEvents, spare_.data() + at, count * sizeof(Event))) {
      written_ += count;
    }
  }
  spare_.clear();
  lock.lock();
}

void Journal::write_stacks(const std::vector<std::string>& stacks) {
  std::string json = "[";
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    json += stacks[i];
    const bool last = i + 1 == stacks.size() || json.size() > kStackBytes;
    json += last ? ']' : ',';
    if (!last) continue;
    write_block(kStacks, json.data(), json.size());
    json = "[";
  }
}

bool Journal::write_block(std::uint32_t kind, const void* data, std::size_t bytes) {
  std::uint32_t header[3] = {kind, static_cast<std::uint32_t>(bytes), 0};
  header[2] = crc32(crc32(0, header, 8), data, bytes);
  write_all(header, sizeof header);
  write_all(data, bytes);
  return error_ == 0;
}

void Journal::write_all(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0 && error_ == 0) {
    const ssize_t written = ::write(descriptor_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      error_ = written < 0 ? errno : ENOSPC;
      return;
    }
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

}  // namespace memplan
