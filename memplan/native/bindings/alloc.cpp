// Python's view of the allocator shim. Plain data in, plain data out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "alloc/replay.h"
#include "alloc/shim.h"
#include "alloc/stacks.h"

namespace nb = nanobind;
using namespace nb::literals;
using memplan::Counts;
using memplan::Replay;

namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::dict to_dict(const Counts& counts) {
  nb::dict result;
  result["requests"] = counts.requests;
  result["planned"] = counts.planned;
  result["unplanned"] = counts.unplanned;
  result["conflicts"] = counts.conflicts;
  result["online"] = counts.online;
  result["fallback"] = counts.fallback;
  result["online_bytes"] = counts.online_bytes;
  result["fallback_bytes"] = counts.fallback_bytes;
  return result;
}

Replay* make_replay(const Column& sizes, const Column& offsets, const Column& starts,
                    std::size_t loop_start, std::uint64_t arena_bytes) {
  std::vector<memplan::Request> requests(sizes.shape(0));
  if (offsets.shape(0) != requests.size()) {
    throw nb::value_error("sizes and offsets differ in length");
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (sizes.data()[i] <= 0) throw nb::value_error("a size is not positive");
    requests[i] = {static_cast<std::uint64_t>(sizes.data()[i]), offsets.data()[i]};
  }
  std::vector<std::size_t> first(starts.data(), starts.data() + starts.shape(0));
  if (first.empty() || first[0] != 0 || loop_start >= first.size()) {
    throw nb::value_error("starts must begin with 0 and reach beyond loop_start");
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::size_t next = i + 1 < first.size() ? first[i + 1] : requests.size();
    if (first[i] > next) throw nb::value_error("starts must ascend");
  }
  // Lives for ever: blocks in its arena may outlast everything.
  return new Replay(std::move(requests), std::move(first), loop_start, arena_bytes);
}

}  // namespace

NB_MODULE(_alloc, m) {
  m.def("check", &memplan::check, "path"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("install", &memplan::install, "path"_a);
  m.def(
      "start_recording",
      [](int descriptor, const std::string& info, bool stacks, std::string runner) {
        memplan::reset_stacks(std::move(runner));
        memplan::start_recording(new memplan::Journal(descriptor, info),
                                 stacks ? &memplan::capture_stack : nullptr);
      },
      "descriptor"_a, "info"_a, "stacks"_a, "runner"_a);
  m.def(
      "stop_recording",
      [](const std::string& end) {
        nb::gil_scoped_release release;  // a thread may be waiting for it to capture
        const auto [error, seen, written] = memplan::stop_recording(end);
        return std::make_tuple(error, seen, written);
      },
      "end"_a);
  m.def("pass_through", &memplan::pass_through);
  m.def("mark_step", &memplan::mark_step, "kind"_a);
  m.def("step_marks", [] {
    std::vector<std::tuple<std::int64_t, std::int64_t, int>> result;
    for (const auto& mark : memplan::step_marks()) {
      result.emplace_back(mark.time_ns, mark.page_faults, mark.kind);
    }
    return result;
  });

  nb::class_<Replay>(m, "Replay")
      .def("start", [](Replay& self) { memplan::start_replay(&self); })
      .def("allocate",
           [](Replay& self, std::uint64_t bytes) {
             return reinterpret_cast<std::uintptr_t>(self.allocate(bytes));
           },
           "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("release",
           [](Replay& self, std::uintptr_t address) {
             self.release(reinterpret_cast<void*>(address));
           },
           "address"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("next_step", &Replay::next_step)
      .def("warmup_counts", [](Replay& self) { return to_dict(self.warmup_counts()); })
      .def("hot_counts", [](Replay& self) { return to_dict(self.hot_counts()); })
      .def_prop_ro("base", [](Replay& self) { return self.base(); })
      .def_prop_ro("arena_bytes", &Replay::arena_bytes)
      .def_prop_ro("live_blocks", &Replay::live_blocks)
      .def_prop_ro("live_bytes", &Replay::live_bytes);
  m.def("make_replay", &make_replay, "sizes"_a, "offsets"_a, "starts"_a, "loop_start"_a,
        "arena_bytes"_a, nb::rv_policy::reference);
}
