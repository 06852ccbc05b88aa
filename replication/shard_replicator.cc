#include "replication/shard_replicator.h"

#include <algorithm>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::replication {

ShardReplicator::ShardReplicator(ShardName name, Kind kind, Executor& executor, PeerLink& peers,
                                 store::ShardTable& table, ShardExporter& exporter,
                                 std::function<void()> on_changed)
    : name_(std::move(name)),
      kind_(kind),
      executor_(executor),
      peers_(peers),
      table_(table),
      exporter_(exporter),
      on_changed_(std::move(on_changed)) {}

ShardReplicator::~ShardReplicator() {
  executor_.CancelTimer(timer_);
  for (auto& [node, replica] : replicas_) {
    EndGrant(replica);
    // Best effort: a holder that never hears it finds out by the job's state.
    if (replica.state != ReplicaState::kStreaming && replica.state != ReplicaState::kFinishing) {
      continue;
    }
    wire::Request request;
    *request.mutable_release()->mutable_shard() = ToWire(name_);
    peers_.Send(name_.job, replica.instance, std::move(request), executor_.Now() + kOfferTimeout,
                [](Result<wire::Reply>) {});
  }
}

void ShardReplicator::SetTargets(const std::vector<NodeId>& nodes) {
  targets_.clear();
  for (const NodeId& node : nodes) {
    if (node != peers_.self().node) targets_.insert(node);
  }
  for (const NodeId& node : targets_) replicas_.try_emplace(node);
  for (auto entry = replicas_.begin(); entry != replicas_.end();) {
    if (targets_.contains(entry->first) || entry->second.state == ReplicaState::kHeld) {
      ++entry;
    } else {
      EndGrant(entry->second);
      entry = replicas_.erase(entry);
    }
  }
  Step();
}

bool ShardReplicator::IsWanting(const NodeId& node) const {
  if (!targets_.contains(node)) return false;
  const Replica& replica = replicas_.at(node);
  return replica.state != ReplicaState::kHeld || !peers_.IsAlive(replica.instance);
}

void ShardReplicator::OnAck(const NodeInstance& from, const Hash128& digest) {
  const auto found = replicas_.find(from.node);
  const store::Shard* shard = table_.Find(name_);
  if (found == replicas_.end() || shard == nullptr || !shard->sealed()) return;
  Replica& replica = found->second;
  if (digest != shard->digest || !peers_.IsAlive(from)) return;
  replica.instance = from;
  Hold(replica);
}

void ShardReplicator::Step() {
  const store::Shard* shard = table_.Find(name_);
  if (shard == nullptr || shard->state == store::ShardState::kQuarantined) return;
  if (!shard->sealed() && !shard->copy_started) {
    Schedule(executor_.Now() + kPollInterval);
    return;
  }
  CollectReady(*shard);
  for (auto& [node, replica] : replicas_) StepReplica(*shard, node, replica);
  ScheduleNext(*shard);
}

// Once sealed the manifest says it all. Before, each chunk's checksum is taken from the page once;
// one that the trainer writes again is found at the seal by whoever pulled it.
void ShardReplicator::CollectReady(const store::Shard& shard) {
  if (shard.sealed()) return;
  const SlotControlView control = shard.control();
  const uint64_t chunk_count = shard.ChunkCount();
  collected_.resize(chunk_count, false);
  for (uint64_t chunk = 0; chunk < chunk_count; ++chunk) {
    if (collected_[chunk] || !control.IsReady(chunk)) continue;
    collected_[chunk] = true;
    ready_.push_back({static_cast<uint32_t>(chunk), control.Checksum(chunk)});
  }
}

void ShardReplicator::StepReplica(const store::Shard& shard, const NodeId& node, Replica& replica) {
  const std::optional<NodeInstance> alive = peers_.Alive(node);
  if (!alive || *alive != replica.instance) {
    // Gone, or started again and empty: what it had does not count any more.
    const bool held = replica.state == ReplicaState::kHeld;
    Reset(replica);
    replica.no_room = false;
    replica.trouble_count = 0;
    replica.instance = alive.value_or(NodeInstance());
    if (held) executor_.Post(lifetime_.Wrap([this] { on_changed_(); }));
  }
  if (!alive || !targets_.contains(node) || replica.offer_in_flight != 0) return;
  if (executor_.Now() < replica.next_offer) return;
  switch (replica.state) {
    case ReplicaState::kUnplaced:
      // Nothing to take yet: the first chunks come along with the offer.
      if (may_place_ && !may_place_(node)) break;
      if (shard.sealed() || !ready_.empty()) Offer(shard, node, replica);
      break;
    case ReplicaState::kStreaming:
      if (shard.sealed() || replica.confirmed_count < ready_.size()) Offer(shard, node, replica);
      break;
    case ReplicaState::kFinishing:
      Offer(shard, node, replica);
      break;
    case ReplicaState::kHeld:
      break;
  }
}

