// Python's view of pickles of plain data.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/arrays.h"
#include "plain/machine.h"

namespace nb = nanobind;
using nb::literals::operator""_a;
using namespace memplan::plain;

namespace {

using memplan::In;
using memplan::numpy_from;
using memplan::Out;

// What a pickle stands for, or why it was refused.
class Plain {
 public:
  Plain(nb::bytes data, const Limits& limits) : data_(std::move(data)) {
    Machine machine(std::string_view(data_.c_str(), data_.size()), limits);
    try {
      nb::gil_scoped_release released;
      root_ = machine.run();
    } catch (Fault& fault) {
      fault_ = std::move(fault);
      return;
    }
    values_ = std::move(machine.values);
  }

  nb::object fault() const {
    if (!fault_) return nb::none();
    return nb::make_tuple(fault_->at, fault_->opcode, fault_->cut, fault_->problem);
  }

  Cell root() const { return root_; }

  bool is_list(Cell cell) const { return kind_of(cell) == Kind::kList; }

  std::size_t length(Cell cell) const { return list(cell).size(); }

  Cell item(Cell cell, std::size_t i) const { return list(cell).at(i); }

  nb::object get(Cell cell, const std::string& key) const {
    Cell value = kNone;
    const std::int64_t place = values_.text_place(key);
    const bool found = kind_of(cell) == Kind::kDict && place >= 0 &&
                       values_.find(values_.dicts.at(place_of(cell)),
                                    static_cast<std::uint32_t>(place), value);
    if (!found) return nb::none();
    return nb::int_(value);
  }

  // The most items that a dict in a list has; -1 where there is something else.
  nb::object widest(Cell cell) const {
    std::uint32_t most = 0;
    for (std::size_t i = 0; const Cell entry : list(cell)) {
      if (kind_of(entry) != Kind::kDict) return nb::make_tuple(-1, i);
      most = std::max(most, values_.dicts[place_of(entry)].count);
      ++i;
    }
    return nb::make_tuple(most, 0);
  }

  // Of each dict in a list the value of a key, as a cell; None where it has none.
  Out<std::uint64_t> column(Cell cell, const std::string& key) const {
    const std::int64_t place = values_.text_place(key);
    const auto& entries = list(cell);
    std::vector<std::uint64_t> found(entries.size(), kAbsent);
    for (std::size_t i = 0; place >= 0 && i < entries.size(); ++i) {
      if (kind_of(entries[i]) != Kind::kDict) continue;
      values_.find(values_.dicts[place_of(entries[i])],
                   static_cast<std::uint32_t>(place), found[i]);
    }
    return numpy_from(std::move(found));
  }

  // Unsigned values of cells, and which are integers from 0 to 2^64 - 1.
  nb::object integers(const In<std::uint64_t>& cells) const {
    std::vector<std::uint64_t> numbers(cells.size());
    std::vector<std::uint8_t> good(cells.size());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const Cell cell = cells.data()[i];
      if (cell == kAbsent) continue;
      if (kind_of(cell) == Kind::kInt && small_of(cell) >= 0) {
        numbers[i] = static_cast<std::uint64_t>(small_of(cell));
        good[i] = 1;
      } else if (kind_of(cell) == Kind::kLong) {
        const __int128 value = values_.longs.at(place_of(cell));
        if (value >= 0 && value < __int128{1} << 64) {
          numbers[i] = static_cast<std::uint64_t>(value);
          good[i] = 1;
        }
      }
    }
    return nb::make_tuple(numpy_from(std::move(numbers)), numpy_from(std::move(good)));
  }

