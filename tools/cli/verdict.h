#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "tools/admin/admin.pb.h"

namespace backstay::tools {

// Snapshots that a job has, as its leader tells them or, without one, as they are recorded.
struct LastCommit {
  SnapshotId snapshot;
  int64_t committed_unix_ms = 0;
  std::string root;
  uint64_t bytes = 0;
  size_t node_count = 0;  // That hold it; 0: not known.
};
std::optional<LastCommit> FindLastCommit(const wire::JobReply& job);

// The newest snapshot that is above the last commit: being saved or given up. Null: there is none.
const replication::wire::SnapshotStatus* FindUncommitted(const wire::JobReply& job);

enum class Condition {
  kFine,
  kEmpty,  // Nothing is committed, and nothing is wrong.
  kEnded,
  kFenced,         // A rank saw a fault, and none has called for a reconfiguration yet.
  kReconfiguring,  // Waits for ranks.
  kStuck,          // The newest save does not get committed, or the job does not get going again.
  kAtRisk,         // Fewer replicas than wanted.
  kLost,           // Some committed shard has no holder.
  kUnknown,        // Whoever leads the job does not answer.
};
// "fine", "nothing yet", "ended", "fenced", "reconfiguring", "stuck", "at risk", "lost", "unknown".
std::string ConditionName(Condition condition);

struct Verdict {
  Condition condition = Condition::kFine;
  std::string text;  // "fine: step 120 was committed 3.2 s ago ...".
  bool ok() const { return condition <= Condition::kReconfiguring; }
};

// The one line that an engineer on call reads first. Pure.
Verdict Judge(const wire::JobReply& job);

// "rank 3", "ranks 0, 2", "all 4 ranks" of a world of 4 (if more than one), and of many the first
// and "... and 90 more". `ranks` is not empty.
std::string RanksText(const google::protobuf::RepeatedField<uint32_t>& ranks, uint32_t world_size);

// A save is overdue after this, or after kOverdueFactor times what the last commit took.
inline constexpr int64_t kOverdueMinMs = 10'000;
inline constexpr int64_t kOverdueFactor = 3;

// A job that is fenced or reconfiguring for longer than this does not get going by itself: a
// replacement's start and the restore of all bytes have had their time.
inline constexpr int64_t kInterruptedOverdueMs = 300'000;

}  // namespace backstay::tools
