#include "tests/sim/cluster/sim_cluster.h"

#include <algorithm>
#include <sstream>

#include "replication/metadata_keys.h"
#include "replication/node_record.h"
#include "store/offload.h"

namespace backstay::sim {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(5);  // One optimizer step.
constexpr Duration kFaultSeenMin =
    std::chrono::milliseconds(10);  // A broken connection of the communicator.
constexpr uint64_t kFaultSeenSpreadMs = 40;
constexpr uint64_t kBudgetBytes = 64 * kMiB;
constexpr Duration kBeginTimeout = std::chrono::milliseconds(200);
constexpr int kTimelineShownMax = 60;
const JobName kJob("job");

const replication::KeyValue* FindKey(const replication::MetadataSnapshot& disk,
                                     const std::string& key) {
  for (const replication::KeyValue& pair : disk.pairs) {
    if (pair.key == key) return &pair;
  }
  return nullptr;
}

}  // namespace

SimCluster::SimCluster(uint64_t seed, const ClusterOptions& options)
    : options_(options),
      random_(seed),
      metadata_(&executor_, StoreId("sim-store")),
      control_(&executor_, &random_),
      data_(&executor_, &random_, options.network),
      nodes_(options.node_count),
      members_(options.world_size) {
  metadata_.SetWriteDelay(std::chrono::milliseconds(1));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].id = NodeId("node-" + std::to_string(i + 1));
    nodes_[i].budget = std::make_unique<store::FixedMemoryBudget>(kBudgetBytes);
    StartNode(i);
  }
  executor_.RunAfter(kTick, lifetime_.Wrap([this] { Tick(); }));
}

SimCluster::~SimCluster() {
  zombies_.clear();
  members_.clear();
  for (SimNode& node : nodes_) node.node.reset();
}

void SimCluster::StartNode(size_t index) {
  SimNode& n = nodes_[index];
  n.metadata = metadata_.NewClient(StoreId("sim-store"));
  n.metadata->SetDelay(std::chrono::microseconds(200), std::chrono::microseconds(200));
  n.metadata->SetUnavailable(n.cut);
  n.messenger = control_.MakeMessenger(n.id);
  n.memory = std::make_unique<testing::HeapSlotMemoryFactory>();
  tools::NodeConfig config;
  config.record.instance.node = n.id;
  config.record.control_address = n.id.value + ":1";
  config.record.domains = {"host-" + std::to_string(index + 1)};
  config.record.boot_id = "boot-" + std::to_string(index + 1);
  config.record.memory_budget_bytes = kBudgetBytes;
  config.store = StoreId("sim-store");
  config.chunk_bytes = options_.chunk_bytes;
  config.lease_ttl = options_.lease_ttl;
  tools::NodeSeams seams;
  seams.executor = &executor_;
  seams.random = &random_;
  seams.metadata = n.metadata.get();
  seams.messenger = n.messenger.get();
  seams.memory = n.memory.get();
  seams.budget = n.budget.get();
  seams.offload = store::OffloadOnto(executor_);
  seams.data_plane = [this](const NodeInstance& self) -> Result<tools::DataPlane> {
    return tools::DataPlane{data_.MakeExporter(self), data_.MakePuller(self),
                            self.node.value + ":2"};
  };
  n.node = std::make_unique<tools::Node>(std::move(config), std::move(seams));
  n.joined = false;
  control_.Attach(n.id, &n.node->router());
  data_.SetDown(n.id, false);
  n.node->Start(
      lifetime_.Wrap([this, index](const Status& status) { nodes_[index].joined = status.ok(); }),
      lifetime_.Wrap([this, index](const Status& why) {
        auditor_.Violation(nodes_[index].id.value + " gave up: " + why.ToString());
      }));
}

bool SimCluster::Start(Duration limit) {
  const bool joined = RunUntil(
      [this] {
        return std::all_of(nodes_.begin(), nodes_.end(), [](const SimNode& n) { return n.joined; });
      },
      limit);
  if (!joined) return false;
  for (size_t rank = 0; rank < members_.size(); ++rank) StartTrainer(rank, rank);
  return RunUntil([this] { return training(); }, limit);
}

void SimCluster::StartTrainer(size_t rank, size_t node) {
  TrainerPlan plan;
  plan.job = kJob;
  plan.rank = Rank(rank);
  plan.world_size = options_.world_size;
  plan.replicas = options_.replicas;
  plan.versions = options_.versions;
  plan.state_bytes = options_.state_bytes / 8 * 8;
  plan.begin_timeout = options_.saves_block ? kBeginTimeout : Duration::zero();
  members_[rank].node = node;
  members_[rank].trainer =
      std::make_unique<SimTrainer>(&executor_, &random_, &auditor_, nodes_[node].node.get(),
                                   replication::ProcessId(++last_process_), plan);
}

