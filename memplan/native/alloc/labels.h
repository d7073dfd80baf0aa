// Where the tensors lie that are known to hold something.
#pragma once

#include <cstdint>
#include <vector>

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

// The addresses of the CPU's storages of these tensors, one for each; 0 for None, for
// other devices, for tensors without a storage (sparse ones), and for those of class
// `fake`, or null: asking these for an address warns. With the GIL; a Python error other
// than a tensor's refusal is left set.
std::vector<std::uint64_t> addresses_of(const std::vector<_object*>& tensors,
                                        _object* fake);

}  // namespace memplan
