#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "recovery/planner.h"
#include "replication/messenger.h"
#include "replication/peer.pb.h"

namespace backstay::recovery {

// One rank that waits for a reconfiguration's decision.
struct Caller {
  NodeInstance node;
  replication::wire::Reconfigure request;
  Deadline deadline;
  Instant missed_since;              // Its trainer is not seen alive; zero: it is.
  replication::ReplyFunction reply;  // Of its newest call; empty once answered.
};

// The calls of one reconfiguration, by rank.
struct CallGroup {
  uint32_t world_size = 0;
  std::map<uint32_t, Caller> callers;
  std::map<uint32_t, uint64_t> called_by;  // Trainers by rank, also those that are gone since.

  bool AllPresent() const { return world_size != 0 && callers.size() == world_size; }
  std::vector<uint32_t> MissingRanks() const;
};

// "rank 2 has not called", "ranks 1, 3 and 12 more have not called".
std::string DescribeMissingRanks(const std::vector<uint32_t>& missing);

// Who has called for which reconfiguration.
//
// A trainer's later call supersedes its earlier one, and with it the whole earlier reconfiguration:
// that trainer will never be part of it. Which is the later one says its number, not its arrival.
// Attack: uuid 1 arrives late, after uuid 2, or after uuid 2 was decided and forgotten here.
//
// Thread:  the owning executor. Replies may run inside the methods.
// Memory:  bounded by kGroupsMax, kSupersededMax, the ranks of each world, and the trainers that
//          have called within kCallKept.
class Callers {
 public:
  static constexpr size_t kGroupsMax = 64;
  static constexpr size_t kSupersededMax = 1024;
  static constexpr Duration kTimeoutMax = std::chrono::hours(24);
  // How long the number of a trainer's newest call is known here. A message lives shorter, and the
  // nodes tell of the calls of trainers that live longer.
  static constexpr Duration kCallKept = std::chrono::minutes(10);

  // Answers calls that can be refused at once: kStale, kInvalidArgument. True: the call was taken;
  // its reply is kept. `is_claimant`: the rank's shard is this trainer's now, so that what another
  // one has called for as this rank will never be complete.
  bool Add(const NodeInstance& from, const replication::wire::Reconfigure& request,
           bool is_claimant, Instant now, replication::ReplyFunction reply);
  CallGroup* Find(const AttemptUuid& uuid);
  const std::map<AttemptUuid, CallGroup>& groups() const { return groups_; }

  // Answers all of a group and forgets it.
  void Fail(const AttemptUuid& uuid, const Status& why);
  void FailAll(const Status& why);
  // Forgets what kCallKept says.
  void DropOldCalls(Instant now);
  // Forgets callers whose trainer or node `is_gone`.
  void DropGone(const std::function<bool(Caller&)>& is_gone);
  // Answers callers whose deadline has passed, with what `why` says of their group.
  void Expire(Instant now, const std::function<Status(const AttemptUuid&, const CallGroup&)>& why);
  // Forgets groups but `current` that nobody waits in.
  void DropIdle(const AttemptUuid& current);

  std::vector<AttemptUuid> superseded() const { return {superseded_.begin(), superseded_.end()}; }
  bool IsSuperseded(const AttemptUuid& uuid) const;

 private:
  Status Check(const replication::wire::Reconfigure& request) const;
  void Supersede(const AttemptUuid& uuid, const AttemptUuid& by);
  void SupersedeOfOthers(const replication::wire::Reconfigure& request);

  struct NewestCall {
    uint64_t call = 0;
    AttemptUuid uuid;
    Instant at;
  };
  std::map<AttemptUuid, CallGroup> groups_;
  std::map<uint64_t, NewestCall> newest_of_;  // By trainer.
  std::deque<AttemptUuid> superseded_;        // Newest last.
};

// What the ranks of a complete group ask for, or why they cannot be meant together.
Result<RestoreRequest> CommonRequest(const CallGroup& group);

}  // namespace backstay::recovery
