// A CUDA runtime over host memory, with streams that run only when a test says so.
//
// Work put on a stream waits in its queue until `fake_advance` runs it, so that an
// allocator that hands memory out too early is caught: blocks are filled with tokens
// and checked for them in device time, not in the order of the calls.
#include "fake_cudart.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace {

constexpr int kNoMemory = 2, kBadHandle = 400, kNotReady = 600, kCaptureForbids = 900;
constexpr int kCaptureImplicit = 906;
constexpr std::uint64_t kUnit = 512;
constexpr std::uint64_t kRegion = 1ull << 30;  // address space, not memory

struct FakeEvent;

struct Operation {
  enum Kind { kFill, kCheck, kEvent, kWait } kind;
  std::uint64_t begin = 0, end = 0;  // units of the region
  std::uint32_t token = 0;
  FakeEvent* event = nullptr;
  std::uint64_t ticket = 0;  // which recording of the event
};

struct FakeEvent {
  int device = 0;
  std::uint64_t recorded = 0;   // recordings so far; 0: never
  std::uint64_t completed = 0;  // the latest that its stream has reached
};

struct FakeStream {
  int device = 0;
  bool capturing = false;
  std::deque<Operation> queue;
};

struct Device {
  std::uint64_t cap = 64 << 20;
  std::uint64_t used = 0;
  FakeStream default_stream;
};

struct World {
  std::mutex mutex;
  char* base = nullptr;
  std::vector<std::uint32_t> tokens;              // one for each unit touched
  std::map<std::uint64_t, std::uint64_t> blocks;  // begin -> end, units
  std::map<std::uint64_t, int> owners;            // begin -> device
  Device devices[2];
  std::vector<FakeStream*> streams;
  std::set<FakeEvent*> events;
  std::map<int, std::pair<long, long>> plans;  // function -> calls to skip, to fail
  std::map<int, int> codes;
  FakeCounts counts = {};
  int last_error = 0;

  World() { devices[1].default_stream.device = 1; }
};

World& world() {
  static World* const the_world = new World;
  return *the_world;
}

thread_local int current_device = 0;

FakeStream& stream_of(void* handle) {
  if (handle == nullptr) return world().devices[current_device].default_stream;
  return *static_cast<FakeStream*>(handle);
}

bool any_capture() {
  World& w = world();
  return std::any_of(w.streams.begin(), w.streams.end(),
                     [](FakeStream* stream) { return stream->capturing; });
}

int result(int code) {
  if (code != 0) world().last_error = code;
  return code;
}

// The failure injected into this call of `function`, or 0.
int injected(FakeFunction function) {
  World& w = world();
  ++w.counts.calls[function];
  const auto found = w.plans.find(function);
  if (found == w.plans.end()) return 0;
  auto& [skip, fail] = found->second;
  if (skip-- > 0) return 0;
  if (fail-- <= 0) {
    w.plans.erase(found);
    return 0;
  }
  ++w.counts.injected;
  return w.codes[function];
}

// Calls that CUDA forbids while a stream is captured.
int forbidden() {
  if (!any_capture()) return 0;
  ++world().counts.capture_violations;
  return kCaptureForbids;
}

bool covered(std::uint64_t begin, std::uint64_t end) {
  World& w = world();
  auto above = w.blocks.upper_bound(begin);
  if (above == w.blocks.begin()) return false;
  --above;
  return above->second >= end;
}

bool step(FakeStream& stream) {
  World& w = world();
  if (stream.queue.empty()) return false;
  const Operation op = stream.queue.front();
  switch (op.kind) {
    case Operation::kWait:
      if (op.event->completed < op.ticket) return false;
      break;
    case Operation::kEvent:
      op.event->completed = std::max(op.event->completed, op.ticket);
      break;
    case Operation::kFill:
      if (!covered(op.begin, op.end)) ++w.counts.wild_accesses;
      std::fill(w.tokens.begin() + static_cast<long>(op.begin),
                w.tokens.begin() + static_cast<long>(op.end), op.token);
      break;
    case Operation::kCheck:
      if (!covered(op.begin, op.end)) ++w.counts.wild_accesses;
      if (std::any_of(w.tokens.begin() + static_cast<long>(op.begin),
                      w.tokens.begin() + static_cast<long>(op.end),
                      [&](std::uint32_t token) { return token != op.token; })) {
        ++w.counts.overwritten;
      }
      break;
  }
  stream.queue.pop_front();
  return true;
}

