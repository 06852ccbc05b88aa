#include "recovery/callers.h"

#include <algorithm>
#include <utility>

#include "replication/job_limits.h"

namespace backstay::recovery {
namespace {

using replication::wire::Reconfigure;

constexpr size_t kRanksNamedMax = 8;

void Answer(Caller& caller, Result<replication::wire::Reply> answer) {
  if (caller.reply) std::exchange(caller.reply, nullptr)(std::move(answer));
}

bool SameWish(const Reconfigure& a, const Reconfigure& b) {
  return a.mode() == b.mode() && a.exact_step() == b.exact_step() &&
         a.drop_state() == b.drop_state() && a.fork_job() == b.fork_job();
}

}  // namespace

std::vector<uint32_t> CallGroup::MissingRanks() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    if (!callers.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::string DescribeMissingRanks(const std::vector<uint32_t>& missing) {
  if (missing.size() == 1) return "rank " + std::to_string(missing[0]) + " has not called";
  std::string text = "ranks ";
  for (size_t i = 0; i < missing.size() && i < kRanksNamedMax; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  }
  if (missing.size() > kRanksNamedMax) {
    text += " and " + std::to_string(missing.size() - kRanksNamedMax) + " more";
  }
  return text + " have not called";
}

Status Callers::Check(const Reconfigure& request) const {
  if (request.uuid().empty() || request.uuid().size() > replication::kUuidBytesMax) {
    return InvalidArgument("a reconfiguration's uuid has 1 to " +
                           std::to_string(replication::kUuidBytesMax) +
                           " bytes; get one with NewAttempt");
  }
  if (request.world_size() < 1 || request.world_size() > replication::kWorldSizeMax ||
      request.rank() >= request.world_size()) {
    return InvalidArgument("rank " + std::to_string(request.rank()) + " of a world of " +
                           std::to_string(request.world_size()) + " is out of range");
  }
  if (request.shard_id().empty() || request.shard_id().size() > kNameBytesMax) {
    return InvalidArgument("a shard's name has 1 to " + std::to_string(kNameBytesMax) + " bytes");
  }
  if (request.mode() > static_cast<uint32_t>(ResumeMode::kFork)) {
    return InvalidArgument("resume mode " + std::to_string(request.mode()) + " is not known");
  }
  const bool is_fork = request.mode() == static_cast<uint32_t>(ResumeMode::kFork);
  if (is_fork != !request.fork_job().empty()) {
    return InvalidArgument("a job to fork is named with resume mode fork, and only then");
  }
  const AttemptUuid uuid(request.uuid());
  const auto newest = newest_of_.find(request.trainer());
  if (newest != newest_of_.end() && newest->second.call > request.call()) {
    return Stale("rank " + std::to_string(request.rank()) + " has called for reconfiguration " +
                 newest->second.uuid.value + " since it called for " + uuid.value);
  }
  if (IsSuperseded(uuid)) {
    return Stale("a later reconfiguration took the place of " + request.uuid());
  }
  if (!groups_.contains(uuid) && groups_.size() >= kGroupsMax) {
    return Unavailable(std::to_string(kGroupsMax) + " reconfigurations of the job wait already");
  }
  return Status::Ok();
}

bool Callers::IsSuperseded(const AttemptUuid& uuid) const {
  return std::ranges::find(superseded_, uuid) != superseded_.end();
}

void Callers::Supersede(const AttemptUuid& uuid, const AttemptUuid& by) {
  superseded_.push_back(uuid);
  if (superseded_.size() > kSupersededMax) superseded_.pop_front();
  Fail(uuid, Stale("a rank went on to reconfiguration " + by.value + ", which takes the place of " +
                   uuid.value));
}

// What another process has called for in this one's place.
void Callers::SupersedeOfOthers(const Reconfigure& request) {
  const AttemptUuid uuid(request.uuid());
  std::vector<AttemptUuid> hopeless;
  for (const auto& [other, group] : groups_) {
    const auto called = group.called_by.find(request.rank());
    if (other == uuid || called == group.called_by.end()) continue;
    if (called->second != request.trainer()) hopeless.push_back(other);
  }
  for (const AttemptUuid& other : hopeless) Supersede(other, uuid);
}

bool Callers::Add(const NodeInstance& from, const Reconfigure& request, bool is_claimant,
                  Instant now, replication::ReplyFunction reply) {
  if (Status status = Check(request); !status.ok()) {
    reply(std::move(status));
    return false;
  }
  const AttemptUuid uuid(request.uuid());
  if (request.trainer() != 0) {
    NewestCall& newest = newest_of_[request.trainer()];
    const AttemptUuid earlier = std::exchange(newest.uuid, uuid);
    newest.call = request.call();
    newest.at = now;
    if (earlier != uuid && groups_.contains(earlier)) Supersede(earlier, uuid);
    if (is_claimant) SupersedeOfOthers(request);
  }
  CallGroup& group = groups_[uuid];
  if (group.world_size == 0) group.world_size = request.world_size();
  if (group.world_size != request.world_size()) {
    const Status why = InvalidArgument("reconfiguration " + uuid.value + ": rank " +
                                       std::to_string(request.rank()) + " calls for a world of " +
                                       std::to_string(request.world_size()) +
                                       " ranks, others for " + std::to_string(group.world_size));
    Fail(uuid, why);
    reply(why);
    return false;
  }
  Caller& caller = group.callers[request.rank()];
  if (caller.reply) {
    const bool same = caller.request.trainer() == request.trainer();
    Answer(caller,
           same ? Unavailable("the call was repeated")
                : Stale("another trainer called for rank " + std::to_string(request.rank())));
  }
  const Duration wish = std::chrono::milliseconds(request.timeout_ms());
  group.called_by[request.rank()] = request.trainer();
  caller.node = from;
  caller.request = request;
  caller.deadline = now + std::min(wish, kTimeoutMax);
  caller.missed_since = Instant();
  caller.reply = std::move(reply);
  return true;
}

CallGroup* Callers::Find(const AttemptUuid& uuid) {
  const auto it = groups_.find(uuid);
  return it == groups_.end() ? nullptr : &it->second;
}

void Callers::Fail(const AttemptUuid& uuid, const Status& why) {
  const auto it = groups_.find(uuid);
  if (it == groups_.end()) return;
  CallGroup group = std::move(it->second);
  groups_.erase(it);
  for (auto& [rank, caller] : group.callers) Answer(caller, why);
}

void Callers::FailAll(const Status& why) {
  while (!groups_.empty()) Fail(AttemptUuid(groups_.begin()->first), why);
}

void Callers::DropOldCalls(Instant now) {
  std::erase_if(newest_of_,
                [now](const auto& entry) { return now - entry.second.at >= kCallKept; });
}

void Callers::DropGone(const std::function<bool(Caller&)>& is_gone) {
  for (auto& [uuid, group] : groups_) {
    for (auto it = group.callers.begin(); it != group.callers.end();) {
      if (!is_gone(it->second)) {
        ++it;
        continue;
      }
      Answer(it->second, Unavailable("the trainer of rank " + std::to_string(it->first) +
                                     " is not seen alive"));
      it = group.callers.erase(it);
    }
  }
}

void Callers::Expire(Instant now,
                     const std::function<Status(const AttemptUuid&, const CallGroup&)>& why) {
  for (auto& [uuid, group] : groups_) {
    std::vector<uint32_t> expired;
    for (const auto& [rank, caller] : group.callers) {
      if (caller.reply && now >= caller.deadline) expired.push_back(rank);
    }
    if (expired.empty()) continue;
    const Status status = why(uuid, group);
    for (const uint32_t rank : expired) {
      Answer(group.callers.at(rank), status);
      group.callers.erase(rank);
    }
  }
}

void Callers::DropIdle(const AttemptUuid& current) {
  std::vector<AttemptUuid> idle;
  for (const auto& [uuid, group] : groups_) {
    const auto waits = [](const auto& entry) { return entry.second.reply != nullptr; };
    if (uuid != current && std::ranges::none_of(group.callers, waits)) idle.push_back(uuid);
  }
  for (const AttemptUuid& uuid : idle) Fail(uuid, Unavailable("nobody waits for it"));
}

Result<RestoreRequest> CommonRequest(const CallGroup& group) {
  const Caller& first = group.callers.begin()->second;
  RestoreRequest request;
  request.mode = static_cast<ResumeMode>(first.request.mode());
  request.exact_step = Step(first.request.exact_step());
  request.drop_state = first.request.drop_state();
  request.fork_job = JobName(first.request.fork_job());
  request.world_size = group.world_size;
  for (const auto& [rank, caller] : group.callers) {
    if (!SameWish(first.request, caller.request)) {
      return InvalidArgument("rank " + std::to_string(rank) +
                             " asks for another resume mode, step or job than rank " +
                             std::to_string(group.callers.begin()->first));
    }
    if (!request.shards.insert(ShardId(caller.request.shard_id())).second) {
      return InvalidArgument("rank " + std::to_string(rank) + " asks for shard " +
                             caller.request.shard_id() + ", which another rank asks for too");
    }
  }
  return request;
}

}  // namespace backstay::recovery
