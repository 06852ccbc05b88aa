#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backstay.hpp"
#include "backstay_gloo.hpp"
#include "examples/communicator.h"
#include "examples/event_log.h"
#include "examples/options.h"
#include "examples/rounds.h"
#include "examples/trainer.h"

namespace backstay::example {

// The tensors of a rank's state as Backstay is told about them, for planning, saving and restoring
// alike. They point into `state`.
std::vector<Tensor> DescribeTensors(const TrainerState& state);

// All that the trainer has to do with Backstay:
//
//   Checkpoints checkpoints(options, round, state, ...);  // Once: connect and claim this shard.
//   checkpoints.Resume(...);              // In each new group of ranks, before training.
//   checkpoints.Save(state);              // After some steps: starts a copy, and returns.
//   checkpoints.WaitWeightsCopied();      // Before the next step changes what is being copied.
//   checkpoints.WaitTableCopied();
//
// A save that fails is reported and training goes on: the snapshot before it is still there.
//
// Thread:  one at a time.
// Memory:  borrows the state from Save() until the waits have returned, or the saves were dropped.
// Failure: the constructor and Resume() throw std::runtime_error with the service's words.
class Checkpoints {
 public:
  Checkpoints(const Options& options, const Round& round, const TrainerState& state,
              const std::string& text_digest, EventLog& events);

  // Agrees with all ranks on a snapshot and reads this rank's part of it into `state`, or resets it
  // where the job has none. Returns when all ranks may train on.
  void Resume(Communicator& communicator, const Rounds& rounds, const Round& round,
              TrainerState& state);
  // Runs `train`; when it throws, nothing of this group of ranks is sealed any more.
  template <typename Function>
  void FenceOnError(Function train) {
    session_.FenceOnError(train);
  }
  // Lets go of the state's memory: for before it is restored.
  void DropSaves();

  void Save(const TrainerState& state);
  void WaitWeightsCopied();
  void WaitTableCopied();

  // Logs what the service has reported, for up to `timeout`, also when nothing comes.
  void ReportEvents(std::chrono::milliseconds timeout);
  // For the end of training: finishes the save in progress, and waits until it has committed, with
  // a deadline.
  void WaitLastCommit();
  // The job is done, on all ranks.
  void Finish();

 private:
  Status ReadState(const Decision& decision, Shard& shard, TrainerState& state);
  Status FillSave(backstay::Save& save, const TrainerState& state);
  void WaitCopied(uint32_t group);
  void ReportEvent(const Event& event);
  void SaveFailed(uint64_t step, const Status& status);

  const Options& options_;
  EventLog& events_;
  const std::string configuration_;  // What must be equal for a snapshot to fit this run.
  int rank_;
  Client client_;
  GlooSession session_;
  std::optional<backstay::Save> save_;  // Still being copied.
  std::optional<backstay::Save> last_;  // Copied; perhaps not yet committed.
  uint64_t save_step_ = 0;
  double stall_ms_ = 0;  // That the save in progress has cost training so far.
};

}  // namespace backstay::example