void SimCluster::RunFor(Duration duration) { executor_.RunFor(duration); }

bool SimCluster::RunUntil(const std::function<bool()>& predicate, Duration limit) {
  return executor_.RunUntil(predicate, limit);
}

// ---- Faults ------------------------------------------------------------------------------------
void SimCluster::KillNode(size_t node) {
  SimNode& n = nodes_[node];
  if (!n.node) return;
  // Trainers hold references into the node.
  for (Member& member : members_) {
    if (member.node == node) member.trainer.reset();
  }
  std::erase_if(zombies_, [&](const Member& zombie) { return zombie.node == node; });
  control_.Attach(n.id, nullptr);
  n.node.reset();
  n.messenger.reset();
  n.metadata.reset();
  data_.SetDown(n.id, true);
  n.joined = false;
  Break();
  Trace(node + 1);
}

void SimCluster::RestartNode(size_t node) {
  if (!nodes_[node].node) StartNode(node);
}

void SimCluster::KillTrainer(size_t rank) {
  if (!members_[rank].trainer) return;
  const replication::ProcessId process = members_[rank].trainer->process();
  members_[rank].trainer.reset();
  nodes_[members_[rank].node].node->ProcessExited(process);
  Break();
}

void SimCluster::CutOff(size_t node) {
  nodes_[node].cut = true;
  for (size_t other = 0; other < nodes_.size(); ++other) {
    if (other == node) continue;
    control_.SetPartitioned(nodes_[node].id, nodes_[other].id, true);
    data_.SetPartitioned(nodes_[node].id, nodes_[other].id, true);
  }
  if (nodes_[node].metadata) nodes_[node].metadata->SetUnavailable(true);
  Break();
}

void SimCluster::Heal(size_t node) {
  nodes_[node].cut = false;
  for (size_t other = 0; other < nodes_.size(); ++other) {
    if (other == node || nodes_[other].cut) continue;
    control_.SetPartitioned(nodes_[node].id, nodes_[other].id, false);
    data_.SetPartitioned(nodes_[node].id, nodes_[other].id, false);
  }
  if (nodes_[node].metadata) nodes_[node].metadata->SetUnavailable(false);
}

void SimCluster::SetMetadataDown(bool down) {
  if (down == !metadata_.running()) return;
  if (down) {
    metadata_.Stop();
  } else {
    metadata_.Start();
  }
}

void SimCluster::MakeMetadataUnsure(size_t node) {
  if (!nodes_[node].metadata) return;
  nodes_[node].metadata->LoseReplies(static_cast<int>(random_.Next() % 3));
  nodes_[node].metadata->LoseRequests(static_cast<int>(random_.Next() % 3));
}

// ---- The launcher ------------------------------------------------------------------------------
void SimCluster::Tick() {
  ticks_ += 1;
  ReadRecord();
  switch (phase_) {
    case Phase::kTraining:
      TickTraining();
      break;
    case Phase::kBroken:
      TickBroken();
      break;
    case Phase::kForming:
      TickForming();
      break;
    case Phase::kRestoring:
      TickRestoring();
      break;
  }
  // A replaced trainer that nobody killed goes on as if nothing had happened; everything it asks
  // must be refused.
  for (const Member& zombie : zombies_) {
    if (zombie.trainer->state() != SimTrainer::State::kTraining) continue;
    zombie.trainer->TakeStep();
    zombie.trainer->Save();
  }
  executor_.RunAfter(kTick, lifetime_.Wrap([this] { Tick(); }));
}

bool SimCluster::AllMembers(const std::function<bool(const SimTrainer&)>& holds) const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](const Member& m) { return m.trainer && holds(*m.trainer); });
}

void SimCluster::Break() {
  if (phase_ == Phase::kBroken) return;
  phase_ = Phase::kBroken;
  broken_until_ = executor_.Now() + kFaultSeenMin +
                  std::chrono::milliseconds(random_.Next() % kFaultSeenSpreadMs);
}

void SimCluster::TickTraining() {
  const Generation generation = members_[0].trainer->generation();
  const bool together = AllMembers([&](const SimTrainer& t) {
    return t.state() == SimTrainer::State::kTraining && t.generation() == generation;
  });
  if (!together) return Break();
  const auto is_saving = [](const Member& m) { return m.trainer->is_saving(); };
  if (options_.saves_block && std::any_of(members_.begin(), members_.end(), is_saving)) return;
  for (Member& member : members_) member.trainer->TakeStep();
  if (members_[0].trainer->step().value % options_.save_every == 0) {
    for (Member& member : members_) member.trainer->Save();
  }
  Trace(members_[0].trainer->step().value);
}

