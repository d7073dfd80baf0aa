// Calls of PyTorch's modules, seen without a hook: with a global one, PyTorch calls every
// module by its slow way.
#pragma once

#include <cstddef>

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

// From now on calls of `function`, a Python function that gets the module first, are
// seen, until both callables are None, however Python comes to call it: but Python 3.11
// runs `module._call_impl(x)`, as no module of PyTorch's own is called, by itself. All with
// the GIL; false if it is no function, or another one than before.
//
// Sites: a module that is called is entered, and left afterwards; for the outermost one
// of a thread `entering` is called before, as (module, positional arguments), unless the
// module is known and all it is given are numbers and what `tensors` can label.
struct PlainTensors {
  _object* type;       // objects of this class itself, and
  _object* modes;      // while `modes_see` them not
  std::size_t inputs;  // as what they are labelled: the code of a Category
};
bool watch_sites(_object* function, _object* entering, PlainTensors tensors);
// Steps: `called` is called before each call, as (module). If it returns True, calls of
// that module by that thread are no longer told, until any thread calls `tell_again`.
bool watch_steps(_object* function, _object* called);
void tell_again();

}  // namespace memplan
