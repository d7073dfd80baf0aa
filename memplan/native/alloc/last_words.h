// A line to standard error before SIGTERM ends the process.
#pragma once

#include <string>

namespace memplan {

// If SIGTERM would end the process, it writes `line` first, from now on. A program that
// has a handler of its own, now or later, keeps it; forked children say nothing.
// Python's `signal` module does not see it, and neither do threads that are busy.
void say_on_termination(const std::string& line);
// From now on nothing is said.
void say_nothing_on_termination();

}  // namespace memplan
