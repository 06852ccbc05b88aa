#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "replication/claim_agent.h"
#include "replication/trainer_port.h"
#include "tools/node/job_host.h"
#include "tools/node/node.h"

namespace backstay::tools {

// One connection of a trainer: finds the agents of its job for each request.
//
// Thread: the control executor.
class TrainerSession : public replication::Trainer {
 public:
  TrainerSession(Node& node, replication::ProcessId process,
                 replication::TrainerListener* listener);
  ~TrainerSession() override;

  void Register(replication::ShardClaim claim, Completion<replication::ClaimReply> done) override;
  void Resize(uint64_t size_bytes, StatusCompletion done) override;
  void Begin(Step step, Duration timeout, Completion<replication::BeginReply> done) override;
  void StartCopy(replication::SaveHandle save, uint64_t used_bytes, std::string contents,
                 StatusCompletion done) override;
  void Seal(replication::SaveHandle save, bool sound, Completion<std::string> done) override;
  void StepIsSound(Step step, StatusCompletion done) override;
  void Abandon(replication::SaveHandle save, StatusCompletion done) override;
  // The process will not get that slot again.
  void OnSlotClosed(store::SlotId slot, store::ClientId client);
  void SlotUnmapped(uint64_t slot_id, StatusCompletion done) override;
  void Fence(Generation generation, std::string reason, int64_t seen_unix_ms) override;
  void NewAttempt(Completion<AttemptUuid> done) override;
  void Reconfigure(replication::ReconfigureRequest request,
                   Completion<replication::DecisionReply> done) override;
  void Fetch(replication::FetchRequest request, Completion<replication::FetchReply> done) override;
  void FetchChunks(replication::FetchHandle fetch, uint32_t first_chunk, uint32_t chunk_count,
                   StatusCompletion done) override;
  void ReportBadChunks(replication::FetchHandle fetch, std::vector<uint32_t> chunks,
                       Completion<bool> done) override;
  void CloseShard(replication::FetchHandle fetch, StatusCompletion done) override;
  void FinishRestore(replication::FinishRestoreRequest request,
                     Completion<replication::FinishRestoreReply> done) override;
  void SnapshotIndex(JobName job, SnapshotId snapshot,
                     Completion<replication::SnapshotIndexReply> done) override;
  void NewestCommitted(Completion<SnapshotId> done) override;
  void QuerySnapshot(SnapshotId snapshot,
                     Completion<replication::QuerySnapshotReply> done) override;
  void Finish(bool drop_state, StatusCompletion done) override;

 private:
  static constexpr Duration kFinishTimeout = std::chrono::seconds(30);

  // The claim of this connection, if it is still its own.
  Result<replication::ClaimAgent*> Claim() const;
  Result<Node::JobHost*> Host(const JobName& job) const;
  // Ok when this trainer may read another job's state; see Node::AuthorizeRead().
  void AuthorizeRead(const JobName& job, StatusCompletion done);
  void FetchAllowed(const replication::FetchRequest& request,
                    Completion<replication::FetchReply> done);
  void IndexAllowed(const JobName& job, SnapshotId snapshot,
                    Completion<replication::SnapshotIndexReply> done);
  // Runs `done` with `value` after the present call.
  template <typename T>
  void Answer(Completion<T> done, Result<T> value);
  void Answer(StatusCompletion done, Status status);
  void Emit(const replication::TrainerEvent& event);

  Node& node_;
  const replication::ProcessId process_;
  replication::TrainerListener* const listener_;
  // Of the registrations under way; all of them ask for this shard.
  size_t registering_ = 0;
  JobName asked_job_;
  ShardId asked_shard_;
  // Of the one that was granted.
  JobName job_;
  ShardId shard_;
  std::string token_digest_;
  std::optional<replication::ClaimNumber> claim_;
  std::set<replication::FetchHandle> open_;
  Lifetime lifetime_;
};

}  // namespace backstay::tools