void ShardReplicator::Offer(const store::Shard& shard, const NodeId& node, Replica& replica) {
  if (!replica.grant) {
    Result<transport::Grant> grant =
        exporter_.Export(name_, ShardExporter::Reader::kReplica, replica.instance);
    if (!grant.ok()) return OnTrouble(replica, grant.status().message());
    replica.grant = std::move(grant).value();
  }
  wire::Request request;
  wire::Offer& offer = *request.mutable_offer();
  *offer.mutable_shard() = ToWire(name_);
  offer.set_used_bytes(shard.size_bytes);
  offer.set_chunk_bytes(shard.chunk_bytes);
  *offer.mutable_grant() = ToWire(*replica.grant);
  offer.set_repair(kind_ == Kind::kRepair);
  size_t offered_count = replica.confirmed_count;
  if (shard.sealed()) {
    offer.set_digest(shard.digest.ToByteString());
    if (replica.state != ReplicaState::kFinishing) offer.set_manifest(shard.manifest_bytes);
  } else {
    offered_count = std::min(ready_.size(), replica.confirmed_count + kChunksPerOfferMax);
    std::vector<ReadyChunk> chunks(ready_.begin() + static_cast<ptrdiff_t>(replica.confirmed_count),
                                   ready_.begin() + static_cast<ptrdiff_t>(offered_count));
    std::sort(chunks.begin(), chunks.end(),
              [](const ReadyChunk& a, const ReadyChunk& b) { return a.chunk < b.chunk; });
    wire::ReadyChunks* run = nullptr;
    uint32_t run_end = 0;
    for (const ReadyChunk& ready : chunks) {
      if (run == nullptr || ready.chunk != run_end) {
        run = offer.add_ready();
        run->set_first_chunk(ready.chunk);
      }
      run->mutable_checksums()->append(ready.checksum.ToByteString());
      run_end = ready.chunk + 1;
    }
  }
  const uint64_t id = ++last_offer_;
  replica.offer_in_flight = id;
  peers_.Send(name_.job, replica.instance, std::move(request), executor_.Now() + kOfferTimeout,
              lifetime_.Wrap([this, node, id, offered_count](Result<wire::Reply> reply) {
                OnOfferReply(node, id, offered_count, std::move(reply));
              }));
}

void ShardReplicator::OnOfferReply(const NodeId& node, uint64_t offer, size_t offered_count,
                                   Result<wire::Reply> reply) {
  const auto found = replicas_.find(node);
  if (found == replicas_.end() || found->second.offer_in_flight != offer) return;
  Replica& replica = found->second;
  replica.offer_in_flight = 0;
  const store::Shard* shard = table_.Find(name_);
  if (shard == nullptr) return;
  if (replica.state == ReplicaState::kHeld) return Step();  // Its acknowledgement was faster.
  if (!reply.ok()) {
    OnTrouble(replica, node.value + ": " + reply.status().message(),
              reply.status().code() == StatusCode::kNoSpace);
    return Step();
  }
  const std::string digest = shard->sealed() ? shard->digest.ToByteString() : std::string();
  const bool has_manifest = shard->sealed() && reply->offer().digest() == digest;
  switch (reply->offer().state()) {
    case wire::REPLICA_HELD:
      if (has_manifest) {
        Hold(replica);
      } else {
        OnTrouble(replica, node.value + " holds another content under this name");
      }
      break;
    case wire::REPLICA_PULLING:
      replica.confirmed_count = offered_count;
      replica.retry_delay = kRetryMin;
      replica.trouble.clear();
      replica.no_room = false;
      if (replica.state == ReplicaState::kUnplaced) {
        executor_.Post(lifetime_.Wrap([this] { on_changed_(); }));
      }
      replica.state = has_manifest ? ReplicaState::kFinishing : ReplicaState::kStreaming;
      replica.next_offer =
          executor_.Now() + (has_manifest ? kRepeatInterval : Duration(kPollInterval));
      break;
    default:
      OnTrouble(replica, node.value + " gave the transfer up");
      break;
  }
  Step();
}

