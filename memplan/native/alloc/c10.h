// The part of c10's binary interface that memplan needs, mirrored.
//
// No torch header is included and no torch library is linked: the two types below
// have the layout of c10::DataPtr and c10::Allocator (Itanium C++ ABI, libstdc++),
// and the functions are looked up in the libc10.so that torch has loaded. `probe`
// checks every assumption before anything is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace memplan::c10 {

using Deleter = void (*)(void*);

struct DataPtr {
  void* data = nullptr;
  std::unique_ptr<void, Deleter> context{nullptr, nullptr};
  std::int8_t device_type = 0;  // 0 is CPU
  std::int8_t device_index = -1;
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual DataPtr allocate(std::size_t bytes) = 0;
  virtual bool is_simple_data_ptr(const DataPtr& pointer) const = 0;
  virtual Deleter raw_deleter() const = 0;
  virtual void copy_data(void* to, const void* from, std::size_t bytes) const = 0;
};

struct Symbols {
  Allocator* (*get_allocator)() = nullptr;
  void (*set_allocator)(Allocator*, std::uint8_t priority) = nullptr;
  DataPtr (*clone)(Allocator*, const void*, std::size_t) = nullptr;
  // The profiler's books; null where this build of c10 keeps none.
  void* reporter = nullptr;
  void (*report_new)(void* reporter, void* pointer, std::size_t bytes) = nullptr;
  void (*report_delete)(void* reporter, void* pointer) = nullptr;
};

// Finds the functions in the library at `path`, which must be loaded already.
// Returns an empty string, or what is missing.
std::string find_symbols(const std::string& path, Symbols& symbols);

// Checks that the allocator behaves as the mirrored types say, in a child process
// first, since a foreign layout may crash. `shim` is called through c10's own code,
// to check the other direction. Returns an empty string, or what did not hold.
std::string probe(const Symbols& symbols, Allocator* shim);

}  // namespace memplan::c10
