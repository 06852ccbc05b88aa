#include "examples/options.h"

#include <CLI/CLI.hpp>

namespace backstay::example {
namespace {

void AddGroupOptions(CLI::App& app, Options& options) {
  app.add_option("--rendezvous", options.rendezvous, "directory in which the ranks meet")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--rank", options.rank, "this process's rank in round 0")->capture_default_str();
  app.add_option("--world-size", options.world_size, "number of ranks")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--round", options.round,
                 "wait for the launcher's file round-N (or a later one) and take rank and world "
                 "size from there")
      ->capture_default_str();
  app.add_option("--member", options.member,
                 "this process's name in the files round-N (default: its rank in round 0)");
  app.add_option("--address", options.address, "address on which the other ranks reach this one")
      ->capture_default_str();
  app.add_option("--group-timeout-ms", options.group_timeout_ms,
                 "a peer that is silent for so long is lost")
      ->check(CLI::Range(100u, 3'600'000u))
      ->capture_default_str();
  app.add_option("--round-timeout-ms", options.round_timeout_ms,
                 "how long to wait for the next round after a fault")
      ->check(CLI::Range(100u, 86'400'000u))
      ->capture_default_str();
  app.add_flag("--exit-on-fault", options.exit_on_fault,
               "after a fault exit with 75 instead of waiting for the next round");
}

void AddTrainingOptions(CLI::App& app, Options& options) {
  app.add_option("--steps", options.steps, "train up to this step")->capture_default_str();
  app.add_option("--state-mib", options.state_mib, "size of each rank's state")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights, the order of the data, and dropout")
      ->capture_default_str();
  app.add_option("--text", options.text, "file to learn (default: the licence texts of Debian)");
  app.add_option("--step-ms-min", options.step_ms_min,
                 "stretch the computation of each step to so long")
      ->capture_default_str();
  app.add_option("--events", options.events,
                 "file to which to append what happens, one JSON object a line");
}

void AddBackstayOptions(CLI::App& app, Options& options) {
  app.add_option("--service", options.service,
                 "socket of this node's backstayd; none: train without saving")
      ->capture_default_str();
  app.add_option("--job", options.job, "name of the job")->capture_default_str();
  app.add_option("--token", options.token, "the job's secret")->capture_default_str();
  app.add_option("--shard-id", options.shard_id,
                 "name of this rank's state (default: the rank's number)");
  app.add_option("--save-every", options.save_every, "save after every N-th step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--replicas", options.replicas, "copies in other failure domains")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("--copy-threads", options.copy_threads, "threads that copy the state for a save")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--skip-when-no-slot", options.skip_when_no_slot,
               "skip a save while older ones hold all slots, instead of waiting");
}

}  // namespace

int ParseOptions(int argc, char** argv, Options& options, bool& go_on) {
  go_on = false;
  CLI::App app(
      "Trains a small language model on several ranks, and keeps its state with Backstay.");
  AddGroupOptions(app, options);
  AddTrainingOptions(app, options);
  AddBackstayOptions(app, options);
  try {
    app.parse(argc, argv);
    if (options.rank < 0 || options.rank >= options.world_size) {
      throw CLI::ValidationError("--rank",
                                 "must be from 0 to " + std::to_string(options.world_size - 1));
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitUsage;  // Help is such an error, too.
  }
  if (options.member.empty()) options.member = std::to_string(options.rank);
  go_on = true;
  return kExitDone;
}

}  // namespace backstay::example
