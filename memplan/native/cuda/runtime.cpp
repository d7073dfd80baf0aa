#include "cuda/runtime.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace memplan::cuda {

std::string find_runtime(void* library, Runtime& runtime) {
  const std::array<std::pair<const char*, void*>, 7> wanted = {{
      {"cudaGetDevice", &runtime.get_device},
      {"cudaSetDevice", &runtime.set_device},
      {"cudaEventCreateWithFlags", &runtime.event_create},
      {"cudaEventRecord", &runtime.event_record},
      {"cudaEventQuery", &runtime.event_query},
      {"cudaStreamIsCapturing", &runtime.is_capturing},
      {"cudaGetLastError", &runtime.last_error},
  }};
  for (const auto& [name, target] : wanted) {
    void* found = dlsym(library, name);
    if (found == nullptr) return std::string("there is no ") + name;
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
