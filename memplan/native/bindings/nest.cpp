// Python's view of the loop-nest kernels: arrays in, arrays out, the GIL released.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_cache(nb::module_& m);
void bind_optimum(nb::module_& m);

NB_MODULE(_nest, m) {
  bind_cache(m);
  bind_optimum(m);
}
