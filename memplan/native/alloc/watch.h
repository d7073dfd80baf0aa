// What PyTorch's modules and optimizers do, and what their tensors hold, seen without a hook
// where that is possible: with a global one, PyTorch calls every module by its slow way. All
// with the GIL.
#pragma once

#include <cstddef>
#include <vector>

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

// ---- what tensors hold

// Blocks of which devices are recorded, so that what they hold is to be said: the CPU's,
// and all GPUs'.
void label_devices(bool cpu, bool cuda);

// Says what the blocks of these tensors hold: the code of a Category, and for which
// modules, by number, or for none where there are none. None is passed over, and so are
// other devices' tensors, those without a storage (sparse ones), and those of class
// `fake`, or null: asking these for an address warns. False where a Python error other than
// an Exception, a tensor's refusal, is left set.
bool label_tensors(const std::vector<_object*>& tensors, const std::vector<int>& modules,
                   std::size_t code, _object* fake);

// ---- calls of modules

// From now on calls of `function`, a Python function that gets the module first, are
// seen, until both callables are None, however Python comes to call it: but Python 3.11
// runs `module._call_impl(x)`, as no module of PyTorch's own is called, by itself. False
// if it is no function, or another one than before.
//
// Sites: a module that is called is entered, and left afterwards; for the outermost one
// of a thread `entering` is called before, as (module, positional arguments), unless the
// module is known and all it is given are numbers and what `tensors` can label.
struct PlainTensors {
  _object* type;       // objects of this class itself, while no mode sees them
  _object* modes;      // called, it returns how many of the program's own see tensors
  std::size_t inputs;  // as what they are labelled: the code of a Category
};
bool watch_sites(_object* function, _object* entering, PlainTensors tensors);
// Steps: `called` is called before each call, as (module). If it returns True, calls of
// that module by that thread are no longer told, until any thread calls `tell_again`.
bool watch_steps(_object* function, _object* called);
void tell_again();

// ---- optimizers' steps

struct OptimizerWatch {
  // Called before the step of an optimizer that is new, or whose tensors the program's own
  // code would be told of; what it does otherwise is done here.
  _object* begins;
  // Called after a step that left more state behind, or less, than the one before it.
  _object* changed;
  _object* tensor;     // plain tensors are of this class, and
  _object* parameter;  // plain parameters of this one,
  _object* modes;      // as PlainTensors has them
  std::size_t gradients;  // the code of a Category
};

// From now on; with null callables: no longer.
void watch_optimizers(const OptimizerWatch& watch);
// The hooks: nothing while none are watched. False with Python's error set.
bool optimizer_begins(_object* optimizer);
bool optimizer_stepped(_object* optimizer);

}  // namespace memplan
