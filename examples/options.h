#pragma once

#include <cstdint>
#include <string>

namespace backstay::example {

// The exit codes of the trainer.
constexpr int kExitDone = 0;
constexpr int kExitError = 1;
constexpr int kExitUsage = 2;
// The group of ranks broke and this process does not go on by itself: start all ranks again, in a
// new round.
constexpr int kExitFault = 75;

struct Options {
  int rank = 0;
  int world_size = 1;
  uint64_t round = 0;
  std::string member;
  std::string rendezvous;
  std::string address = "127.0.0.1";
  uint32_t group_timeout_ms = 10'000;
  uint32_t round_timeout_ms = 120'000;
  bool exit_on_fault = false;

  uint64_t steps = 100;
  uint64_t save_every = 5;
  uint64_t state_mib = 1;
  uint64_t seed = 1;
  std::string text;
  uint32_t step_ms_min = 0;

  std::string service = "none";
  std::string job = "example";
  std::string token = "example";
  std::string shard_id;
  uint32_t replicas = 1;
  uint32_t copy_threads = 1;
  bool skip_when_no_slot = false;

  std::string events;

  bool uses_backstay() const { return service != "none"; }
};

// Fills `options` from the command line. Where `go_on` is false the caller exits with the returned
// code; the message or help was printed.
int ParseOptions(int argc, char** argv, Options& options, bool& go_on);

}  // namespace backstay::example
