#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

// A libbackstay for trainers that are threads of one process: the C ABI over a plain map, with the
// rules that a trainer must respect and with faults on demand. It copies a tensor as late as it
// may: when its wait is called. So a trainer that changes its state before the wait saves something
// else than it had, and shows it.
namespace backstay::example::fake {

// Thrown out of a call to end that trainer's thread there, as SIGKILL ends a process.
struct RankKilled {};

struct Faults {
  // The rank that is killed in the middle of saving a step, once.
  int64_t kill_rank = -1;
  uint64_t kill_step = 0;
  // {step, shard id}: every read of it says corrupt.
  std::set<std::pair<uint64_t, std::string>> corrupt = {};
  // Saves of this step fail at the begin, on all ranks.
  uint64_t no_slot_step = 0;
};

// Forgets all jobs; call it while no client exists.
void Reset(Faults faults);

struct Counters {
  int fences = 0;
  int commits = 0;
  uint64_t generation = 0;
  uint64_t last_base_step = 0;
};
Counters Count();

}  // namespace backstay::example::fake
