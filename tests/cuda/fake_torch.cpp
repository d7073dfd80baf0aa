// What stands for torch's libc10_cuda: an allocator of the same shape, on the fake
// runtime, and the few functions beside it that memplan looks up.
//
// Its own code is as simple as can be: a block is one of cudaMalloc's, kept for the next
// request of its size on its stream. LAYOUT moves its functions about, as releases do.
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_cudart.h"

#ifndef LAYOUT
#define LAYOUT 1
#endif

extern "C" {
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int cudaGetDevice(int*);
int cudaSetDevice(int);
int cudaDeviceSynchronize();
}

namespace c10 {

using Deleter = void (*)(void*);
using PoolId = std::pair<unsigned long long, unsigned long long>;

struct Device {
  std::int8_t type = 1;
  std::int8_t index = -1;
};

class DataPtr {
 public:
#if LAYOUT == 5  // as another device's
  DataPtr(void* data, Deleter deleter, Device device)
      : data_(data), context_(data, deleter), device_{20, device.index} {}
#else
  DataPtr(void* data, Deleter deleter, Device device)
      : data_(data), context_(data, deleter), device_(device) {}
#endif
  void* get() const { return data_; }
  Deleter deleter() const { return context_.get_deleter(); }

 private:
  void* data_;
  std::unique_ptr<void, Deleter> context_;
  Device device_;
#if LAYOUT == 4
  std::uint64_t more_ = 1;
#endif
};

struct Stream {
  Device device;
  std::int64_t id;
};

class OutOfMemoryError : public std::exception {
 public:
  const char* what() const noexcept override { return "CUDA out of memory."; }
};

class AnotherError : public std::exception {
 public:
  const char* what() const noexcept override { return "CUDA error: another"; }
};

class Allocator {
 public:
  virtual ~Allocator() = default;
#if LAYOUT == 3
  virtual void before() {}
#endif
  virtual DataPtr allocate(std::size_t bytes) = 0;
  virtual bool is_simple(const DataPtr&) const { return true; }
  virtual Deleter raw_deleter() const = 0;
  virtual void copy_data(void* to, const void* from, std::size_t bytes) const {
    std::memcpy(to, from, bytes);
  }
};

namespace cuda {

class CUDAStream {
 public:
  explicit CUDAStream(Stream stream) : stream_(stream) {}
  __attribute__((visibility("default"))) void* stream() const;
  std::int64_t id() const { return stream_.id; }

