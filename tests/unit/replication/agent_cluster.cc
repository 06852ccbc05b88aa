#include "tests/unit/replication/agent_cluster.h"

#include <algorithm>
#include <utility>

namespace backstay::testing {

namespace wire = replication::wire;

namespace {

const StoreId kStore("store");
const NodeInstance kLeader{NodeId("leader"), Incarnation(1)};

}  // namespace

// Messages arrive a little later, in the order in which they were sent.
class AgentCluster::Link : public replication::Messenger {
 public:
  explicit Link(AgentCluster* cluster) : cluster_(cluster) {}

  void Send(const NodeId& to, wire::Request request, Deadline,
            Completion<wire::Reply> done) override {
    const auto later = [this](std::function<void()> task) {
      cluster_->executor_.RunAfter(std::chrono::microseconds(100), std::move(task));
    };
    const NodeId from(request.header().from().node_id());
    if ((cluster_->lose && cluster_->lose(to, request)) || cluster_->dead_.contains(from)) {
      return later([done] { done(Unavailable("the message was lost")); });
    }
    later([this, to, request = std::move(request), done, later] {
      const auto router = cluster_->routers_.find(to);
      if (router == cluster_->routers_.end() || cluster_->dead_.contains(to)) {
        return done(Unavailable(to.value + " is gone"));
      }
      router->second->OnRequest(request, [done, later](Result<wire::Reply> reply) {
        later([done, reply = std::move(reply)] { done(reply); });
      });
    });
  }

