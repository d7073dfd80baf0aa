// Where the tensors lie that are known to hold something.
#pragma once

#include <cstddef>
#include <vector>

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

// Blocks of which devices are recorded, so that what they hold is to be said: the CPU's,
// and all GPUs'. With the GIL.
void label_devices(bool cpu, bool cuda);

// Says what the blocks of these tensors hold: the code of a Category, and for which
// modules, by number, or for none where there are none. None is passed over, and so are
// other devices' tensors, those without a storage (sparse ones), and those of class
// `fake`, or null: asking these for an address warns. With the GIL; false where a Python
// error other than an Exception, a tensor's refusal, is left set.
bool label_tensors(const std::vector<_object*>& tensors, const std::vector<int>& modules,
                   std::size_t code, _object* fake);
// The same of the gradients of an optimizer's parameters; false, too, and nothing is said,
// where one of these or of those is not `plain`.
bool label_gradients(_object* optimizer, std::size_t code, bool (*plain)(_object*));
// Whether the program's own modes are told of what tensors are asked; modes: called, it
// returns how many there are. With the GIL.
bool modes_see(_object* modes);

}  // namespace memplan