 private:
  Stream stream_;
};

void* CUDAStream::stream() const { return reinterpret_cast<void*>(stream_.id); }

thread_local std::map<int, std::int64_t> current_streams;

__attribute__((visibility("default"))) CUDAStream getCurrentCUDAStream(signed char device) {
  return CUDAStream({{1, device}, current_streams[device]});
}

__attribute__((visibility("default"))) int GetDevice(signed char* device) {
  int found = 0;
  const int code = cudaGetDevice(&found);
  *device = static_cast<signed char>(found);
  return code;
}

namespace CUDACachingAllocator {

struct TraceEntry {
  enum Action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP,
                UNMAP, SNAPSHOT, OOM };
  Action action;
  std::int8_t device;
  std::size_t address;
  std::shared_ptr<int> context;
#if LAYOUT == 6  // as a stream of any device
  std::int64_t stream_id = 0;
#endif
  void* stream;
  std::size_t size;
  std::pair<unsigned long long, unsigned long long> pool;
};
using Tracker = std::function<void(const TraceEntry&)>;

class CUDAAllocator : public Allocator {
 public:
  virtual bool initialized() { return true; }
#if LAYOUT == 2
  virtual void record_stream_of_any_device(const DataPtr& block, Stream stream) {
    recordStream(block, CUDAStream(stream));
  }
#endif
  virtual double fraction() { return 1.0; }
  virtual bool enabled() { return true; }
#if LAYOUT != 2
  virtual void recordStream(const DataPtr& block, CUDAStream stream) = 0;
  virtual void f1() {}
#endif
  virtual void beginAllocateToPool(signed char device, PoolId pool,
                                   std::function<bool(void*)> filter) = 0;
#if LAYOUT == 2
  virtual void recordStream(const DataPtr& block, CUDAStream stream) = 0;
#endif
  virtual void endAllocateToPool(signed char device, PoolId pool) = 0;
  virtual void f2() {}
  virtual void emptyCache(PoolId pool = {0, 0}) = 0;
#if LAYOUT == 2
  virtual void attachAnother(std::function<bool()>) {}
#endif
  virtual void attachAllocatorTraceTracker(Tracker tracker) = 0;
  virtual void f3() {}
  virtual void f4() {}
  virtual void f5() {}
  virtual void f6() {}
  virtual void f7() {}
  virtual std::string name() { return "native"; }
  virtual void f8() {}
};

namespace Native {

struct Block {
  std::uint64_t bytes;
  int device;
  std::int64_t stream;
  std::set<void*> users;
};

class NativeCachingAllocator;
NativeCachingAllocator& the_allocator();
void raw_delete(void* address);

class NativeCachingAllocator : public CUDAAllocator {
 public:
  DataPtr allocate(std::size_t bytes) override {
    int device = 0;
    cudaGetDevice(&device);
    const Device where = {1, static_cast<std::int8_t>(device)};
    if (bytes == 0) return {nullptr, &raw_delete, where};
    std::lock_guard lock(mutex_);
    ++requests;
    if (fails_otherwise) throw AnotherError();
    const auto handle = reinterpret_cast<void*>(current_streams[device]);
    const std::uint64_t rounded = (bytes + 511) / 512 * 512;
    const auto stream = current_streams[device];
    auto& idle = idle_[{device, stream, rounded}];
    void* address = nullptr;
    if (!idle.empty()) {
      address = idle.back();
      idle.pop_back();
    } else if (rounded >> 40 != 0 || (take(&address, rounded) != 0 &&
                                      (empty(), take(&address, rounded) != 0))) {
      trace(TraceEntry::OOM, device, reinterpret_cast<void*>(4096), rounded, handle);
      throw OutOfMemoryError();
    } else {
      trace(TraceEntry::SEGMENT_ALLOC, device, address, rounded, handle);
    }
    live_[address] = {rounded, device, stream, {}};
    trace(TraceEntry::ALLOC, device, address, bytes, handle);
    return {address, &raw_delete, where};
  }
  Deleter raw_deleter() const override { return &raw_delete; }
  void recordStream(const DataPtr& block, CUDAStream stream) override {
    if (block.get() == nullptr || block.deleter() != &raw_delete) return;
    std::lock_guard lock(mutex_);
    ++recorded;
    live_.at(block.get()).users.insert(stream.stream());
  }
  void attachAllocatorTraceTracker(Tracker tracker) override {
    std::lock_guard lock(mutex_);
    trackers_.push_back(std::move(tracker));
  }
  void beginAllocateToPool(signed char, PoolId pool,
                           std::function<bool(void*)> filter) override {
    if (filter && pool.first == 666) throw AnotherError();
    ++pools;
  }
  void endAllocateToPool(signed char, PoolId) override { --pools; }

  void release(void* address) {
    std::lock_guard lock(mutex_);
    const auto found = live_.find(address);
    if (found == live_.end()) {
      ++wrong_frees;
      return;
    }
    const Block& block = found->second;
    const auto handle = reinterpret_cast<void*>(block.stream);
    trace(TraceEntry::FREE_REQUESTED, block.device, address, block.bytes, handle);
    // A block that others use is not handed out again before all is idle.
    if (block.users.empty()) {
      trace(TraceEntry::FREE_COMPLETED, block.device, address, block.bytes, handle);
      idle_[{block.device, block.stream, block.bytes}].push_back(address);
    } else {
      used_.emplace_back(address, block);
    }
    live_.erase(found);
  }
  void empty() {
    cudaDeviceSynchronize();
    for (auto& [key, idle] : idle_) {
      for (void* address : idle) cudaFree(address);
    }
    for (auto& [address, block] : used_) {
      const auto handle = reinterpret_cast<void*>(block.stream);
      trace(TraceEntry::FREE_COMPLETED, block.device, address, block.bytes, handle);
      cudaFree(address);
    }
    idle_.clear();
    used_.clear();
  }
  void emptyCache(PoolId) override {
    std::lock_guard lock(mutex_);
    empty();
  }
  std::size_t live() {
    std::lock_guard lock(mutex_);
    return live_.size();
  }

  std::atomic<std::uint64_t> requests = 0, recorded = 0, wrong_frees = 0;
  std::atomic<int> pools = 0;
  std::atomic<bool> fails_otherwise = false;

 private:
  void trace(TraceEntry::Action action, int device, void* address, std::size_t bytes,
             void* stream) {
    TraceEntry entry{};
    entry.action = action;
    entry.device = static_cast<std::int8_t>(device);
    entry.address = reinterpret_cast<std::size_t>(address);
    entry.stream = stream;
    entry.size = bytes;
    for (const Tracker& tracker : trackers_) tracker(entry);
  }
  static int take(void** address, std::uint64_t bytes) {
    return cudaMalloc(address, bytes);
  }

