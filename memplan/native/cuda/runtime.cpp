#include "cuda/runtime.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace memplan::cuda {

std::string find_runtime(const char* path, Runtime& runtime) {
  // The handle is never closed: the library stays as long as torch does.
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return std::string(path) + " is not loaded";
  const std::array<std::pair<const char*, void*>, 14> wanted = {{
      {"cudaGetDevice", &runtime.get_device},
      {"cudaSetDevice", &runtime.set_device},
      {"cudaMalloc", &runtime.malloc},
      {"cudaFree", &runtime.free},
      {"cudaMemGetInfo", &runtime.memory_info},
      {"cudaEventCreateWithFlags", &runtime.event_create},
      {"cudaEventDestroy", &runtime.event_destroy},
      {"cudaEventRecord", &runtime.event_record},
      {"cudaEventQuery", &runtime.event_query},
      {"cudaEventSynchronize", &runtime.event_synchronize},
      {"cudaDeviceSynchronize", &runtime.device_synchronize},
      {"cudaStreamIsCapturing", &runtime.is_capturing},
      {"cudaGetLastError", &runtime.last_error},
      {"cudaGetErrorString", &runtime.error_string},
  }};
  for (const auto& [name, target] : wanted) {
    void* found = dlsym(library, name);
    if (found == nullptr) return std::string(path) + " has no " + name;
    *static_cast<void**>(target) = found;
  }
  return {};
}

DeviceGuard::DeviceGuard(const Runtime& runtime, int device) : runtime_(runtime) {
  if (runtime_.get_device(&before_) != kSuccess) return;
  if (before_ == device) return;
  changed_ = runtime_.set_device(device) == kSuccess;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) runtime_.set_device(before_);
}

}  // namespace memplan::cuda
