#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/ids.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// The fixed words of a job's timeline. Programs may compare them; docs/operations.md explains each.
namespace timeline {
inline constexpr std::string_view kElected = "leader elected";
inline constexpr std::string_view kJobCreated = "job created";
inline constexpr std::string_view kShardAdmitted = "shard admitted";
inline constexpr std::string_view kTrainerReplaced =
    "trainer replaced";                                       // The older one is fenced.
inline constexpr std::string_view kFaultSeen = "fault seen";  // By a rank's communicator.
inline constexpr std::string_view kFenced = "fenced";         // A rank saves no more.
inline constexpr std::string_view kNodeLost = "node lost";    // Its lease ended.
inline constexpr std::string_view kNodeJoined = "node joined";
inline constexpr std::string_view kCommitted = "committed";
inline constexpr std::string_view kFirstCommit = "first commit";  // Of its generation.
inline constexpr std::string_view kAbandoned = "abandoned";
inline constexpr std::string_view kReconfigureCalled =
    "reconfigure called";  // First rank of a uuid.
inline constexpr std::string_view kAllPresent = "all ranks present";
inline constexpr std::string_view kClosing = "closing";
inline constexpr std::string_view kInventory = "inventory taken";
inline constexpr std::string_view kDecided = "decided";
inline constexpr std::string_view kNextAttempt = "moved to an older snapshot";
inline constexpr std::string_view kRestored = "restored";             // One per rank.
inline constexpr std::string_view kRestoreFailed = "restore failed";  // One per rank.
inline constexpr std::string_view kResumed = "resumed";
inline constexpr std::string_view kReconfigureFailed = "reconfigure failed";
inline constexpr std::string_view kUnderProtected = "under-protected";
inline constexpr std::string_view kRepairStarted = "repair started";
inline constexpr std::string_view kRepaired = "repaired";
inline constexpr std::string_view kProtectedAgain = "protected again";
inline constexpr std::string_view kEnded = "ended";
}  // namespace timeline

// What happened to a job, newest last, for people. Bounded: the oldest events give way. It lives in
// the leader's memory; a new leader starts an empty one.
class Timeline {
 public:
  explicit Timeline(const Clock* clock) : clock_(clock) {}

  void Add(std::string_view what, std::string detail, Generation generation);
  // As Add(), for something that was seen elsewhere at `unix_ms`.
  void AddAt(int64_t unix_ms, std::string_view what, std::string detail, Generation generation);

  const std::deque<wire::TimelineEvent>& events() const { return events_; }
  bool Has(std::string_view what, std::string_view detail, Generation generation) const;

  static constexpr size_t kEventsMax = 512;
  static constexpr size_t kDetailBytesMax = 1024;

 private:
  const Clock* clock_;
  std::deque<wire::TimelineEvent> events_;  // By unix_ms.
};

}  // namespace backstay::replication