  std::mutex mutex_;
  std::map<void*, Block> live_;
  std::map<std::tuple<int, std::int64_t, std::uint64_t>, std::vector<void*>> idle_;
  std::vector<std::pair<void*, Block>> used_;
  std::vector<Tracker> trackers_;
};

NativeCachingAllocator& the_allocator() {
  static auto* const the_one = new NativeCachingAllocator;
  return *the_one;
}

void raw_delete(void* address) { the_allocator().release(address); }

}  // namespace Native

// As `backend:cudaMallocAsync` has it.
class AnotherAllocator : public Native::NativeCachingAllocator {};

__attribute__((visibility("default"))) std::atomic<CUDAAllocator*> allocator = [] {
#ifdef ANOTHER
  return static_cast<CUDAAllocator*>(new AnotherAllocator);
#else
  return static_cast<CUDAAllocator*>(&Native::the_allocator());
#endif
}();

}  // namespace CUDACachingAllocator
}  // namespace cuda
}  // namespace c10

#ifndef NAMELESS
// The allocator whose functions have names.
namespace torch::cuda::CUDAPluggableAllocator {

struct __attribute__((visibility("default"))) CUDAPluggableAllocator
    : c10::cuda::CUDACachingAllocator::CUDAAllocator {
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::Deleter raw_deleter() const override { return nullptr; }
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {}
  void beginAllocateToPool(signed char, c10::PoolId, std::function<bool(void*)>) override {}
  void endAllocateToPool(signed char, c10::PoolId) override {}
  void emptyCache(c10::PoolId) override {}
  void attachAllocatorTraceTracker(c10::cuda::CUDACachingAllocator::Tracker) override {}
};

c10::DataPtr CUDAPluggableAllocator::allocate(std::size_t) {
  return {nullptr, nullptr, {}};
}

}  // namespace torch::cuda::CUDAPluggableAllocator
#endif

using namespace c10;
using cuda::CUDACachingAllocator::allocator;
using cuda::CUDACachingAllocator::Native::the_allocator;

namespace {

std::mutex blocks_mutex;
std::map<void*, std::unique_ptr<DataPtr>>& blocks() {
  static auto* const the_blocks = new std::map<void*, std::unique_ptr<DataPtr>>;
  return *the_blocks;
}

}  // namespace

// ---- what a program calls

// Null, and the message, where an exception is thrown.
API void* fake_allocate(std::uint64_t bytes, int device, void* stream,
                        const char** message) {
  cudaSetDevice(device);
  cuda::current_streams[device] = reinterpret_cast<std::int64_t>(stream);
  *message = nullptr;
  try {
    auto made = std::make_unique<DataPtr>(allocator.load()->allocate(bytes));
    void* address = made->get();
    if (address == nullptr) return nullptr;
    std::lock_guard lock(blocks_mutex);
    blocks()[address] = std::move(made);
    return address;
  } catch (const OutOfMemoryError& failure) {
    *message = failure.what();
  } catch (const AnotherError& failure) {
    *message = failure.what();
  }
  return nullptr;
}

API void fake_release(void* address) {
  std::unique_ptr<DataPtr> block;
  {
    std::lock_guard lock(blocks_mutex);
    block = std::move(blocks().at(address));
    blocks().erase(address);
  }
}

API void fake_record_stream(void* address, void* stream) {
  const DataPtr* block = nullptr;
  {
    std::lock_guard lock(blocks_mutex);
    block = blocks().at(address).get();
  }
  const Stream used = {{1, 0}, reinterpret_cast<std::int64_t>(stream)};
#if LAYOUT == 2
  allocator.load()->record_stream_of_any_device(*block, used);
#else
  allocator.load()->recordStream(*block, cuda::CUDAStream(used));
#endif
}

API int fake_begin_pool(int device, std::uint64_t number) {
  try {
    allocator.load()->beginAllocateToPool(static_cast<signed char>(device), {number, 1},
                            [](void*) { return true; });
    return 0;
  } catch (const AnotherError&) {
    return 1;
  }
}

API void fake_end_pool(int device, std::uint64_t number) {
  allocator.load()->endAllocateToPool(static_cast<signed char>(device), {number, 1});
}

API void fake_empty() { allocator.load()->emptyCache(); }

API void fake_fail_otherwise(int on) { the_allocator().fails_otherwise = on != 0; }

// Requests, recorded streams and wrong frees that torch's own saw; its live blocks; pools.
API void fake_torch_counts(std::uint64_t* counts) {
  auto& own = the_allocator();
  *counts++ = own.requests;
  *counts++ = own.recorded;
  *counts++ = own.wrong_frees;
  *counts++ = own.live();
  *counts++ = static_cast<std::uint64_t>(own.pools);
  *counts++ = dynamic_cast<cuda::CUDACachingAllocator::Native::NativeCachingAllocator*>(
                  allocator.load()) == &own;
}
