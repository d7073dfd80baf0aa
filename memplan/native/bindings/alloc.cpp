// Python's view of the allocator shim. Plain data in, plain data out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "alloc/calls.h"
#include "alloc/last_words.h"
#include "alloc/quiet_call.h"
#include "alloc/shim.h"
#include "alloc/stacks.h"
#include "alloc/watch.h"
#include "bindings/arrays.h"
#include "cuda/forecast.h"

namespace nb = nanobind;
using namespace nb::literals;
using memplan::Counts;
using memplan::Replay;
using memplan::span_of;
using memplan::state;

namespace {

using Column = memplan::In<std::int64_t>;
using Flags = memplan::In<bool>;
constexpr std::uint64_t kCudaUnit = 512;  // bytes, as torch's CUDA allocator rounds to

nb::dict to_dict(const Counts& counts) {
  nb::dict result;
  for (const auto& [name, counter] : memplan::kCounters) result[name] = counts.*counter;
  return result;
}

PyObject* or_null(nb::handle object) {
  return object.is_none() ? nullptr : object.ptr();
}

memplan::StackCapture capture = nullptr;  // of the recordings to come

// A call, with the object that owns its arena; while blocks of it live on, so does that.
struct OwnedCall {
  OwnedCall(std::uintptr_t address, std::size_t bytes,
            std::vector<memplan::Call::Step> steps, nb::object owner)
      : arena(std::move(owner)),
        call(reinterpret_cast<void*>(address), bytes, std::move(steps)) {}
  ~OwnedCall() {
    if (call.alive() > 0) arena.release();
  }
  OwnedCall(const OwnedCall&) = delete;
  OwnedCall& operator=(const OwnedCall&) = delete;

  nb::object arena;
  memplan::Call call;
};

}  // namespace