void SimCluster::TickBroken() {
  if (executor_.Now() < broken_until_) return;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    const bool lost = !member.trainer || nodes_[member.node].cut;
    if (!lost) {
      member.trainer->Fence();
      continue;
    }
    const std::optional<size_t> place = PlaceFor(rank);
    if (!place) return;  // Until a node comes back.
    if (member.trainer) zombies_.push_back(std::move(member));
    StartTrainer(rank, *place);
  }
  attempt_asked_ = false;
  phase_ = Phase::kForming;
}

std::optional<size_t> SimCluster::PlaceFor(size_t rank) const {
  std::vector<size_t> usable;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].joined && nodes_[node].node && !nodes_[node].cut) usable.push_back(node);
  }
  const auto busy = [&](size_t node) {
    return std::any_of(members_.begin(), members_.end(),
                       [&](const Member& m) { return m.trainer && m.node == node; });
  };
  const auto own = std::find(usable.begin(), usable.end(), members_[rank].node);
  if (own != usable.end()) return *own;
  for (const size_t node : usable) {
    if (!busy(node)) return node;
  }
  return std::nullopt;
}

void SimCluster::TickForming() {
  const bool ready =
      AllMembers([](const SimTrainer& t) { return t.state() != SimTrainer::State::kClaiming; });
  if (!ready || attempt_asked_) return;
  attempt_asked_ = true;
  members_[0].trainer->NewAttempt(lifetime_.Wrap([this](const Result<AttemptUuid>& uuid) {
    if (phase_ != Phase::kForming) return;
    attempt_asked_ = false;
    if (!uuid.ok() || !AllMembers([](const SimTrainer&) { return true; })) return;
    for (Member& member : members_) member.trainer->Join(*uuid);
    phase_ = Phase::kRestoring;
  }));
}

void SimCluster::TickRestoring() {
  if (AllMembers([](const SimTrainer& t) { return t.state() == SimTrainer::State::kTraining; })) {
    phase_ = Phase::kTraining;
    Trace(members_[0].trainer->generation().value);
    return;
  }
  // Ranks that failed wait for those that have not heard yet; then all try again.
  const bool settled = AllMembers(
      [](const SimTrainer& t) { return t.state() != SimTrainer::State::kReconfiguring; });
  if (settled) {
    attempt_asked_ = false;
    phase_ = Phase::kForming;
  }
}

// ---- Looking -----------------------------------------------------------------------------------
void SimCluster::ReadRecord() {
  const replication::KeyValue* const stored =
      FindKey(metadata_.disk(), replication::JobRecordKey(kJob));
  if (stored != nullptr) {
    replication::wire::JobRecord record;
    if (record.ParseFromString(stored->value)) auditor_.OnRecord(record);
  }
  const replication::KeyValue* const leader =
      FindKey(metadata_.disk(), replication::LeaderKey(kJob));
  if (leader != nullptr && leader->value != leader_seen_) {
    if (!leader_seen_.empty()) leader_changes_ += 1;
    leader_seen_ = leader->value;
  }
}

std::optional<size_t> SimCluster::NodeOf(size_t rank) const {
  if (!members_[rank].trainer) return std::nullopt;
  return members_[rank].node;
}

std::optional<size_t> SimCluster::LeaderNode() const {
  const replication::KeyValue* const leader =
      FindKey(metadata_.disk(), replication::LeaderKey(kJob));
  if (leader == nullptr) return std::nullopt;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (leader->value.find(nodes_[node].id.value) != std::string::npos) return node;
  }
  return std::nullopt;
}

bool SimCluster::FullyProtected() const {
  if (!auditor_.record() || auditor_.record()->committed().empty()) return false;
  for (const auto& kept : auditor_.record()->committed()) {
    std::map<std::string, uint32_t> holders;  // By shard id.
    for (const SimNode& n : nodes_) {
      if (!n.node || n.cut || !n.joined) continue;
      const replication::wire::NodeStatusReply status = n.node->Describe();
      for (const auto& job : status.jobs()) {
        for (const auto& held : job.shards()) {
          const auto& ref = held.shard();
          if (ref.snapshot().generation() == kept.generation() &&
              ref.snapshot().step() == kept.step()) {
            holders[ref.shard_id()] += 1;
          }
        }
      }
    }
    if (holders.size() < options_.world_size) return false;
    for (const auto& [shard, count] : holders) {
      if (count < options_.replicas + 1) return false;
    }
  }
  return true;
}

