// A random program over several streams, with failures injected, that checks what it
// is given: in the order of its calls, and on the fake device in device time.
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cudart.h"

namespace {

// As memplan_cuda_load_plan takes it.
struct Plan {
  const std::int64_t* sizes;
  const std::int64_t* offsets;
  std::size_t count;
  const std::int64_t* starts;
  const bool* elastic;
  std::size_t steps;
  std::size_t loop_begin;
  std::size_t loop_end;
  std::uint64_t arena_bytes;
  bool unmarked;
};

constexpr unsigned kRanks = 2;  // of the streams that have plans, the first ones

// What the program may call, and what goes on behind its back.
struct Allocator {
  void* (*allocate)(std::uint64_t, int, void*, const char**);
  void (*release)(void*);
  void (*record_stream)(void*, void*);
  void (*empty)();
  int (*begin_pool)(int, std::uint64_t);
  void (*end_pool)(int, std::uint64_t);
  void (*next_step)(unsigned char);
  const char* (*load_plan)(int, unsigned, bool, const Plan*);
  void (*stand_aside)(int, unsigned, bool);
  void (*retire)();
};

struct Outcome {
  std::uint64_t requests;
  std::uint64_t served;
  std::uint64_t out_of_memory;
  std::uint64_t unexpected;  // raised, and not for want of memory
  std::uint64_t recorded;    // uses by another stream
  std::uint64_t exchanged;   // plans
  std::uint64_t overlaps;    // of blocks alive at the same time
};

struct Live {
  char* address;
  std::uint64_t size;
  void* stream;
  std::uint32_t token;
};

// All threads' live blocks, to hold each other against.
class Ledger {
 public:
  void add(const Live& block) {
    std::lock_guard lock(mutex_);
    const auto above = blocks_.lower_bound(block.address);
    if (above != blocks_.end() && above->first < block.address + block.size) ++overlaps_;
    if (above != blocks_.begin() && std::prev(above)->second > block.address) ++overlaps_;
    blocks_[block.address] = block.address + block.size;
  }
  void remove(const Live& block) {
    std::lock_guard lock(mutex_);
    blocks_.erase(block.address);
  }
  std::uint64_t overlaps() const { return overlaps_; }

 private:
  std::mutex mutex_;
  std::map<char*, char*> blocks_;
  std::uint64_t overlaps_ = 0;
};

std::atomic<std::uint32_t> next_token{0};

class Program {
 public:
  Program(const Allocator& allocator, const std::vector<void*>& streams,
          const std::vector<const Plan*>& plans, Ledger& ledger, unsigned seed, bool alone)
      : use_(allocator),
        streams_(streams),
        plans_(plans),
        ledger_(ledger),
        random_(seed),
        alone_(alone) {}

  void run(std::uint64_t requests) {
    for (std::uint64_t i = 0; i < requests; ++i) {
      request(quick_stream());
      if (chance(0.5)) fake_advance(quick_stream(), below(30));
      if (chance(0.01)) slow_ = any_stream();
      while (live_.size() > 120 || (!live_.empty() && chance(0.49))) release();
      if (chance(0.003)) use_.next_step(1);
      if (chance(0.003)) i += follow();
      if (chance(0.002)) exchange();
      if (alone_ && chance(0.0005)) use_.empty();
      if (chance(0.01)) inject();
      if (alone_ && chance(0.001)) capture();
    }
    while (!live_.empty()) release();
  }

  Outcome outcome = {};

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool chance(double p) { return static_cast<double>(random_() % 1000000) < p * 1e6; }
  void* any_stream() { return streams_[below(streams_.size())]; }
  void* quick_stream() {
    void* stream = any_stream();
    while (stream == slow_) stream = any_stream();
    return stream;
  }

  void request(void* stream) {
    static constexpr std::array<std::uint64_t, 8> kSizes = {
        8, 512, 1000, 4096, 5000, 65536, 300000, 1 << 20};
    request(stream, kSizes[below(chance(0.1) ? 8 : 6)]);
  }

  void request(void* stream, std::uint64_t size) {
    ++outcome.requests;
    const char* message = nullptr;
    void* address = use_.allocate(size, 0, stream, &message);
    if (message != nullptr) {
      const bool memory = std::strstr(message, "out of memory") != nullptr;
      ++(memory ? outcome.out_of_memory : outcome.unexpected);
      return;
    }
    ++outcome.served;
    const Live block{static_cast<char*>(address), size, stream, ++next_token};
    ledger_.add(block);
    live_.push_back(block);
    fake_fill(stream, address, size, block.token);
    while (chance(0.25)) {
      void* user = any_stream();
      fake_wait(user, stream);
      fake_check(user, address, size, block.token);
      use_.record_stream(address, user);
      ++outcome.recorded;
    }
  }

