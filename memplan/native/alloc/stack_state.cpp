#include "alloc/stack_state.h"

namespace memplan {
namespace {

thread_local Doing own;

}  // namespace

SiteRules shared;

SiteTable& table() {
  static SiteTable* const the_table = new SiteTable;
  return *the_table;
}

Doing& now_doing() {
  Doing& doing = own;
  const std::uint64_t generation = shared.generation.load(std::memory_order_acquire);
  if (doing.generation != generation) {
    doing = Doing{};
    doing.generation = generation;
  }
  return doing;
}

}  // namespace memplan