  // What is shared among them stays shared, and is made but once.
  nb::list values(const In<std::uint64_t>& cells) const {
    std::unordered_map<Cell, nb::object> made;
    nb::list found;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      found.append(value(cells.data()[i], made));
    }
    return found;
  }

  static constexpr Cell kAbsent = cell_of(Kind::kConstant, 3);

 private:
  nb::object value(Cell cell, std::unordered_map<Cell, nb::object>& made) const {
    std::vector<Cell> waiting;
    const auto object_of = [&](Cell one) -> nb::object {
      const Kind kind = kind_of(one);
      if (kind != Kind::kList && kind != Kind::kDict) return scalar(one, made);
      auto& known = made[one];
      if (!known.is_valid()) {
        known = kind == Kind::kList ? nb::object(nb::list()) : nb::object(nb::dict());
        waiting.push_back(one);
      }
      return known;
    };
    nb::object result = object_of(cell);
    while (!waiting.empty()) {
      const Cell one = waiting.back();
      waiting.pop_back();
      const nb::object object = made[one];
      if (kind_of(one) == Kind::kList) {
        auto filled = nb::borrow<nb::list>(object);
        for (const Cell part : values_.lists.at(place_of(one))) {
          filled.append(object_of(part));
        }
        continue;
      }
      auto filled = nb::borrow<nb::dict>(object);
      const auto& dict = values_.dicts.at(place_of(one));
      for (std::uint64_t i = dict.begin; i < dict.begin + dict.count; ++i) {
        filled[scalar(cell_of(Kind::kText, values_.keys[i]), made)] =
            object_of(values_.items[i]);
      }
    }
    return result;
  }

  const std::vector<Cell>& list(Cell cell) const {
    if (kind_of(cell) != Kind::kList) throw std::invalid_argument("not a list");
    return values_.lists.at(place_of(cell));
  }

  nb::object scalar(Cell cell, std::unordered_map<Cell, nb::object>& made) const {
    switch (kind_of(cell)) {
      case Kind::kInt: return nb::int_(small_of(cell));
      case Kind::kLong: {
        const __int128 value = values_.longs.at(place_of(cell));
        const nb::int_ high(static_cast<std::int64_t>(value >> 64));
        const nb::int_ low(static_cast<std::uint64_t>(value));
        return (high << nb::int_(64)) | low;
      }
      case Kind::kFloat: return nb::float_(values_.floats.at(place_of(cell)));
      case Kind::kText: {
        auto& known = made[cell];
        if (!known.is_valid()) {
          const auto text = values_.texts.at(place_of(cell));
          known = nb::steal(PyUnicode_DecodeUTF8(
              text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
          if (!known.is_valid()) throw nb::python_error();
        }
        return known;
      }
      case Kind::kTuple: {
        auto& known = made[cell];
        if (!known.is_valid()) {
          nb::list parts;
          for (const Cell part : values_.tuples.at(place_of(cell))) {
            parts.append(scalar(part, made));
          }
          made[cell] = nb::tuple(parts);
        }
        return made[cell];
      }
      default:
        if (cell == kNone || cell == kAbsent) return nb::none();
        return nb::bool_(cell == kTrue);
    }
  }

  nb::bytes data_;
  Values values_;
  Cell root_ = kNone;
  std::optional<Fault> fault_;
};

}  // namespace

NB_MODULE(_plain, m) {
  m.doc() = "Pickles of plain data, read without running any code.";
  m.attr("ABSENT") = Plain::kAbsent;
  nb::class_<Limits>(m, "Limits")
      .def(nb::init<std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                    std::uint64_t, std::uint64_t, std::int64_t, std::int64_t,
                    std::int64_t, std::int64_t>(),
           "memory"_a, "steps"_a, "marks"_a, "text_bytes"_a, "long_bytes"_a,
           "protocol"_a, "container"_a, "item"_a, "memo"_a, "text"_a);
  nb::class_<Plain>(m, "Plain")
      .def(nb::init<nb::bytes, const Limits&>(), "data"_a, "limits"_a)
      .def_prop_ro("fault", &Plain::fault)
      .def_prop_ro("root", &Plain::root)
      .def("is_list", &Plain::is_list, "cell"_a)
      .def("length", &Plain::length, "cell"_a)
      .def("item", &Plain::item, "cell"_a, "i"_a)
      .def("get", &Plain::get, "cell"_a, "key"_a)
      .def("widest", &Plain::widest, "cell"_a)
      .def("column", &Plain::column, "cell"_a, "key"_a)
      .def("integers", &Plain::integers, "cells"_a)
      .def("values", &Plain::values, "cells"_a);
}
