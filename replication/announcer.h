#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/ids.h"
#include "replication/leader_calls.h"
#include "replication/leader_seams.h"
#include "replication/node_record.h"
#include "replication/peer.pb.h"

namespace backstay::replication {

// Brings the job's state to every live node: at each change, again until it is answered, and at
// least every announce_interval, because the answers say who lives there and what was saved.
//
// Thread:  the owning executor.
// Failure: a node that does not answer is told again, ever more slowly; another start of it is told
//          from the beginning. One message to a node is under way at a time; news overtakes one
//          that has been so for kOvertakeAfter: a lost one would hold the node's slots till its
//          deadline.
class Announcer {
 public:
  static constexpr Duration kLookInterval = std::chrono::milliseconds(20);
  static constexpr Duration kOvertakeAfter = std::chrono::milliseconds(100);
  static constexpr uint32_t kInFlightMax = 2;

  // What to tell `node` now; built when it is sent, so that a change costs nothing by itself.
  using MakeState = std::function<wire::JobState(const NodeId& node)>;
  using OnAnswer = std::function<void(const NodeInstance& from, const wire::JobStateReply& answer)>;

  Announcer(const LeaderSeams& seams, const LeaderConfig& config, LeaderCalls& calls,
            MakeState make_state, OnAnswer on_answer);
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  // There is news for everybody.
  void Changed() {
    ++version_;
    look_needed_ = true;
  }
  void SetNodes(const std::map<NodeId, Member>& members);
  void Step();
  // Nodes that have not answered the newest state, for people.
  bool IsAnswering(const NodeId& node) const;

 private:
  struct Listener {
    NodeInstance node;
    uint64_t answered_version = 0;
    uint32_t in_flight = 0;
    uint64_t told_version = 0;
    Instant told_at;
    uint32_t failures = 0;  // Since the last answer.
    Instant next;
    Duration retry_delay{};
  };
  void Tell(Listener& listener);
  void OnReply(const NodeInstance& node, uint64_t version, const Result<wire::Reply>& reply);

  const LeaderSeams seams_;
  const LeaderConfig config_;
  LeaderCalls& calls_;
  const MakeState make_state_;
  const OnAnswer on_answer_;
  uint64_t version_ = 1;
  // Else a step has nothing to do before `next_look_`: most steps of a leader are none of its.
  bool look_needed_ = true;
  Instant next_look_;
  std::map<NodeId, Listener> listeners_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
