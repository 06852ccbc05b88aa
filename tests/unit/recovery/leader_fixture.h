#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "recovery/job_leadership.h"
#include "replication/commit_tracker.h"
#include "replication/job_record.pb.h"
#include "replication/job_store.h"
#include "replication/leader_seams.h"
#include "replication/membership.h"
#include "replication/messenger.h"
#include "replication/metadata_keys.h"
#include "replication/peer_router.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_metadata_store.h"

namespace backstay::testing {

namespace wire = replication::wire;

// The leader's view of another node: what it holds, who trains there, what it was told.
struct FakeNode {
  std::unique_ptr<MemoryMetadataClient> metadata;
  std::unique_ptr<replication::Membership> membership;
  NodeInstance self;
  bool answers = true;               // False: messages to it are lost.
  bool has_memory = true;            // False: refuses to reserve.
  uint64_t room_bytes = UINT64_MAX;  // The largest reservation that it grants.
  bool full = false;                 // Refuses every repair, its memory reserved or not.
  bool slow = false;                 // Repairs to it never end.
  std::vector<wire::HeldShard> held;
  std::vector<wire::LiveTrainer> trainers;
  std::set<std::string> ordered;        // Targets of the newest order to replicate rank 0's shard.
  std::optional<wire::JobState> state;  // The newest it was told.
  uint64_t state_generation = 0;        // Of that message's header.
  uint64_t seen_generation = 0;         // Tells it in the headers of its answers.
  uint64_t seen_term = 0;
  std::map<std::string, uint64_t> reserved;  // Bytes by shard id.
  std::set<std::string> closing_uuids;       // Inventories that it promised for.
};

// A job's real leadership over the real membership and metadata store, on one executor with virtual
// time; the other side of each message is a FakeNode, which answers as a good node does. Job "job",
// world size 2, ranks on nodes "a" and "b"; more nodes as asked for.
class LeaderFixture {
 public:
  explicit LeaderFixture(const std::vector<std::string>& nodes = {"a", "b", "c"});
  ~LeaderFixture();

  // Takes the leader key as node "a" and starts a leadership; ends an earlier one of ours.
  void Elect();
  // The metadata store, not the leadership, takes the term away: somebody else is elected.
  void DeposeSilently();
  void Kill(const std::string& node);    // Its lease ends by time.
  void Revive(const std::string& node);  // As a new start, with empty memory.

  FakeNode& node(const std::string& name) { return nodes_.at(NodeId(name)); }
  ManualExecutor& executor() { return executor_; }
  recovery::JobLeadership& leadership() { return *leadership_; }
  const std::optional<Status>& deposed() const { return deposed_; }
  replication::LeaderConfig& config() { return config_; }
  MemoryMetadataClient& metadata() { return *node("a").metadata; }

  // Sends a request to the leader; the answer stands in the returned cell once it came.
  using Answer = std::shared_ptr<std::optional<Result<wire::Reply>>>;
  Answer Ask(const std::string& from, wire::Request request);
  // Until the answer came; fails after `limit` of virtual time.
  Result<wire::Reply> Wait(const Answer& answer, Duration limit = std::chrono::seconds(30));
  bool RunUntil(const std::function<bool()>& predicate, Duration limit = std::chrono::seconds(30));

  wire::JobRecord ReadRecord();
  void WriteRecord(const wire::JobRecord& record);  // Of a job that has none.
  wire::LeaderStatusReply ReadStatus();
  // Whether the timeline has this word.
  bool Happened(std::string_view what);

  // ---- The job ----
  uint32_t ranks = 2;
  uint32_t replicas = 1;
  uint32_t versions = 2;

  // The trainer of `rank` on `node` registers; its process number is 100 + rank unless given.
  // `trainer` 0: one of its own for each rank.
  wire::Request MakeAdmission(uint32_t rank, uint64_t trainer) const;
  Answer Admit(uint32_t rank, const std::string& node, uint64_t trainer = 0, bool repeated = false);
  Answer Resize(uint32_t rank, const std::string& node, uint64_t size_bytes);
  void AdmitAll();
  // The trainer's next Reconfigure; its node lists it with that from here on.
  wire::Request MakeCall(const std::string& uuid, uint32_t rank, const std::string& node,
                         uint64_t old_generation, uint32_t timeout_ms = 20'000,
                         uint64_t trainer = 0);
  Answer Call(const std::string& uuid, uint32_t rank, const std::string& node,
              uint64_t old_generation, uint32_t timeout_ms = 20'000, uint64_t trainer = 0);
  // Both ranks call, are answered, verify and resume. The decision of rank 0.
  wire::Decision ReconfigureAll(const std::string& uuid, uint64_t old_generation);
  void Verify(const wire::Decision& decision, uint32_t rank, const std::string& node);
  // Nodes "a" and "b" report both ranks' shards, held by both.
  void Protect(uint64_t generation, uint64_t step);
  void Report(const std::string& from, const wire::ShardReport& report);
  wire::ShardReport MakeReport(uint64_t generation, uint64_t step, uint32_t rank);
  void AddHolder(wire::ShardReport& report, const std::string& node);
  // As the node would list it; `node` then holds it.
  wire::HeldShard& Hold(const std::string& node, uint64_t generation, uint64_t step, uint32_t rank);
  void HoldAll(uint64_t generation, uint64_t step);
  bool CommitIsRecorded(uint64_t step);

 private:
  class FakeMessenger : public replication::Messenger {
   public:
    explicit FakeMessenger(LeaderFixture* fixture) : fixture_(fixture) {}
    void Send(const NodeId& to, wire::Request request, Deadline deadline,
              Completion<wire::Reply> done) override;

   private:
    LeaderFixture* const fixture_;
  };

  void Join(const std::string& name);
  Result<wire::Reply> Serve(FakeNode& node, const wire::Request& request);
  wire::ReplicateReply Replicate(FakeNode& node, const wire::Replicate& order);
  wire::Header HeaderFrom(const std::string& node) const;

  ManualExecutor executor_;
  SeededRandom random_{7};
  MemoryMetadata service_{&executor_, StoreId("store")};
  std::map<NodeId, FakeNode> nodes_;
  FakeMessenger messenger_{this};
  std::unique_ptr<replication::JobStore> jobs_;
  std::unique_ptr<replication::PeerRouter> router_;
  replication::LeaderConfig config_;
  std::unique_ptr<recovery::JobLeadership> leadership_;
  std::optional<Status> deposed_;
  uint64_t last_call_ = 0;  // Of all trainers.
};

}  // namespace backstay::testing
