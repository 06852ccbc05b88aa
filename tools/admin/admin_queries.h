#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/messenger.h"
#include "replication/metadata_store.h"
#include "replication/node_record.h"
#include "tools/admin/admin.pb.h"

namespace backstay::tools {

// A node that is asked about itself (status, inventory) answers at once or counts as silent: one
// dead node must not hold up an engineer who looks.
inline constexpr Duration kNodeAnswerTimeout = std::chrono::seconds(1);
inline constexpr Duration kMetadataAnswerTimeout = std::chrono::seconds(1);
// A manifest can be large.
inline constexpr Duration kOpenShardTimeout = std::chrono::seconds(5);
// A replica is read once: a terabyte at 2 GB/s.
inline constexpr Duration kVerifyReplicaTimeout = std::chrono::minutes(10);
// The leader has to write to the metadata store and to tell all holders.
inline constexpr Duration kEndJobTimeout = std::chrono::seconds(5);

inline constexpr size_t kNodesAskedAtOnceMax = 1024;
inline constexpr size_t kManifestsAskedAtOnceMax = 32;
// Of all manifests in one answer, so that it fits into a message; the rest is asked for by rank.
inline constexpr size_t kManifestsBytesMax = 70 * 1024 * 1024;
inline constexpr size_t kNodesVerifyingAtOnceMax = 64;
inline constexpr size_t kDepartedMax = 256;

// The node as its questions need it, and its ways to the others. All of it outlives the queries.
struct AdminSeams {
  Executor* executor = nullptr;
  replication::MetadataStore* metadata = nullptr;
  replication::Messenger* messenger = nullptr;
  StoreId store;
  std::function<NodeInstance()> self;
  std::function<const replication::MembershipView&()> members;
  std::function<replication::wire::Header(const JobName&)> header;
  std::function<replication::wire::NodeStatusReply()> describe;
};

// One shard of a snapshot as its holders know it. Holders that disagree about its digest make two.
struct FoundShard {
  ShardId id;
  uint32_t rank = 0;
  std::string digest;
  uint64_t size_bytes = 0;
  std::vector<NodeInstance> holders;  // The primary first.
};

struct FoundSnapshot {
  SnapshotId snapshot;
  bool committed = false;
  uint32_t world_size = 0;
  uint32_t wanted_replicas = 0;
  std::vector<FoundShard> shards;  // In rank order.
  std::vector<wire::SilentNode> silent;
};

class VerifyRun;

// Answers the questions of admin.proto by asking the metadata store, the leaders and all nodes.
//
// Thread:  the owning executor; completions run there, never inside a call.
// Memory:  completions that are outstanding when it is destroyed are dropped.
// Failure: kNotFound: it is certain that there is none; the message names the nearest that exist.
//          kUnavailable: it could not be found out. A node that does not answer is reported as
//          such, and never taken for one that has nothing.
class AdminQueries {
 public:
  explicit AdminQueries(AdminSeams seams);
  AdminQueries(const AdminQueries&) = delete;
  AdminQueries& operator=(const AdminQueries&) = delete;

  void Cluster(Completion<wire::ClusterReply> done);
  void Jobs(Completion<wire::JobsReply> done);
  void Job(const wire::JobRequest& request, Completion<wire::JobReply> done);
  void Snapshot(const wire::SnapshotRequest& request, Completion<wire::SnapshotReply> done);
  void OpenShard(const wire::OpenShardRequest& request, Completion<wire::OpenShardReply> done);
  void EndJob(const wire::EndJobRequest& request, StatusCompletion done);

  using OnProgress = std::function<void(wire::VerifyProgress)>;
  // `on_progress` runs for each replica, then `done` once. Dropping the returned run stops it after
  // the replicas under way.
  std::shared_ptr<VerifyRun> Verify(const wire::VerifyRequest& request, OnProgress on_progress,
                                    StatusCompletion done);

 private:
  friend class VerifyRun;

  // What the metadata store says of one job.
  struct JobEntry {
    replication::wire::JobRecord record;  // Without its token digest.
    std::string token_digest;             // Whoever may speak to this service may end any job.
    replication::Revision record_revision = 0;  // 0: it has none.
    Status record_status;                       // Why the record could not be read.
    NodeInstance leader;                        // Empty: nobody leads it.
    Term term;
  };
  using JobEntries = std::map<JobName, JobEntry>;

  Deadline After(Duration timeout) const { return seams_.executor->Now() + timeout; }
  void Send(const NodeInstance& to, const JobName& job, replication::wire::Request request,
            Duration timeout, Completion<replication::wire::Reply> done);
  // Every member, and this node even when it is not one.
  std::vector<wire::NodeReport> KnownNodes() const;
  void AskNodes(Completion<std::vector<wire::NodeReport>> done);
  void ReadJobs(Completion<JobEntries> done);
  // kNotFound, naming the nearest, when there is no such job.
  void ReadJob(const JobName& job, Completion<JobEntry> done);
  void AskLeader(const JobName& job, const NodeInstance& leader, wire::JobReply reply,
                 Completion<wire::JobReply> done);
  void AskAnyLeader(const JobName& job, wire::JobReply reply, Completion<wire::JobReply> done);
  void EndUnledJob(const JobName& job, replication::Revision revision, StatusCompletion done);

  // Generation 0: where the step is committed, else the newest generation that has it.
  void FindSnapshot(const JobName& job, uint64_t step, uint64_t generation,
                    Completion<FoundSnapshot> done);
  void ReadManifest(const JobName& job, const FoundSnapshot& found, size_t shard, size_t holder,
                    std::shared_ptr<wire::SnapshotReply> reply, std::function<void()> done);

  static void AddRecord(const replication::KeyValue& pair, JobEntries& jobs);
  static void AddLeader(const replication::KeyValue& pair, const JobName& job, JobEntries& jobs);

  const AdminSeams seams_;
  Lifetime lifetime_;
};

// Which snapshot a step means, from a job's record and what nodes say they hold. Pure.
Result<FoundSnapshot> ChooseSnapshot(const JobName& job, const replication::wire::JobRecord& record,
                                     const std::vector<wire::NodeReport>& nodes, uint64_t step,
                                     uint64_t generation);

// " Did you mean 'x'?" or, when none is near, a few of what exists: " There are x, y and z."
std::string NearestHint(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace backstay::tools
