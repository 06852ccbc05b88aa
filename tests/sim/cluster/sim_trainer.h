#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "replication/trainer_port.h"
#include "store/manifest.h"
#include "tests/sim/cluster/auditor.h"

namespace backstay::sim {

struct TrainerPlan {
  JobName job{"job"};
  std::string token = "token";
  Rank rank;
  uint32_t world_size = 0;
  uint32_t replicas = 1;
  uint32_t versions = 1;
  uint64_t state_bytes = 0;
  Duration begin_timeout{};  // How long a save waits for a slot.
};

// A save on its way into its slot, chunk by chunk.
struct SimWriting {
  replication::SaveHandle save;
  std::shared_ptr<store::SlotMemory> memory;
  SnapshotId snapshot;
  uint64_t history = 0;
  std::string content;
  uint64_t next_chunk = 0;
  std::optional<uint64_t> rewrite;  // The chunk that is to be written again before the seal.
  Duration chunk_time{};
};
// A shard on its way back.
struct SimReading {
  replication::DecisionReply decision;
  replication::FetchReply fetch;
  std::string content;
  uint64_t next_chunk = 0;
  uint32_t reopened_count = 0;
};

// One simulated trainer process: claims a shard, reconfigures, restores and verifies, saves when
// told to. Its state is a chain over every (generation, step) it went through, so that restoring
// the wrong snapshot, or one rank another one than the others, shows in the state itself.
//
// Thread:  the executor.
// Memory:  destroying it is the death of the process; the caller tells the node when it was seen.
class SimTrainer : public replication::TrainerListener {
 public:
  enum class State {
    kClaiming,
    kIdle,           // Claimed; waits for a round.
    kReconfiguring,  // From the call to "resumed".
    kTraining,
    kFailed,  // The last round did not resume here; the launcher makes another one.
  };

  SimTrainer(Executor* executor, Random* random, Auditor* auditor, replication::TrainerPort* port,
             replication::ProcessId process, TrainerPlan plan);
  ~SimTrainer() override;

  // The group of ranks was put together anew under `uuid`.
  void Join(const AttemptUuid& uuid);
  // The communicator failed: nothing of this generation is saved any more.
  void Fence();
  void NewAttempt(Completion<AttemptUuid> done) { trainer_->NewAttempt(std::move(done)); }
  // One optimizer step, which all ranks take together.
  void TakeStep();
  // Starts a save of the present step unless one is being written.
  void Save();

  State state() const { return state_; }
  // Waits for a slot, or copies into it.
  bool is_saving() const { return beginning_ || writing_.has_value(); }
  const TrainerPlan& plan() const { return plan_; }
  replication::ProcessId process() const { return process_; }
  Generation generation() const { return generation_; }
  Step step() const { return step_; }
  const Status& last_error() const { return last_error_; }
  std::optional<SnapshotId> newest_committed() const { return newest_committed_; }

  void OnEvent(const replication::TrainerEvent& event) override;

 private:
  void Claim();
  void Fail(const Status& why);
  void OnDecision(const Result<replication::DecisionReply>& decision);
  void Fetch();
  void ReadChunks();
  // Asks for another copy of a chunk that does not match the manifest.
  void ReportBad(uint32_t chunk);
  void StopReading();
  void Finish(const Status& outcome);
  void OnFinished(const Result<replication::FinishRestoreReply>& reply);
  void OnBegun(const Result<replication::BeginReply>& begun);
  void WriteChunks();
  std::string ContentOf(uint64_t history) const;

  Executor* const executor_;
  Random* const random_;
  Auditor* const auditor_;
  const replication::ProcessId process_;
  const TrainerPlan plan_;
  std::unique_ptr<replication::Trainer> trainer_;

  State state_ = State::kClaiming;
  Status last_error_;
  uint64_t round_ = 0;  // Counts Join()s: what belongs to an earlier one is dropped.
  Generation generation_;
  Step step_;
  uint64_t history_ = 0;
  std::optional<SnapshotId> newest_committed_;
  std::optional<SimWriting> writing_;
  bool beginning_ = false;
  std::optional<SimReading> reading_;
  std::optional<store::Manifest> manifest_;
  Lifetime lifetime_;
};

}  // namespace backstay::sim