 private:
  AgentCluster* const cluster_;
};

AgentCluster::AgentCluster(int node_count)
    : network_(std::make_unique<sim::SimNetworkTransport>(&executor_, &random_)),
      link_(std::make_unique<Link>(this)),
      leader_router_(kStore) {
  leader_router_.SetSelf(kLeader);
  routers_[kLeader.node] = &leader_router_;
  const auto handle = [this](wire::Request::BodyCase kind,
                             replication::PeerRouter::Handler handler) {
    leader_router_.Handle(kind, std::move(handler));
  };
  handle(wire::Request::kAdmitShard,
         [this](const wire::Request&, replication::ReplyFunction reply) {
           wire::Reply answer;
           for (const NodeId& node : replicas) {
             answer.mutable_admit_shard()->add_replica_nodes(node.value);
           }
           reply(std::move(answer));
         });
  handle(wire::Request::kReportShards,
         [this](const wire::Request& request, replication::ReplyFunction reply) {
           reports.assign(request.report_shards().shards().begin(),
                          request.report_shards().shards().end());
           reply(wire::Reply());
         });
  handle(wire::Request::kReportFence,
         [this](const wire::Request& request, replication::ReplyFunction reply) {
           fences.push_back(request.report_fence());
           reply(wire::Reply());
         });
  for (int i = 0; i < node_count; ++i) {
    Node& n = *(nodes_[i] = std::make_unique<Node>());
    n.self = {id(i), Incarnation(1)};
    n.router = std::make_unique<replication::PeerRouter>(kStore);
    n.router->SetSelf(n.self);
    routers_[n.self.node] = n.router.get();
    n.peers = std::make_unique<replication::PeerLink>(
        *link_, *n.router, [this](const NodeId& node) -> std::optional<NodeInstance> {
          if (dead_.contains(node) || !routers_.contains(node)) return std::nullopt;
          return NodeInstance{node, Incarnation(1)};
        });
    n.memory = std::make_unique<HeapSlotMemoryFactory>();
    n.pool =
        std::make_unique<store::SlotPool>(store::SlotPool::Options{.node = n.self.node}, executor_,
                                          store::OffloadOnto(executor_), *n.memory, budget_);
    n.table = std::make_unique<store::ShardTable>(*n.pool);
    n.verifier =
        std::make_unique<store::ShardVerifier>(*n.table, executor_, store::OffloadOnto(executor_));
    n.puller = network_->MakePuller(n.self);
    n.exporter = network_->MakeExporter(n.self);
    n.exports = std::make_unique<replication::ShardExporter>(executor_, *n.table, *n.exporter);
    const replication::AgentParts parts{executor_, random_,    *n.peers,    *n.pool,
                                        *n.table,  *n.exports, n.last_claim};
    n.agent = std::make_unique<replication::JobAgent>(
        job, kTestChunkBytes, parts, *n.router, *n.verifier, *n.puller, [] {
          return std::optional<replication::LeaderInfo>({kLeader, Term(1)});
        });
    n.fetches = std::make_unique<replication::FetchAgent>(
        executor_, *n.peers, *n.pool, *n.table, *n.puller,
        [&n](const ShardName& name, Completion<store::VerifyReport> done) {
          n.agent->holder().VerifyOwn(name, std::move(done));
        },
        [&n](const ShardName& name) { n.agent->holder().Discard(name); });
    for (int kind = 1; kind < 40; ++kind) {
      const auto body = static_cast<wire::Request::BodyCase>(kind);
      if (!replication::JobAgent::Handles(body)) continue;
      n.router->Handle(body, [&n](const wire::Request& request, replication::ReplyFunction reply) {
        n.agent->OnRequest(request, std::move(reply));
      });
    }
    n.pool->OnSlotFree([&n](store::ReservationId) { n.agent->OnSlotFree(); });
  }
  state_.body.set_revision(1);
  state_.body.set_resumed_attempt(1);
  state_.body.set_attempt_uuid("uuid");
  *state_.body.mutable_leader() = replication::ToWire(kLeader);
}

AgentCluster::~AgentCluster() {
  for (auto& [index, n] : nodes_) {
    n->fetches.reset();
    n->agent.reset();
    n->exporter.reset();
    n->puller.reset();
  }
}

void AgentCluster::Kill(int index) {
  dead_.insert(id(index));
  network_->SetDown(id(index), true);
  for (auto& [other, n] : nodes_) {
    if (other != index) n->agent->OnMembershipChanged();
  }
}

Result<wire::Reply> AgentCluster::Call(int index, wire::Request request) {
  const bool fenced = request.header().has_from();
  if (!fenced) {
    wire::Header& header = *request.mutable_header();
    header.set_store_id(kStore.value);
    *header.mutable_from() = replication::ToWire(kLeader);
    header.set_job(job.value);
    header.set_generation(state_.generation.value);
    header.set_term(1);
  }
  std::optional<Result<wire::Reply>> answer;
  link_->Send(id(index), std::move(request), kNoDeadline,
              [&](Result<wire::Reply> reply) { answer = std::move(reply); });
  const bool answered = RunUntil([&] { return answer.has_value(); });
  if (!answered) return DeadlineExceeded("no answer");
  return *answer;
}

void AgentCluster::Keep(SnapshotId snapshot) {
  wire::CommittedSnapshot& kept = *state_.body.add_kept();
  *kept.mutable_snapshot() = replication::ToWire(snapshot);
  kept.set_root(HashBytes(ToString(snapshot)).ToByteString());
  state_.body.set_last_committed_step(snapshot.step.value);
  state_.body.set_first_commit_done(snapshot.generation == state_.generation);
}

void AgentCluster::Announce() {
  state_.body.set_revision(state_.body.revision() + 1);
  for (auto& [index, n] : nodes_) {
    if (dead_.contains(n->self.node)) continue;
    wire::Request request;
    *request.mutable_job_state() = state_.body;
    const Result<wire::Reply> reply = Call(index, std::move(request));
    BACKSTAY_CHECK(reply.ok(), reply.status().ToString());
  }
}

void AgentCluster::ReserveOn(int index, const ShardId& shard, uint64_t size_bytes,
                             uint32_t versions) {
  wire::Request request;
  request.mutable_reserve()->set_shard_id(shard.value);
  request.mutable_reserve()->set_size_bytes(size_bytes);
  request.mutable_reserve()->set_versions(versions);
  const Result<wire::Reply> reply = Call(index, std::move(request));
  BACKSTAY_CHECK(reply.ok(), reply.status().ToString());
}

// ---- A trainer ----------------------------------------------------------------------------------

bool AgentCluster::Trainer::Saw(replication::TrainerEvent::Kind kind) const {
  return std::any_of(events.begin(), events.end(),
                     [&](const replication::TrainerEvent& event) { return event.kind == kind; });
}

replication::ShardClaim AgentCluster::Claim(const std::string& shard, uint32_t replica_count,
                                            uint64_t size_bytes, uint32_t versions) const {
  replication::ShardClaim claim;
  claim.job = job;
  claim.token = "secret";
  claim.shard = ShardId(shard);
  claim.world_size = 1;
  claim.replicas = replica_count;
  claim.versions = versions;
  claim.size_bytes = size_bytes;
  claim.generation = Generation(1);
  return claim;
}

Status AgentCluster::Register(Trainer* trainer, uint64_t process,
                              const replication::ShardClaim& claim) {
  trainer->shard = claim.shard;
  std::optional<Status> answer;
  node(trainer->node)
      .agent->Register(
          replication::ProcessId(process), claim,
          [trainer](const replication::TrainerEvent& event) { trainer->events.push_back(event); },
          [&](const Result<replication::ClaimAgent::Registered>& registered) {
            if (registered.ok()) trainer->claim = registered->number;
            answer = registered.status();
          });
  if (!RunUntil([&] { return answer.has_value(); }, std::chrono::seconds(60))) {
    return DeadlineExceeded("no answer");
  }
  return *answer;
}

replication::SaveAgent& AgentCluster::saves(const Trainer& trainer) {
  return (*node(trainer.node).agent->FindClaim(trainer.shard, trainer.claim))->saves();
}

Result<replication::BeginReply> AgentCluster::Begin(const Trainer& trainer, Step step,
                                                    Duration timeout) {
  const Result<replication::ClaimAgent*> claim =
      node(trainer.node).agent->FindClaim(trainer.shard, trainer.claim);
  if (!claim.ok()) return claim.status();
  std::optional<Result<replication::BeginReply>> answer;
  (*claim)->saves().Begin((*claim)->generation(), step, (*claim)->client(), (*claim)->reservation(),
                          timeout, [&](Result<replication::BeginReply> reply) { answer = reply; });
  if (!RunUntil([&] { return answer.has_value(); })) return DeadlineExceeded("no answer");
  return *answer;
}

void AgentCluster::Fill(const replication::BeginReply& slot, uint64_t first, uint64_t count,
                        uint64_t seed) {
  SlotControlWriter control(slot.memory->control(), slot.memory->geometry());
  for (uint64_t chunk = first; chunk < first + count; ++chunk) {
    const std::span<std::byte> bytes =
        slot.memory->data().subspan(chunk * kTestChunkBytes, kTestChunkBytes);
    std::fill(bytes.begin(), bytes.end(), ByteOf(chunk, seed));
    control.Publish(chunk, HashBytes(std::span<const std::byte>(bytes)));
  }
}

Status AgentCluster::StartCopy(const Trainer& trainer, const replication::BeginReply& slot,
                               uint64_t size) {
  return saves(trainer).StartCopy(slot.save, size, store::EncodeContents({}));
}

Result<std::string> AgentCluster::Seal(const Trainer& trainer, const replication::BeginReply& slot,
                                       bool sound) {
  std::optional<Result<std::string>> answer;
  saves(trainer).Seal(slot.save, sound, [&](Result<std::string> digest) { answer = digest; });
  if (!RunUntil([&] { return answer.has_value(); })) return DeadlineExceeded("no answer");
  return *answer;
}

Result<std::string> AgentCluster::Save(const Trainer& trainer, Step step, uint64_t chunk_count,
                                       uint64_t seed) {
  BACKSTAY_ASSIGN_OR_RETURN(const replication::BeginReply slot, Begin(trainer, step));
  BACKSTAY_RETURN_IF_ERROR(StartCopy(trainer, slot, chunk_count * kTestChunkBytes));
  Fill(slot, 0, chunk_count, seed);
  return Seal(trainer, slot);
}

bool AgentCluster::Holds(int index, const ShardName& name) const {
  const store::Shard* shard = nodes_.at(index)->table->Find(name);
  return shard != nullptr && shard->sealed();
}

bool AgentCluster::HasBytes(int index, const ShardName& name, uint64_t seed) const {
  const store::Shard* shard = nodes_.at(index)->table->Find(name);
  if (shard == nullptr || !shard->sealed()) return false;
  for (uint64_t i = 0; i < shard->size_bytes; ++i) {
    if (shard->bytes()[i] != ByteOf(i / kTestChunkBytes, seed)) return false;
  }
  return true;
}

}  // namespace backstay::testing
