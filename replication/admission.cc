#include "replication/admission.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "replication/job_limits.h"
#include "replication/membership.h"

namespace backstay::replication {
namespace {

constexpr size_t kTokenDigestBytes = 32;  // SHA-256.
constexpr size_t kReplacedMax = 16;

bool IsWaiting(const ShardMember& member) { return member.state == ShardMember::State::kWaiting; }

}  // namespace

Admission::Admission(JobName job, const LeaderSeams& seams, const LeaderConfig& config,
                     RecordWriter& record, LeaderCalls& calls, LiveTrainers& trainers,
                     Timeline& timeline, std::function<void()> on_change)
    : job_(std::move(job)),
      seams_(seams),
      config_(config),
      record_(record),
      calls_(calls),
      trainers_(trainers),
      timeline_(timeline),
      on_change_(std::move(on_change)) {}

Status Admission::Check(const wire::AdmitShard& request) const {
  const std::string text = "job " + job_.value + ", shard " + request.shard_id() + ": ";
  if (request.shard_id().empty() || request.shard_id().size() > kNameBytesMax) {
    return InvalidArgument("job " + job_.value + ": a shard's name has 1 to " +
                           std::to_string(kNameBytesMax) + " bytes");
  }
  BACKSTAY_RETURN_IF_ERROR(
      CheckPolicyLimits(job_, request.world_size(), request.replicas(), request.versions()));
  if (request.rank() >= request.world_size()) {
    return InvalidArgument(text + "rank " + std::to_string(request.rank()) +
                           " is out of range; the world has " +
                           std::to_string(request.world_size()) + " ranks");
  }
  if (request.token_digest().size() != kTokenDigestBytes) {
    return InvalidArgument(text + "the job's token is missing");
  }
  if (record_.exists() && !record_.record().ended() &&
      record_.record().token_digest() != request.token_digest()) {
    return AnotherToken();
  }
  return CheckAgainstOthers(ShardId(request.shard_id()), request);
}

Status Admission::AnotherToken() const {
  return PermissionDenied("job " + job_.value +
                          " belongs to another token; use the job's token, or another job name");
}

// All live ranks of a job have one world size and one policy.
Status Admission::CheckAgainstOthers(const ShardId& shard, const wire::AdmitShard& request) const {
  if (!members_.contains(shard) && members_.size() >= kWorldSizeMax) {
    return NoSpace("job " + job_.value + " has " + std::to_string(kWorldSizeMax) + " shards");
  }
  for (const auto& [id, member] : members_) {
    if (id == shard || !trainers_.IsLive(member.primary, member.trainer)) continue;
    if (member.world_size != request.world_size() || member.replicas != request.replicas() ||
        member.versions != request.versions()) {
      return InvalidArgument(
          "job " + job_.value + ": shard " + shard.value + " asks for world size " +
          std::to_string(request.world_size()) + ", " + std::to_string(request.replicas()) +
          " replicas and " + std::to_string(request.versions()) + " versions; shard " + id.value +
          " is registered with " + std::to_string(member.world_size) + ", " +
          std::to_string(member.replicas) + " and " + std::to_string(member.versions));
    }
    break;  // The others agree with this one.
  }
  return Status::Ok();
}

// A later claim wins. But a node that was cut off and comes back repeats the claim of a trainer
// that was replaced meanwhile: that is not a later one.
Status Admission::CheckClaim(const ShardId& shard, const wire::AdmitShard& request) const {
  const auto known = members_.find(shard);
  if (known == members_.end()) return Status::Ok();
  const ShardMember& member = known->second;
  if (member.trainer == request.trainer().trainer()) return Status::Ok();
  // A trainer that has lost its claim comes back under another number. Attack: its first admission
  // arrives again.
  if (std::ranges::find(member.replaced, request.trainer().trainer()) != member.replaced.end()) {
    return Stale("shard " + shard.value + " of job " + job_.value +
                 " was claimed later by a trainer on " + member.primary.node.value);
  }
  if (!request.repeated()) return Status::Ok();
  const std::pair<uint64_t, uint64_t> order{request.claim_term(), request.claim_number()};
  if (order.first != 0) {
    if (order > member.claim_order) return Status::Ok();
    return Stale("shard " + shard.value + " of job " + job_.value +
                 " was claimed later by a trainer on " + member.primary.node.value);
  }
  // Of a trainer that its node's service, started again, does not know the claim's order of.
  const std::optional<Generation> other = trainers_.GenerationOf(member.primary, member.trainer);
  // Of the present generation, or new and in none yet, or left over from an older one.
  const auto standing = [this](uint64_t generation) {
    if (generation == 0) return 1;
    return generation == record_.record().generation() ? 2 : 0;
  };
  if (!other || standing(other->value) < standing(request.trainer().generation())) {
    return Status::Ok();
  }
  return Stale("shard " + shard.value + " of job " + job_.value + " was claimed by a trainer on " +
               member.primary.node.value + " since");
}

void Admission::OnAdmitShard(const NodeInstance& from, const wire::AdmitShard& request,
                             ReplyFunction reply) {
  if (!record_.loaded()) {
    reply(Unavailable("the leader of job " + job_.value + " is still reading its record"));
    return;
  }
  if (record_state_ == RecordState::kEnding) {
    reply(Unavailable("the first registration of job " + job_.value +
                      " was refused; its record is about to be ended"));
    return;
  }
  if (Status status = Check(request); !status.ok()) {
    reply(std::move(status));
    return;
  }
  const ShardId id(request.shard_id());
  if (Status status = CheckClaim(id, request); !status.ok()) {
    reply(std::move(status));
    return;
  }
  if (request.resize()) {
    Resize(from, request, std::move(reply));
    return;
  }
  ShardMember& member = members_[id];
  const bool is_new = member.trainer == 0;
  member.agreed_bytes.reset();
  if (member.reply) member.reply(Unavailable("the admission was asked for again"));
  member.reply = std::move(reply);
  if (!is_new && member.trainer != request.trainer().trainer()) {
    timeline_.Add(timeline::kTrainerReplaced,
                  "shard " + id.value + " was claimed by a trainer on " + from.node.value +
                      "; the one on " + member.primary.node.value + " is fenced",
                  Generation(record_.record().generation()));
    member.replaced.push_back(member.trainer);
    if (member.replaced.size() > kReplacedMax) member.replaced.pop_front();
    if (member.primary.node != from.node) member.earlier_primaries.insert(member.primary.node);
  }
  member.earlier_primaries.erase(from.node);
  // The holders of a job that has ended let go of what they had promised.
  if (record_.exists() && record_.record().ended()) member.targets.clear();
  const bool same = !is_new && record_.exists() && !record_.record().ended() &&
                    member.primary == from && member.size_bytes == request.size_bytes() &&
                    member.versions == request.versions() && member.replicas == request.replicas();
  if (member.size_bytes != request.size_bytes() || member.versions != request.versions()) {
    for (auto& [node, target] : member.targets) target.state = ReplicaTarget::State::kWanted;
  }
  member.rank = request.rank();
  member.world_size = request.world_size();
  member.token_digest = request.token_digest();
  member.size_bytes = request.size_bytes();
  member.replicas = request.replicas();
  member.versions = request.versions();
  member.primary = from;
  if (request.claim_term() != 0) {
    member.claim_order = {request.claim_term(), request.claim_number()};
  } else if (member.trainer != request.trainer().trainer()) {
    member.claim_order = {calls_.term().value, ++claim_count_};
  }
  member.trainer = request.trainer().trainer();
  if (is_new) {
    for (const std::string& node : request.current_replicas()) {
      if (member.preferred.size() == kReplicasMax) break;
      member.preferred.push_back(NodeId(node));
    }
  }
  if (!same) {
    member.state = ShardMember::State::kWaiting;
    member.since = seams_.executor->Now();
    member.refused.clear();
    place_needed_ = true;
  }
  unsettled_.insert(id);
  trainers_.OnAdmitted(from, request.trainer());
  ++version_;
  FitRecord(request);
  on_change_();
}

// Its replica nodes are asked for the new size; what they hold for it stays theirs meanwhile.
void Admission::Resize(const NodeInstance& from, const wire::AdmitShard& request,
                       ReplyFunction reply) {
  const ShardId id(request.shard_id());
  const auto found = members_.find(id);
  const bool admitted =
      found != members_.end() && found->second.primary == from &&
      found->second.trainer == request.trainer().trainer() &&
      (found->second.state == ShardMember::State::kAdmitted || found->second.agreed_bytes);
  if (!admitted) {
    reply(Unavailable("shard " + id.value + " of job " + job_.value +
                      " is not admitted by this leader yet"));
    return;
  }
  ShardMember& member = found->second;
  if (member.reply) member.reply(Unavailable("a later resize took the place of this one"));
  member.reply = std::move(reply);
  if (!member.agreed_bytes) member.agreed_bytes = member.size_bytes;
  member.size_bytes = request.size_bytes();
  member.state = ShardMember::State::kReserving;
  for (auto& [node, target] : member.targets) target.state = ReplicaTarget::State::kWanted;
  unsettled_.insert(id);
  ++version_;
  on_change_();
}

void Admission::RefuseResize(const ShardId& id, ShardMember& member, const NodeId& node,
                             const Status& why) {
  const uint64_t asked_bytes = std::exchange(member.size_bytes, *member.agreed_bytes);
  member.agreed_bytes.reset();
  member.state = ShardMember::State::kAdmitted;
  // Those who have agreed to the new size go back, too.
  for (auto& [target_node, target] : member.targets) target.state = ReplicaTarget::State::kWanted;
  unsettled_.insert(id);
  ++version_;
  if (!member.reply) return;
  std::exchange(member.reply, nullptr)(
      NoSpace("job " + job_.value + ", shard " + id.value + " keeps its size of " +
              FormatBytes(member.size_bytes) + ": its replica node " + node.value +
              " cannot hold " + FormatBytes(asked_bytes) + ": " + why.message()));
}

bool Admission::RecordFits(const ShardMember& member) const {
  const wire::JobRecord& record = record_.record();
  return record_.exists() && !record.ended() && record.replicas() == member.replicas &&
         record.versions() == member.versions;
}

// Makes the record, or gives it the policy that all live ranks now ask for.
void Admission::FitRecord(const wire::AdmitShard& request) {
  if (record_state_ == RecordState::kWriting) return;
  if (RecordFits(members_.at(ShardId(request.shard_id())))) {
    record_state_ = RecordState::kFits;
    return;
  }
  record_state_ = RecordState::kWriting;
  policy_ = request;
  const bool created = !record_.exists() || record_.record().ended();
  const auto change = [this](const wire::JobRecord& current) -> Result<wire::JobRecord> {
    if (current.format_version() == 0 || current.ended()) {
      return CreateRecord(job_, policy_.token_digest(), policy_.world_size(), policy_.replicas(),
                          policy_.versions(), Generation(current.generation()));
    }
    if (current.token_digest() != policy_.token_digest()) {
      return PermissionDenied("job " + job_.value + " belongs to another token");
    }
    return ChangePolicy(current, policy_.replicas(), policy_.versions());
  };
  const auto on_written = [this, created](const Status& status) {
    record_state_ = status.ok() ? RecordState::kFits : RecordState::kUnchecked;
    if (status.ok() && created) {
      record_is_new_ = true;
      timeline_.Add(timeline::kJobCreated,
                    std::to_string(policy_.world_size()) + " ranks, " +
                        std::to_string(policy_.replicas()) + " replicas, " +
                        std::to_string(policy_.versions()) + " versions kept",
                    Generation(record_.record().generation()));
    }
    if (!status.ok()) {
      for (auto& [id, member] : members_) {
        if (IsWaiting(member) && member.reply && !RecordFits(member)) {
          std::exchange(member.reply, nullptr)(status);
        }
      }
    }
    place_needed_ = true;
    on_change_();
  };
  record_.Apply(change, {}, lifetime_.Wrap(on_written));
}

void Admission::OnMembershipChanged() {
  const MembershipView& view = seams_.membership->view();
  for (auto& [id, member] : members_) {
    const size_t lost = std::erase_if(
        member.targets, [&](const auto& entry) { return view.Find(entry.second.node) == nullptr; });
    if (lost > 0) ++version_;
    member.refused.clear();
  }
  place_needed_ = true;
}

std::vector<PlacementNode> Admission::PlacementNodes() const {
  const MembershipView& view = seams_.membership->view();
  const std::map<NodeId, std::string> domains = FailureDomains(view.members);
  std::set<NodeId> with_trainers;
  for (const auto& [id, member] : members_) with_trainers.insert(member.primary.node);
  std::vector<PlacementNode> nodes;
  nodes.reserve(view.members.size());
  for (const auto& [id, member] : view.members) {
    PlacementNode node;
    node.node = id;
    node.domains = member.record.domains;
    node.domain = domains.at(id);
    node.has_trainers = with_trainers.contains(id) || trainers_.HasTrainers(id);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// Whether those who wait have waited long enough for the other ranks of their world.
bool Admission::WindowIsOver() const {
  size_t live = 0;
  uint32_t world_size = 0;
  Instant first = seams_.executor->Now();
  for (const auto& [id, member] : members_) {
    if (seams_.membership->view().Find(member.primary) == nullptr) continue;
    ++live;
    world_size = member.world_size;
    if (IsWaiting(member)) first = std::min(first, member.since);
  }
  return live >= world_size || seams_.executor->Now() - first >= config_.admission_window;
}

void Admission::Step() {
  const bool record_is_changing =
      record_state_ == RecordState::kWriting || record_state_ == RecordState::kEnding;
  if (place_needed_ && record_.loaded() && !record_is_changing) Place();
  if (end_needed_ && record_state_ != RecordState::kEnding) SettleRefusals();  // It failed once.
  for (auto it = unsettled_.begin(); it != unsettled_.end();) {
    const auto found = members_.find(*it);
    if (found == members_.end() || IsWaiting(found->second)) {
      it = unsettled_.erase(it);  // Placing it brings it back.
      continue;
    }
    ShardMember& member = found->second;
    AskTargets(found->first, member);
    if (!member.AllReserved()) {
      ++it;
      continue;
    }
    if (member.state == ShardMember::State::kReserving || member.reply) {
      Finish(found->first, member);
    }
    it = unsettled_.erase(it);
  }
}

void Admission::Place() {
  if (!seams_.membership->view().current) return;  // Nobody knows who is alive.
  const bool window_is_over = WindowIsOver();
  Placement placement(PlacementNodes());
  // What stays where it is comes first, so that the others can join its groups.
  for (const auto& [id, member] : members_) {
    if (!IsWaiting(member)) placement.Assign(member.primary.node, member.TargetNodes());
  }
  std::vector<ShardId> refused;
  std::vector<ShardId> strangers;
  bool waiting = false;
  for (auto& [id, member] : members_) {
    if (IsWaiting(member)) {
      // Came while the record was being written, for somebody else's first shard.
      if (record_.exists() && record_.record().token_digest() != member.token_digest &&
          !record_.record().ended()) {
        strangers.push_back(id);
        continue;
      }
      if (!RecordFits(member) && member.reply) continue;
      if (!window_is_over) {
        waiting = true;
        continue;
      }
      const bool has_state = record_.record().generation() > 0;
      if (const Status status = placement.CheckPolicy(job_, member.replicas);
          !status.ok() && !has_state) {
        refused.push_back(id);
        continue;
      }
    }
    if (IsWaiting(member) || member.targets.size() < member.replicas) {
      PlaceMember(placement, id, member);
    }
  }
  place_needed_ = waiting;
  for (const ShardId& id : strangers) Refuse(id, AnotherToken());
  for (const ShardId& id : refused) {
    Refuse(id, placement.CheckPolicy(job_, members_.at(id).replicas));
  }
  if (!refusals_.empty()) SettleRefusals();
}

void Admission::PlaceMember(Placement& placement, const ShardId& id, ShardMember& member) {
  PlacementShard wish;
  wish.shard = id;
  wish.primary = member.primary.node;
  wish.current = member.TargetNodes();
  wish.current.insert(wish.current.end(), member.preferred.begin(), member.preferred.end());
  for (const auto& [node, why] : member.refused) wish.excluded.insert(node);
  const std::vector<NodeId> chosen = placement.Choose(wish, member.replicas);
  if (chosen.size() < member.replicas && record_.record().generation() == 0 &&
      !member.refused.empty() && IsWaiting(member)) {
    // The domains would do, the memory does not.
    for (const auto& [node, target] : member.targets) GiveBack(id, target.node);
    member.targets.clear();
    std::string text;
    for (const auto& [node, why] : member.refused) text += "; " + node.value + ": " + why;
    refusals_.push_back(
        {std::exchange(member.reply, nullptr),
         NoSpace("job " + job_.value + ", shard " + id.value + ": " +
                 std::to_string(member.replicas) + " replicas are wanted, and only " +
                 std::to_string(chosen.size()) + " nodes have room" + text)});
    return;
  }
  for (auto it = member.targets.begin(); it != member.targets.end();) {
    if (std::ranges::find(chosen, it->first) != chosen.end()) {
      ++it;
      continue;
    }
    GiveBack(id, it->second.node);
    it = member.targets.erase(it);
    ++version_;
  }
  for (const NodeId& node : chosen) {
    const Member* alive = seams_.membership->view().Find(node);
    if (alive == nullptr || member.targets.contains(node)) continue;
    ReplicaTarget& target = member.targets[node];
    target.node = alive->record.instance;
    target.retry_delay = config_.retry_min;
    ++version_;
  }
  if (IsWaiting(member)) member.state = ShardMember::State::kReserving;
  unsettled_.insert(id);
}

void Admission::AskTargets(const ShardId& id, ShardMember& member) {
  for (auto& [node, target] : member.targets) {
    if (target.state != ReplicaTarget::State::kWanted) continue;
    if (seams_.executor->Now() < target.next_try) continue;
    target.state = ReplicaTarget::State::kAsked;
    wire::Request request;
    wire::Reserve* reserve = request.mutable_reserve();
    reserve->set_shard_id(id.value);
    reserve->set_size_bytes(member.size_bytes);
    reserve->set_versions(member.versions);
    reserve->set_record_revision(record_.revision());
    const NodeInstance instance = target.node;
    const uint64_t size_bytes = member.size_bytes;
    const auto on_reply = [this, id, instance, size_bytes](const Result<wire::Reply>& reply) {
      // An answer to an earlier size promises nothing.
      const auto it = members_.find(id);
      if (it != members_.end() && it->second.size_bytes == size_bytes) {
        OnReserved(id, instance, reply);
      }
    };
    calls_.Send(instance, std::move(request), lifetime_.Wrap(on_reply));
  }
}

void Admission::OnReserved(const ShardId& id, const NodeInstance& node,
                           const Result<wire::Reply>& reply) {
  ShardMember& member = members_.at(id);
  const auto it = member.targets.find(node.node);
  if (it == member.targets.end() || it->second.node != node ||
      it->second.state != ReplicaTarget::State::kAsked) {
    return;
  }
  ReplicaTarget& target = it->second;
  if (reply.ok()) {
    target.state = ReplicaTarget::State::kReserved;
    ++version_;
  } else if (reply.status().code() == StatusCode::kNoSpace && member.agreed_bytes) {
    RefuseResize(id, member, node.node, reply.status());
  } else if (reply.status().code() == StatusCode::kNoSpace) {
    member.refused[node.node] = reply.status().message();
    member.targets.erase(it);
    // Once told, the trainer keeps what it has; the place that is missing is looked for again.
    if (member.state == ShardMember::State::kReserving) {
      member.state = ShardMember::State::kWaiting;
      member.since = seams_.executor->Now() - config_.admission_window;
    }
    place_needed_ = true;
    ++version_;
  } else {
    target.state = ReplicaTarget::State::kWanted;
    target.next_try = seams_.executor->Now() + target.retry_delay;
    target.retry_delay = std::min(2 * target.retry_delay, config_.retry_max);
  }
  on_change_();
}

void Admission::Finish(const ShardId& id, ShardMember& member) {
  const bool resized = std::exchange(member.agreed_bytes, std::nullopt).has_value();
  member.state = ShardMember::State::kAdmitted;
  ++version_;
  std::string nodes;
  for (const NodeId& node : member.TargetNodes()) {
    nodes += (nodes.empty() ? "" : ", ") + node.value;
  }
  timeline_.Add(timeline::kShardAdmitted,
                "shard " + id.value + " of rank " + std::to_string(member.rank) + " on " +
                    member.primary.node.value +
                    (resized ? ", resized to " + FormatBytes(member.size_bytes) : std::string()) +
                    ", replicas on " + (nodes.empty() ? std::string("no other node") : nodes),
                Generation(record_.record().generation()));
  if (!member.reply) return;
  wire::Reply reply;
  wire::AdmitShardReply* admitted = reply.mutable_admit_shard();
  for (const NodeId& node : member.TargetNodes()) admitted->add_replica_nodes(node.value);
  admitted->set_claim_term(member.claim_order.first);
  admitted->set_claim_number(member.claim_order.second);
  admitted->set_record_revision(record_.revision());
  admitted->set_reserved_bytes_peers(member.size_bytes * (member.versions + 1) *
                                     member.targets.size());
  std::exchange(member.reply, nullptr)(std::move(reply));
}

void Admission::Refuse(const ShardId& id, const Status& why) {
  const auto it = members_.find(id);
  refusals_.push_back({std::move(it->second.reply), why});
  for (const auto& [node, target] : it->second.targets) GiveBack(id, target.node);
  members_.erase(it);
  ++version_;
}

void Admission::SettleRefusals() {
  end_needed_ = NobodyIsLeft();
  if (!end_needed_) return AnswerRefusals();
  record_state_ = RecordState::kEnding;
  const auto end = [now = seams_.executor->clock().UnixMillis()](const wire::JobRecord& current) {
    return EndRecord(current, now);
  };
  const auto on_ended = [this](const Status& status) {
    record_state_ = RecordState::kUnchecked;
    if (status.ok()) {
      record_is_new_ = false;
      end_needed_ = false;
      // Not to be placed for nobody when a node joins.
      std::erase_if(members_, [](const auto& entry) { return !entry.second.reply; });
      ++version_;
      timeline_.Add(timeline::kEnded, "its first registration was refused",
                    Generation(record_.record().generation()));
    }
    AnswerRefusals();
    on_change_();
  };
  record_.Apply(end, {}, lifetime_.Wrap(on_ended));
}

bool Admission::NobodyIsLeft() const {
  const wire::JobRecord& record = record_.record();
  return record_is_new_ && !record.ended() && record.decision().uuid().empty() &&
         std::ranges::all_of(members_, [](const auto& entry) {
           return IsWaiting(entry.second) && !entry.second.reply;
         });
}

void Admission::AnswerRefusals() {
  for (Refusal& refusal : std::exchange(refusals_, {})) {
    if (refusal.reply) refusal.reply(refusal.why);
  }
}

void Admission::GiveBack(const ShardId& id, const NodeInstance& node) {
  wire::Request request;
  request.mutable_reserve()->set_shard_id(id.value);
  // Not repeated: memory that is promised in vain costs room, not data, and the next placement or
  // the job's end gives it back.
  calls_.Send(node, std::move(request), [](const Result<wire::Reply>&) {});
}

void Admission::FailAll(const Status& why) {
  for (auto& [id, member] : members_) {
    if (member.reply) std::exchange(member.reply, nullptr)(why);
  }
  for (Refusal& refusal : std::exchange(refusals_, {})) {
    if (refusal.reply) refusal.reply(why);
  }
}

}  // namespace backstay::replication