NB_MODULE(_alloc, m) {
  m.def("check", &memplan::check, "path"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("install", &memplan::install, "path"_a);
  m.def(
      "note_stacks",
      [](int depth, std::string runner, std::vector<std::string> foreign,
         std::string torch_library, nb::object describe, nb::object current_node,
         nb::object current_task) {
        capture = memplan::begin_stacks(
            memplan::Depth{depth},
            {std::move(runner), std::move(foreign), std::move(torch_library),
             or_null(describe), or_null(current_node), or_null(current_task)});
      },
      "depth"_a, "runner"_a = "", "foreign"_a = std::vector<std::string>{},
      "torch_library"_a = "", "describe"_a = nb::none(), "current_node"_a = nb::none(),
      "current_task"_a = nb::none());
  m.def(
      "start_recording",
      [](int descriptor, const std::string& info, std::uint64_t limit, bool requests) {
        auto* journal = new memplan::Journal(descriptor, info);
        memplan::start_recording(journal, capture, limit, requests);
      },
      "descriptor"_a, "info"_a, "limit"_a = 0, "requests"_a = true);
  m.def("observation_address",
        [] { return reinterpret_cast<std::uintptr_t>(memplan::observation()); });
  m.def(
      "name_module",
      [](std::string name, nb::handle module) {
        return memplan::name_module(std::move(name), module.ptr());
      },
      "name"_a, "module"_a);
  m.def(
      "watch_sites",
      [](nb::handle function, nb::handle entering, nb::handle tensor, nb::handle modes,
         std::size_t inputs) {
        return memplan::watch_sites(function.ptr(), entering.ptr(),
                                    {tensor.ptr(), modes.ptr(), inputs});
      },
      "function"_a, "entering"_a.none(), "tensor"_a, "modes"_a, "inputs"_a);
  m.def(
      "watch_steps",
      [](nb::handle function, nb::handle called) {
        return memplan::watch_steps(function.ptr(), called.ptr());
      },
      "function"_a, "called"_a.none());
  m.def("tell_again", &memplan::tell_again);
  m.def("know", [](nb::handle thing) { memplan::know(thing.ptr()); }, "thing"_a);
  m.def(
      "is_known", [](nb::handle thing) { return memplan::is_known(thing.ptr()); },
      "thing"_a);
  m.def("gradients_wait", &memplan::gradients_wait);
  m.def("gradients_noted", &memplan::gradients_noted);
  m.def("sites_cost", [] {
    const memplan::SitesCost cost = memplan::sites_cost();
    return std::make_tuple(cost.requests, cost.request_ns, cost.calls, cost.call_ns);
  });
  m.def(
      "watch_optimizers",
      [](nb::handle begins, nb::handle changed, nb::handle tensor, nb::handle parameter,
         nb::handle modes, std::size_t gradients) {
        memplan::watch_optimizers({or_null(begins), or_null(changed), tensor.ptr(),
                                   parameter.ptr(), modes.ptr(), gradients});
      },
      "begins"_a.none(), "changed"_a.none(), "tensor"_a, "parameter"_a, "modes"_a,
      "gradients"_a);
  // Hooks, as PyTorch calls them: with the optimizer, and its step's arguments.
  m.def("optimizer_begins", [](nb::handle optimizer, nb::handle, nb::handle) {
    if (!memplan::optimizer_begins(optimizer.ptr())) throw nb::python_error();
  });
  m.def("optimizer_stepped", [](nb::handle optimizer, nb::handle, nb::handle) {
    if (!memplan::optimizer_stepped(optimizer.ptr())) throw nb::python_error();
  });
  // What calls `callee` with what it is called with, unobserved.
  m.def(
      "quietly",
      [](nb::callable callee) {
        return nb::cpp_function([callee = std::move(callee)](nb::args arguments) {
          const memplan::Unobserved unobserved;
          return callee(*arguments);
        });
      },
      "callee"_a);
  m.def("set_optimizer", &memplan::set_optimizer, "runs"_a, "above"_a = 0);
  m.def("label_devices", &memplan::label_devices, "cpu"_a, "cuda"_a);
  m.def(
      "label_tensors",
      [](nb::list tensors, const std::vector<int>& modules, std::size_t code,
         nb::handle fake) {
        std::vector<PyObject*> objects;
        for (nb::handle tensor : tensors) objects.push_back(tensor.ptr());
        if (!memplan::label_tensors(objects, modules, code, or_null(fake))) {
          throw nb::python_error();
        }
      },
      "tensors"_a, "modules"_a, "code"_a, "fake"_a.none());
  m.def("step_usage", [] {
    const memplan::Turn now = memplan::turn_now();
    return std::make_tuple(now.time_ns, now.page_faults, now.cpu_ns);
  });
  m.def("monotonic_ns", &memplan::now_ns);
  m.def("recorded_events", [] { return state().recorder.events(); });
  m.def("take_digest", &memplan::take_digest);
  m.def(
      "stop_recording",
      [](const std::string& end) {
        nb::gil_scoped_release release;  // a thread may be waiting for it to capture
        const auto [error, seen, written] = memplan::stop_recording(end);
        return std::make_tuple(error, seen, written);
      },
      "end"_a);
  m.def("say_on_termination", &memplan::say_on_termination, "line"_a);
  m.def("say_nothing_on_termination", &memplan::say_nothing_on_termination);
  // Blocks alive in an arena stay where they are.
  m.def("pass_through", [] { state().mode.store(memplan::Mode::kPass); });
  m.def("mark_step", &memplan::mark_step, "kind"_a);
  m.def("turns", [] {
    std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> result;
    for (const auto& turn : state().turns.kept()) {
      result.emplace_back(turn.time_ns, turn.page_faults, turn.cpu_ns);
    }
    return std::make_tuple(state().turns.count(), std::move(result));
  });

  m.def("interrupt", [] { state().interruptions.add(); });
  m.def("resume", [] { return state().interruptions.remove(); });
  m.def("interruptions_address",
        [] { return reinterpret_cast<std::uintptr_t>(state().interruptions.count()); });
  m.def("interrupted_requests", [] { return state().interrupted_requests.load(); });
  m.def("tensor_bytes", [] {
    const memplan::TensorBytes sums = state().ledger.sums();
    nb::dict result;
    result["live"] = sums.live;
    result["most_live"] = sums.most_live;
    result["outside"] = sums.outside;
    result["outside_at_most"] = sums.outside_at_most;
    return result;
  });
  nb::class_<memplan::Table>(m, "Table");
  m.def(
      "table",
      [](const Column& sizes, const Column& offsets, const Column& starts,
         std::size_t loop_begin, std::size_t loop_end, const Flags& elastic,
         const Flags& sparse, std::uint64_t arena_bytes, std::uint64_t online_bytes,
         bool unmarked, const std::optional<Flags>& brief, bool cuda) {
        return memplan::table_of({.sizes = span_of(sizes),
                                  .offsets = span_of(offsets),
                                  .sparse = span_of(sparse),
                                  .brief = brief ? span_of(*brief) : std::span<const bool>(),
                                  .starts = span_of(starts),
                                  .elastic = span_of(elastic),
                                  .loop_begin = loop_begin,
                                  .loop_end = loop_end,
                                  .arena_bytes = arena_bytes,
                                  .online_bytes = online_bytes,
                                  .unmarked = unmarked,
                                  .between = cuda},
                                 cuda ? kCudaUnit : memplan::kAlignment,
                                 cuda ? kCudaUnit : 1);
      },
      "sizes"_a, "offsets"_a, "starts"_a, "loop_begin"_a, "loop_end"_a, "elastic"_a,
      "sparse"_a, "arena_bytes"_a, "online_bytes"_a, "unmarked"_a = false,
      "brief"_a = nb::none(), "cuda"_a = false);

  nb::class_<Replay>(m, "Replay")
      .def("start", [](Replay& self) { return memplan::start_replay(&self); })
      .def(
          "allocate",
          [](Replay& self, std::uint64_t bytes) {
            return reinterpret_cast<std::uintptr_t>(self.allocate(bytes));
          },
          "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "release",
          [](Replay& self, std::uintptr_t address) {
            self.release(reinterpret_cast<void*>(address));
          },
          "address"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("outside_died", &Replay::outside_died, "bytes"_a)
      .def("next_step", &Replay::next_step)
      .def("warmup_counts", [](Replay& self) { return to_dict(self.counts().warmup); })
      .def("hot_counts", [](Replay& self) { return to_dict(self.counts().hot); })
      .def_prop_ro("base", [](Replay& self) { return self.base(); })
      .def("adopt", &Replay::adopt, "table"_a)
      .def("unsettle", &Replay::unsettle, "unsettled"_a)
      .def("stand_aside", &Replay::stand_aside, "aside"_a)
      .def("place_departures", &Replay::place_departures, "placed"_a)
      .def("allow", &Replay::allow, "slack"_a)
      .def_prop_ro("aside", &Replay::aside)
      .def_prop_ro("resident_bytes", &Replay::resident_bytes)
      .def_prop_ro("refaulted_bytes", &Replay::refaulted_bytes)
      .def_prop_ro("most_live", &Replay::most_live)
      .def("take_steps",
           [](Replay& self) {
             std::vector<std::pair<std::size_t, nb::dict>> result;
             for (const auto& end : self.take_steps()) {
               nb::dict step = to_dict(end.counts);
               step["outgrown"] = static_cast<std::uint64_t>(end.outgrown);
               result.emplace_back(end.step, std::move(step));
             }
             return result;
           })
      .def("largest", &Replay::largest)
      // There is one log, of all that tensors ask for.
      .def("open_log", [](Replay&) { state().log.open(); })
      // As in a journal's blocks of events.
      .def("take_log",
           [](Replay&) {
             const std::vector<memplan::Event> events = state().log.take();
             return nb::bytes(events.data(), events.size() * sizeof(memplan::Event));
           })
      .def("touched", &Replay::touched)
      .def_prop_ro("arena_bytes", &Replay::arena_bytes)
      .def_prop_ro("reserved_bytes", &Replay::reserved_bytes)
      .def_prop_ro("top", &Replay::top)
      .def_prop_ro("returned_bytes", &Replay::returned_bytes)
      .def_prop_ro("live_blocks", &Replay::live_blocks)
      .def_prop_ro("live_bytes", &Replay::live_bytes);
  m.def(
      "make_replay",
      [](const memplan::Table& table, std::uint64_t reserve, std::uint32_t cold) {
        // Lives for ever: blocks in its arena may outlast everything.
        return new Replay(table, reserve, cold);
      },
      "table"_a, "reserve"_a, "cold"_a = 0, nb::rv_policy::reference);
  // The most bytes that torch would reserve for a recorded program: by itself, and with
  // expandable_segments; and under a plan.
  m.def(
      "modelled",
      [](const Column& what, const Column& addresses, const Column& sizes,
         const Column& streams) {
        memplan::cuda::Streams<memplan::CachingModel> natively;
        memplan::cuda::Streams<memplan::ExpandableModel> expandable;
        const memplan::cuda::EventColumns all = {span_of(what), span_of(addresses),
                                               span_of(sizes), span_of(streams)};
        all.replay(natively);
        all.replay(expandable);
        return std::pair(natively.most(), expandable.most());
      },
      "what"_a, "addresses"_a, "sizes"_a, "streams"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "dry_run",
      [](const memplan::Table& table, std::uint64_t reserved, const Column& what,
         const Column& addresses, const Column& sizes, const Column& streams) {
        memplan::cuda::Planned planned(table, reserved);
        memplan::cuda::EventColumns{span_of(what), span_of(addresses), span_of(sizes),
                                  span_of(streams)}
            .replay(planned);
        return planned.most();
      },
      "table"_a, "reserved"_a, "what"_a, "addresses"_a, "sizes"_a, "streams"_a,
      nb::call_guard<nb::gil_scoped_release>());
  // Without memory behind it: what an allocator would come to.
  nb::class_<memplan::Ranges>(m, "Ranges")
      .def(nb::init<std::uint64_t, std::uint64_t>(), "size"_a, "granularity"_a)
      .def(
          "take_anywhere",
          [](memplan::Ranges& self, std::uint64_t bytes, bool high) {
            return self.take_anywhere(bytes, self.size(), high);
          },
          "bytes"_a, "high"_a = false)
      .def("give_back", &memplan::Ranges::give_back, "offset"_a);
  m.def("start_lanes", &memplan::start_lanes, "replays"_a);
  using Requests = std::vector<std::tuple<std::uint64_t, std::int64_t, bool>>;
  nb::class_<OwnedCall>(m, "Call")
      .def(
          "__init__",
          [](OwnedCall* self, std::uintptr_t address, std::size_t bytes,
             const std::vector<Requests>& steps, nb::object owner) {
            std::vector<memplan::Call::Step> placed(steps.size());
            for (std::size_t i = 0; i < steps.size(); ++i) {
              for (const auto& [size, offset, scratch] : steps[i]) {
                placed[i].requests.push_back({size, offset});
                placed[i].scratch.push_back(scratch);
              }
            }
            new (self) OwnedCall(address, bytes, std::move(placed), std::move(owner));
          },
          "address"_a, "bytes"_a, "steps"_a, "owner"_a)
      .def("begin", [](OwnedCall& self) { self.call.begin(); })
      .def("end", [](OwnedCall& self) {
        const memplan::CallOutcome outcome = self.call.end();
        return std::pair(outcome.missed, outcome.kept);
      });
  m.attr("CALL_MARK") = memplan::Call::kMark;
  nb::class_<memplan::RequestLog>(m, "RequestLog")
      .def(nb::init<>())
      .def("begin", &memplan::RequestLog::begin)
      .def("end", [](memplan::RequestLog& self) {
        std::vector<std::pair<std::uint64_t, std::uintptr_t>> entries;
        for (const auto& each : self.end())
          entries.emplace_back(each.bytes, each.address);
        return entries;
      });
  // Requests that no arena was there for, since `start_lanes`.
  m.def("outside_lanes", [] {
    const memplan::Lanes* lanes = state().lanes.load();
    return to_dict(lanes == nullptr ? Counts{} : lanes->outside());
  });
}