std::vector<FakeStream*> all_streams() {
  World& w = world();
  std::vector<FakeStream*> all = w.streams;
  for (Device& device : w.devices) all.push_back(&device.default_stream);
  return all;
}

// Runs all there is; streams that wait for each other take turns.
void run_all() {
  bool moved = true;
  while (moved) {
    moved = false;
    for (FakeStream* stream : all_streams()) {
      while (step(*stream)) moved = true;
    }
  }
}

void enqueue(void* stream, const Operation& op) { stream_of(stream).queue.push_back(op); }

Operation over(Operation::Kind kind, void* address, std::uint64_t bytes,
               std::uint32_t token) {
  World& w = world();
  const auto at = static_cast<std::uint64_t>(static_cast<char*>(address) - w.base);
  Operation op{kind};
  op.begin = at / kUnit;
  op.end = (at + bytes + kUnit - 1) / kUnit;
  op.token = token;
  if (w.tokens.size() < op.end) w.tokens.resize(op.end, 0);
  return op;
}

using Lock = std::lock_guard<std::mutex>;

}  // namespace

// ---- the runtime's own functions

API int cudaGetDevice(int* device) {
  *device = current_device;
  return 0;
}

API int cudaSetDevice(int device) {
  if (device < 0 || device > 1) return result(101);
  current_device = device;
  return 0;
}

API int cudaMalloc(void** address, std::size_t bytes) {
  World& w = world();
  Lock lock(w.mutex);
  if (int code = forbidden()) return result(code);
  if (int code = injected(kMalloc)) return result(code);
  Device& device = w.devices[current_device];
  const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
  if (device.used + units * kUnit > device.cap) return result(kNoMemory);
  if (w.base == nullptr) {
    void* start = mmap(nullptr, kRegion, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return result(kNoMemory);
    w.base = static_cast<char*>(start);
  }
  // First fit, so that addresses given back are soon handed out again.
  std::uint64_t at = 0;
  for (const auto& [begin, end] : w.blocks) {
    if (begin - at >= units) break;
    at = end;
  }
  if ((at + units) * kUnit > kRegion) return result(kNoMemory);
  w.blocks[at] = at + units;
  w.owners[at] = current_device;
  device.used += units * kUnit;
  w.counts.live_bytes += units * kUnit;
  *address = w.base + at * kUnit;
  return 0;
}

API int cudaFree(void* address) {
  World& w = world();
  Lock lock(w.mutex);
  if (int code = forbidden()) return result(code);
  if (int code = injected(kFree)) return result(code);
  const auto at =
      static_cast<std::uint64_t>(static_cast<char*>(address) - w.base) / kUnit;
  const auto found = w.blocks.find(at);
  if (found == w.blocks.end()) {
    ++w.counts.bad_frees;
    return result(1);
  }
  // CUDA happens to wait here; an allocator should not depend on it.
  for (FakeStream* stream : all_streams()) {
    for (const Operation& op : stream->queue) {
      const bool touches = op.kind == Operation::kFill || op.kind == Operation::kCheck;
      if (touches && op.begin < found->second && op.end > at) ++w.counts.freed_in_use;
    }
  }
  const std::uint64_t bytes = (found->second - at) * kUnit;
  w.devices[w.owners[at]].used -= bytes;
  w.counts.live_bytes -= bytes;
  w.owners.erase(at);
  w.blocks.erase(found);
  return 0;
}

API int cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  World& w = world();
  Lock lock(w.mutex);
  *total = w.devices[current_device].cap;
  *available = *total - std::min(*total, w.devices[current_device].used);
  return 0;
}

API int cudaEventCreateWithFlags(void** event, unsigned) {
  World& w = world();
  Lock lock(w.mutex);
  if (int code = injected(kEventCreate)) return result(code);
  auto* made = new FakeEvent{current_device};
  w.events.insert(made);
  *event = made;
  return 0;
}

