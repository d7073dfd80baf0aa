// Python's view of the allocator shim. Plain data in, plain data out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "alloc/last_words.h"
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

// Plain arrays to a table; what would lead the matcher astray is refused.
memplan::Table table_of(const Column& sizes, const Column& offsets, const Column& starts,
                        std::size_t loop_begin, std::size_t loop_end,
                        const std::vector<bool>& elastic,
                        const std::vector<bool>& sparse, std::uint64_t arena_bytes,
                        std::uint64_t online_bytes) {
  memplan::Table table;
  table.requests.resize(sizes.shape(0));
  if (offsets.shape(0) != table.requests.size() || sparse.size() != offsets.shape(0)) {
    throw nb::value_error("sizes, offsets and sparse differ in length");
  }
  for (std::size_t i = 0; i < table.requests.size(); ++i) {
    if (sizes.data()[i] <= 0) throw nb::value_error("a size is not positive");
    table.requests[i] = {static_cast<std::uint64_t>(sizes.data()[i]), offsets.data()[i],
                         sparse[i]};
  }
  const std::size_t count = starts.shape(0);
  if (elastic.size() != count) throw nb::value_error("starts and elastic differ in length");
  if (loop_begin > loop_end || loop_end > count || (count > 0 && loop_begin == loop_end)) {
    throw nb::value_error("the steps that repeat must be some, and reach beyond none");
  }
  if (count == 0 ? !table.requests.empty() : starts.data()[0] != 0) {
    throw nb::value_error("starts must begin with 0");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = static_cast<std::size_t>(starts.data()[i]);
    const std::size_t next = i + 1 < count ? static_cast<std::size_t>(starts.data()[i + 1])
                                           : table.requests.size();
    if (first > next) throw nb::value_error("starts must ascend");
    table.steps.push_back({first, next, elastic[i]});
  }
  table.loop_begin = loop_begin;
  table.loop_end = loop_end;
  table.arena_bytes = arena_bytes;
  table.online_bytes = online_bytes;
  return table;
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
  m.def("say_on_termination", &memplan::say_on_termination, "line"_a);
  m.def("say_nothing_on_termination", &memplan::say_nothing_on_termination);
  m.def("pass_through", &memplan::pass_through);
  m.def("mark_step", &memplan::mark_step, "kind"_a);
  m.def("step_marks", [] {
    std::vector<std::tuple<std::int64_t, std::int64_t, int>> result;
    for (const auto& mark : memplan::step_marks()) {
      result.emplace_back(mark.time_ns, mark.page_faults, mark.kind);
    }
    return result;
  });

  m.def("interrupt", &memplan::interrupt);
  m.def("resume", &memplan::resume);
  m.def("interrupted_requests", &memplan::interrupted_requests);
  m.def("tensor_bytes", [] {
    const memplan::TensorBytes sums = memplan::tensor_bytes();
    nb::dict result;
    result["live"] = sums.live;
    result["most_live"] = sums.most_live;
    result["outside"] = sums.outside;
    result["outside_at_most"] = sums.outside_at_most;
    return result;
  });
  m.def("open_log", &memplan::open_log);
  // As in a journal's blocks of events.
  m.def("take_log", [] {
    const std::vector<memplan::Event> events = memplan::take_log();
    return nb::bytes(events.data(), events.size() * sizeof(memplan::Event));
  });

  nb::class_<memplan::Table>(m, "Table");
  m.def("table", &table_of, "sizes"_a, "offsets"_a, "starts"_a, "loop_begin"_a,
        "loop_end"_a, "elastic"_a, "sparse"_a, "arena_bytes"_a, "online_bytes"_a);

  nb::class_<Replay>(m, "Replay")
      .def("start", [](Replay& self) { return memplan::start_replay(&self); })
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
      .def("adopt", &Replay::adopt, "table"_a)
      .def("unsettle", &Replay::unsettle, "unsettled"_a)
      .def("take_steps",
           [](Replay& self) {
             std::vector<std::pair<std::size_t, nb::dict>> result;
             for (const auto& [step, counts] : self.take_steps()) {
               result.emplace_back(step, to_dict(counts));
             }
             return result;
           })
      .def("largest", &Replay::largest)
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
}
