#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// What a node says about itself to all others while it is alive.
struct NodeRecord {
  NodeInstance instance;
  std::string control_address;       // "host:port" of its gRPC server.
  std::string data_address;          // Of the bulk transport, "host:port" for TCP.
  std::vector<std::string> domains;  // Failure domain labels, outermost first.
  std::string boot_id;               // Of the machine's present boot.
  uint64_t memory_budget_bytes = 0;
  bool hosts_simulated = false;  // Nodes of equal boot id may count as different hosts.
  std::string version;           // Of the program, for people.

  friend bool operator==(const NodeRecord&, const NodeRecord&) = default;
};

// A node that the metadata store holds to be alive.
struct Member {
  NodeRecord record;
  Revision create_revision = 0;  // Of its key: names this start of the node in transactions.

  friend bool operator==(const Member&, const Member&) = default;
};

// The nodes that were alive at one revision of the metadata store.
struct MembershipView {
  Revision revision = 0;  // 0: never read. Then `members` says nothing, not "none".
  Instant read_at;        // The store confirmed it no earlier.
  bool current = false;   // False: not confirmed for so long that nobody knows who is alive now.
  std::map<NodeId, Member> members;

  // The member, if this start of the node is alive; null otherwise, also when a later one is.
  const Member* Find(const NodeInstance& instance) const;
  // The member, whatever its start; null when the node is not alive.
  const Member* Find(const NodeId& node) const;
  // A transaction's condition that this start of the node still holds its lease. Nothing when it is
  // not alive in this view: then no transaction may count on it.
  std::optional<Compare> AliveCondition(const NodeInstance& instance) const;
};

inline constexpr size_t kNodeDomainsMax = 16;
inline constexpr size_t kNodeTextBytesMax = 256;  // Of an address, label, boot id or version.

// kInvalidArgument with the limit that `record` breaks.
Status CheckNodeRecord(const NodeRecord& record);
std::string EncodeNodeRecord(const NodeRecord& record);
// kCorrupt when `bytes` are not a record within the limits.
Result<NodeRecord> DecodeNodeRecord(const std::string& bytes);

}  // namespace backstay::replication
