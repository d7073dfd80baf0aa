#include "alloc/journal.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace memplan {
namespace {

constexpr char kMagic[8] = {'M', 'P', 'L', 'N', 'J', 'R', 'N', '1'};
// Events; a power of two. Little enough to stay in a core's cache: each event is written
// once, and read once by the writer.
constexpr std::uint64_t kRing = 1 << 14;
constexpr std::size_t kStackBytes = 1 << 20;  // readers refuse blocks of over 64 MiB
constexpr auto kInterval = std::chrono::milliseconds(250);
constexpr auto kPatience = std::chrono::seconds(2);

// Which pass of the ring a slot belongs to; never 0, so that a fresh ring is empty.
std::uint32_t turn_of(std::uint64_t slot) {
  return static_cast<std::uint32_t>(slot / kRing) + 1;
}

Event* map_ring() {
  void* memory = mmap(nullptr, kRing * sizeof(Event), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<Event*>(memory);
}

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
    }
    tables[0][i] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

// CRC-32 as zlib computes it (polynomial 0xEDB88320), eight bytes at a time. Continues
// `crc`, 0 to start.
std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);  // little-endian, as every machine torch runs on
    word ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
    }
  }
  for (; bytes > 0; --bytes, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

}  // namespace

std::int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Journal::Journal(int descriptor, std::string_view info)
    : descriptor_(descriptor), ring_(map_ring()) {
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
  if (closing_.load(std::memory_order_relaxed)) return;
  const std::uint64_t slot = head_.fetch_add(1, std::memory_order_relaxed);
  while (slot - tail_.load(std::memory_order_acquire) >= kRing) {
    wake_.notify_one();
    sched_yield();
  }
  Event& cell = ring_[slot % kRing];
  // All but `turn`, which the writer may be looking at.
  std::memcpy(&cell, &event, offsetof(Event, turn));
  std::atomic_ref(cell.turn).store(turn_of(slot), std::memory_order_release);
  if (slot % (kRing / 2) == 0) wake_.notify_one();
}

void Journal::append_stack(std::string json) {
  std::lock_guard lock(mutex_);
  stacks_.push_back(std::move(json));
}

int Journal::close(std::string_view end) {
  if (closing_.exchange(true)) return error_;
  wake_.notify_one();
  if (writer_.joinable()) writer_.join();
  // A thread may be between taking its slot and filling it.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (drain(), tail_ != head_ && std::chrono::steady_clock::now() < deadline) {
    sched_yield();
  }
  write_block(kEnd, end.data(), end.size());
  if (::close(descriptor_) != 0 && error_ == 0) error_ = errno;
  madvise(ring_, kRing * sizeof(Event), MADV_DONTNEED);
  return error_;
}

void Journal::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    wake_.wait_for(lock, kInterval);
    lock.unlock();
    drain();
    lock.lock();
  }
}

std::uint64_t Journal::ready_until(std::uint64_t from) const {
  const std::uint64_t end = std::min(head_.load(), (from / kRing + 1) * kRing);
  std::uint64_t slot = from;
  for (; slot < end; ++slot) {
    auto& turn = ring_[slot % kRing].turn;
    if (std::atomic_ref(turn).load(std::memory_order_acquire) != turn_of(slot)) break;
  }
  return slot;
}

void Journal::drain() {
  for (;;) {
    const std::uint64_t from = tail_.load(std::memory_order_relaxed);
    const std::uint64_t until = ready_until(from);
    if (until == from) return;
    // Stacks first: an event must not refer to one that a cut has taken away.
    write_stacks();
    const std::uint64_t count = until - from;
    if (write_block(kEvents, &ring_[from % kRing], count * sizeof(Event))) {
      written_ += count;
    }
    tail_.store(until, std::memory_order_release);
  }
}

void Journal::write_stacks() {
  std::vector<std::string> stacks;
  {
    std::lock_guard lock(mutex_);
    std::swap(stacks, stacks_);
  }
  std::string json = "[";
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    json += stacks[i];
    const bool last = i + 1 == stacks.size() || json.size() > kStackBytes;
    json += last ? ']' : ',';
    if (!last) continue;
    write_block(kStacks, json.data(), json.size());
    json.assign(1, '[');
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