  // A step as one of the plans has it, now and then a larger one: so that arenas are
  // made, and outgrown. Returns how many requests it was.
  std::uint64_t follow() {
    const std::size_t rank = below(kRanks);
    if (streams_[rank] == slow_) return 0;
    const Plan& plan = *plans_[below(plans_.size())];
    const std::uint64_t larger = chance(0.2) ? 2 : 1;
    use_.load_plan(0, static_cast<unsigned>(rank), false, &plan);
    const auto first = static_cast<std::size_t>(plan.starts[0]);
    const auto last = static_cast<std::size_t>(plan.starts[1]);
    for (std::size_t i = first; i < last; ++i) {
      request(streams_[rank], static_cast<std::uint64_t>(plan.sizes[i]) * larger);
      while (live_.size() > 60 || (!live_.empty() && chance(0.4))) release();
    }
    fake_advance(streams_[rank], 1000);
    use_.next_step(1);
    return last - first;
  }

  void release() {
    std::swap(live_[below(live_.size())], live_.back());
    const Live block = live_.back();
    live_.pop_back();
    fake_check(block.stream, block.address, block.size, block.token);
    ledger_.remove(block);
    use_.release(block.address);
  }

  void inject() {
    static constexpr std::array<int, 6> kFunctions = {
        kMalloc, kEventCreate, kEventRecord, kEventQuery, kMalloc, kEventRecord};
    const int function = kFunctions[below(kFunctions.size())];
    const int code = function == kMalloc && chance(0.8) ? 2 : 719;
    fake_fail(function, static_cast<long>(below(4)), 1 + static_cast<long>(below(3)), code);
  }

  // Another plan, now or from the next step on, or none for a while.
  void exchange() {
    const auto rank = static_cast<unsigned>(below(kRanks));
    if (chance(0.1)) use_.retire();
    if (chance(0.2)) use_.stand_aside(0, rank, chance(0.5));
    const char* fault =
        use_.load_plan(0, rank, chance(0.5), plans_[below(plans_.size())]);
    if (fault == nullptr) ++outcome.exchanged;
  }

  // A capture in the midst, in a pool as always: blocks die, and nothing breaks it.
  void capture() {
    void* stream = streams_.back();
    use_.begin_pool(0, 1);
    request(stream);
    fake_capture(stream, 1);
    for (int i = 0; i < 5 && !live_.empty(); ++i) release();
    fake_capture(stream, 0);
    use_.end_pool(0, 1);
  }

  const Allocator& use_;
  const std::vector<void*>& streams_;
  const std::vector<const Plan*>& plans_;
  Ledger& ledger_;
  std::mt19937_64 random_;
  const bool alone_;
  // For a while one stream stands still, and only reads what the others make: the
  // longer it lags behind, the more it would show that its blocks were used again.
  void* slow_ = nullptr;
  std::vector<Live> live_;
};

}  // namespace

// Runs `requests` in all, on `threads` threads and the `count` streams given, under the
// plans given in turn. Ends with every block freed and no failure left to be injected.
API void soak(const Allocator* allocator, void** streams, std::size_t count,
              const Plan** plans, std::size_t planned, std::uint64_t requests,
              unsigned threads, unsigned seed, Outcome* total) {
  const std::vector<void*> all(streams, streams + count);
  const std::vector<const Plan*> exchanged(plans, plans + planned);
  Ledger ledger;
  std::vector<Program> programs;
  for (unsigned i = 0; i < threads; ++i) {
    programs.emplace_back(*allocator, all, exchanged, ledger, seed + i, threads == 1);
  }
  std::vector<std::thread> running;
  for (Program& program : programs) {
    running.emplace_back([&] { program.run(requests / threads); });
  }
  for (std::thread& thread : running) thread.join();
  for (int function = 0; function < kFunctions; ++function) fake_fail(function, 0, 0, 0);
  fake_run_all();
  for (const Program& program : programs) {
    const auto* from = reinterpret_cast<const std::uint64_t*>(&program.outcome);
    auto* to = reinterpret_cast<std::uint64_t*>(total);
    for (std::size_t i = 0; i < sizeof(Outcome) / sizeof(*to); ++i) to[i] += from[i];
  }
  total->overlaps = ledger.overlaps();
}