bool SimCluster::DamageMemory(size_t node) {
  SimNode& n = nodes_[node];
  return n.memory && n.memory->FlipBit(random_.Next());
}

bool SimCluster::ToldOfLoss() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.trainer && m.trainer->state() == SimTrainer::State::kFailed &&
           m.trainer->last_error().code() == StatusCode::kNotFound;
  });
}

bool SimCluster::HasHiddenDamage() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const SimNode& n) { return n.node && n.memory->HasFlippedBit(); });
}

void SimCluster::AuditRest() {
  for (const SimNode& n : nodes_) {
    if (!n.node) continue;
    const replication::wire::NodeStatusReply status = n.node->Describe();
    if (status.reserved_bytes() > kBudgetBytes) {
      auditor_.Violation(n.id.value + " has reserved more than its budget");
    }
    if (n.memory->live_bytes() > kBudgetBytes)
      auditor_.Violation(n.id.value + " uses more memory than its budget");
  }
}

std::string SimCluster::Describe() const {
  std::ostringstream out;
  out << "phase " << static_cast<int>(phase_) << " after " << ticks_ << " ticks";
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    out << "\n  rank " << rank << " on " << nodes_[m.node].id.value;
    if (!m.trainer) {
      out << ": dead";
      continue;
    }
    out << ": state " << static_cast<int>(m.trainer->state()) << ", generation "
        << m.trainer->generation() << ", step " << m.trainer->step()
        << ", last error: " << m.trainer->last_error();
  }
  for (const SimNode& n : nodes_) {
    out << "\n  " << n.id.value << (n.node ? (n.joined ? " joined" : " joining") : " dead")
        << (n.cut ? ", cut off" : "");
    if (!n.node) continue;
    const replication::wire::NodeStatusReply status = n.node->Describe();
    out << ", start " << status.node().incarnation() << ", pinned " << status.pinned_bytes()
        << ", in flight " << status.in_flight_bytes() << ", quarantined "
        << status.quarantined_bytes();
    for (const auto& job : status.jobs()) {
      out << "; generation " << job.generation() << ", trainers " << job.trainers() << ":";
      for (const auto& held : job.shards()) {
        out << " " << held.shard().snapshot().generation() << "/" << held.shard().snapshot().step()
            << "/" << held.shard().shard_id() << (held.primary() ? "p" : "")
            << (held.committed() ? "c" : "");
      }
    }
  }
  if (auditor_.record()) {
    const replication::wire::JobRecord& r = *auditor_.record();
    out << "\n  record: generation " << r.generation() << ", closing '" << r.closing_uuid()
        << "', base " << r.decision().base_generation() << "/" << r.decision().base_step()
        << (r.decision().resumed() ? " resumed" : " not resumed") << ", last committed "
        << r.last_committed_step() << ", last abandoned " << r.last_abandoned_step()
        << ", first commit " << r.first_commit_done() << ", committed:";
    for (const auto& kept : r.committed()) out << " " << kept.generation() << "/" << kept.step();
  }
  const std::optional<size_t> leader = LeaderNode();
  out << "\n  leader: " << (leader ? nodes_[*leader].id.value : "nobody");
  if (leader && nodes_[*leader].node) DescribeLeader(*nodes_[*leader].node, out);
  return out.str();
}

// Why nothing is committed, and what the leader did of late.
void SimCluster::DescribeLeader(tools::Node& node, std::ostream& out) const {
  using replication::wire::LeaderStatusReply;
  replication::wire::Request request;
  request.mutable_leader_status();
  *request.mutable_header() = node.router().MakeHeader(kJob);
  node.router().OnRequest(request, [&](const Result<replication::wire::Reply>& reply) {
    if (!reply.ok()) {
      out << "\n    " << reply.status();
      return;
    }
    const LeaderStatusReply& status = reply->leader_status();
    for (const auto& snapshot : status.snapshots()) {
      out << "\n    " << snapshot.snapshot().generation() << "/" << snapshot.snapshot().step()
          << ": state " << snapshot.state() << ", protected " << snapshot.ranks_protected()
          << " of " << status.world_size() << "; " << snapshot.reason();
    }
    const int first = std::max(0, status.timeline_size() - kTimelineShownMax);
    for (int i = first; i < status.timeline_size(); ++i) {
      const auto& event = status.timeline(i);
      out << "\n    " << event.unix_ms() << " " << event.what() << ": " << event.detail();
    }
  });
}

}  // namespace backstay::sim