API int cudaEventRecord(void* event, void* handle) {
  World& w = world();
  Lock lock(w.mutex);
  FakeStream& stream = stream_of(handle);
  if (stream.capturing) {
    ++w.counts.capture_violations;
    return result(kCaptureForbids);
  }
  if (int code = injected(kEventRecord)) return result(code);
  auto* found = static_cast<FakeEvent*>(event);
  if (w.events.count(found) == 0 || found->device != stream.device) {
    return result(kBadHandle);
  }
  Operation op{Operation::kEvent};
  op.event = found;
  op.ticket = ++found->recorded;
  stream.queue.push_back(op);
  return 0;
}

API int cudaEventQuery(void* event) {
  World& w = world();
  Lock lock(w.mutex);
  if (int code = forbidden()) return result(code);
  if (int code = injected(kEventQuery)) return result(code);
  auto* found = static_cast<FakeEvent*>(event);
  if (w.events.count(found) == 0) return result(kBadHandle);
  return found->completed == found->recorded ? 0 : result(kNotReady);
}

API int cudaEventSynchronize(void* event) {
  World& w = world();
  Lock lock(w.mutex);
  if (int code = forbidden()) return result(code);
  if (int code = injected(kEventSynchronize)) return result(code);
  auto* found = static_cast<FakeEvent*>(event);
  bool moved = true;
  while (moved && found->completed < found->recorded) {
    moved = false;
    for (FakeStream* stream : all_streams()) moved |= step(*stream);
  }
  return found->completed == found->recorded ? 0 : result(kNotReady);
}

API int cudaDeviceSynchronize() {
  World& w = world();
  Lock lock(w.mutex);
  if (int code = forbidden()) return result(code);
  if (int code = injected(kDeviceSynchronize)) return result(code);
  run_all();
  return 0;
}

API int cudaStreamIsCapturing(void* handle, int* status) {
  World& w = world();
  Lock lock(w.mutex);
  if (handle == nullptr && any_capture()) return result(kCaptureImplicit);
  *status = stream_of(handle).capturing ? 1 : 0;
  return 0;
}

API int cudaGetLastError() {
  World& w = world();
  Lock lock(w.mutex);
  return std::exchange(w.last_error, 0);
}

API const char* cudaGetErrorString(int code) {
  switch (code) {
    case kNoMemory: return "out of memory";
    case kCaptureForbids: return "operation not permitted when stream is capturing";
    case kCaptureImplicit: return "operation would make the legacy stream depend on a capture";
    default: return "unspecified launch failure";
  }
}

// ---- what tests call

API void* fake_stream(int device) {
  World& w = world();
  Lock lock(w.mutex);
  auto* made = new FakeStream;
  made->device = device;
  w.streams.push_back(made);
  return made;
}

API void fake_cap(int device, std::uint64_t bytes) { world().devices[device].cap = bytes; }

API void fake_capture(void* stream, int on) { stream_of(stream).capturing = on != 0; }

// After `skip` more calls of `function`, the next `count` fail with `code`.
API void fake_fail(int function, long skip, long count, int code) {
  World& w = world();
  Lock lock(w.mutex);
  w.plans[function] = {skip, count};
  w.codes[function] = code;
}

API void fake_fill(void* stream, void* address, std::uint64_t bytes, std::uint32_t token) {
  Lock lock(world().mutex);
  enqueue(stream, over(Operation::kFill, address, bytes, token));
}

API void fake_check(void* stream, void* address, std::uint64_t bytes,
                    std::uint32_t token) {
  Lock lock(world().mutex);
  enqueue(stream, over(Operation::kCheck, address, bytes, token));
}

// `waiter` goes on only when `stream` has done all that is queued on it now.
API void fake_wait(void* waiter, void* stream) {
  Lock lock(world().mutex);
  Operation op{Operation::kEvent};
  op.event = new FakeEvent{};  // the program's own, and never destroyed
  op.ticket = ++op.event->recorded;
  enqueue(stream, op);
  op.kind = Operation::kWait;
  enqueue(waiter, op);
}

// Runs up to `count` operations of a stream. Returns how many ran.
API std::uint64_t fake_advance(void* stream, std::uint64_t count) {
  Lock lock(world().mutex);
  std::uint64_t done = 0;
  while (done < count && step(stream_of(stream))) ++done;
  return done;
}

API void fake_run_all() {
  Lock lock(world().mutex);
  run_all();
}

API void fake_counts(FakeCounts* counts) {
  Lock lock(world().mutex);
  *counts = world().counts;
}