// Back to the start, with another grant: whatever went wrong, the next offer begins anew.
void ShardReplicator::OnTrouble(Replica& replica, std::string trouble, bool no_room) {
  const Duration delay = replica.retry_delay;
  Reset(replica);
  replica.trouble = std::move(trouble);
  replica.no_room = no_room;
  ++replica.trouble_count;
  replica.next_offer = executor_.Now() + delay;
  replica.retry_delay = std::min<Duration>(delay * 2, kRetryMax);
}

void ShardReplicator::Reset(Replica& replica) {
  EndGrant(replica);
  replica.state = ReplicaState::kUnplaced;
  replica.confirmed_count = 0;
  replica.offer_in_flight = 0;
  replica.next_offer = Instant();
  replica.retry_delay = kRetryMin;
}

void ShardReplicator::EndGrant(Replica& replica) {
  if (replica.grant) exporter_.Revoke(replica.grant->id);
  replica.grant.reset();
}

void ShardReplicator::Hold(Replica& replica) {
  EndGrant(replica);
  replica.trouble.clear();
  replica.no_room = false;
  replica.trouble_count = 0;
  if (replica.state == ReplicaState::kHeld) return;
  replica.state = ReplicaState::kHeld;
  executor_.Post(lifetime_.Wrap([this] { on_changed_(); }));
}

std::vector<NodeInstance> ShardReplicator::Holders() const {
  std::vector<NodeInstance> holders;
  for (const auto& [node, replica] : replicas_) {
    if (replica.state == ReplicaState::kHeld && peers_.IsAlive(replica.instance)) {
      holders.push_back(replica.instance);
    }
  }
  return holders;
}

bool ShardReplicator::AllTargetsHold() const {
  return std::all_of(targets_.begin(), targets_.end(), [this](const NodeId& node) {
    const Replica& replica = replicas_.at(node);
    return replica.state == ReplicaState::kHeld && peers_.IsAlive(replica.instance);
  });
}

std::string ShardReplicator::Trouble() const {
  for (const NodeId& node : targets_) {
    const Replica& replica = replicas_.at(node);
    if (!replica.trouble.empty()) return replica.trouble;
    if (!peers_.Alive(node)) return node.value + " is not alive";
  }
  return "";
}

std::vector<NodeId> ShardReplicator::Refusing() const {
  std::vector<NodeId> refusing;
  for (const NodeId& node : targets_) {
    const Replica& replica = replicas_.at(node);
    if (replica.state != ReplicaState::kUnplaced || !peers_.Alive(node)) continue;
    if (replica.no_room || replica.trouble_count >= kTroublesMax) refusing.push_back(node);
  }
  return refusing;
}

void ShardReplicator::ScheduleNext(const store::Shard& shard) {
  if (!shard.sealed() && ready_.size() < shard.ChunkCount()) {
    return Schedule(executor_.Now() + kPollInterval);
  }
  Instant next = executor_.Now() + kRetryMax;  // Peers may come and go meanwhile.
  for (const NodeId& node : targets_) {
    const Replica& replica = replicas_.at(node);
    if (replica.state == ReplicaState::kHeld || replica.offer_in_flight != 0) continue;
    if (!shard.sealed() && replica.state == ReplicaState::kStreaming &&
        replica.confirmed_count == ready_.size()) {
      continue;  // Nothing to say before the seal.
    }
    if (replica.next_offer > executor_.Now()) next = std::min(next, replica.next_offer);
  }
  Schedule(next);
}

void ShardReplicator::Schedule(Instant when) {
  if (timer_ != kNoTimer && timer_at_ <= when && timer_at_ > executor_.Now()) return;
  executor_.CancelTimer(timer_);
  timer_at_ = when;
  timer_ = executor_.RunAt(when, lifetime_.Wrap([this] {
    timer_ = kNoTimer;
    Step();
  }));
}

}  // namespace backstay::replication
