// Optimizers' steps, of which PyTorch's hooks before and after them tell.
#pragma once

#include <cstddef>

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

struct OptimizerWatch {
  // Called before the step of an optimizer that is new, or whose tensors the program's own
  // code would be told of; what it does otherwise is done here.
  _object* begins;
  // Called after a step that left more state behind, or less, than the one before it.
  _object* changed;
  _object* tensor;     // plain tensors are of this class, and
  _object* parameter;  // plain parameters of this one,
  _object* modes;      // while `modes_see` them not
  std::size_t gradients;  // the code of a Category
};

// From now on; with null callables: no longer. With the GIL, as all here.
void watch_optimizers(const OptimizerWatch& watch);
// The hooks: nothing while none are watched. False with Python's error set.
bool optimizer_begins(_object* optimizer);
bool optimizer_stepped(_object* optimizer);

}  // namespace memplan
