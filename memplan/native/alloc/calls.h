// Calls of PyTorch's modules, seen without a hook: with a global one, PyTorch calls every
// module by its slow way.
#pragma once

#include <cstddef>

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

// From now on calls of `function`, a Python function that gets the module first, are
// seen, until both callables are None. All with the GIL; false if it is no function, or
// another one than before.
//
// Sites: a module that is called is entered, and left afterwards; for the outermost one
// of a thread `entering` is called before, as (module, positional arguments), unless the
// module is known and all it is given are objects of the class `tensor` itself, which are
// labelled as `inputs`, the code of a Category, and numbers.
bool watch_sites(_object* function, _object* entering, _object* tensor,
                 std::size_t inputs);
// Steps: `called` is called before each call, as (module). If it returns True, calls of
// that module by that thread are no longer told, until the thread calls `tell_again`.
bool watch_steps(_object* function, _object* called);
void tell_again();

}  // namespace memplan
