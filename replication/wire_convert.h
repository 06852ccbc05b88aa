#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"
#include "base/status.h"
#include "replication/peer.pb.h"
#include "transport/transport.h"

// Between the messages of peer.proto and the types of the code. What comes from a message may be
// anything: the From...() functions refuse names and sizes beyond their limits.
namespace backstay::replication {

wire::Instance ToWire(const NodeInstance& instance);
NodeInstance FromWire(const wire::Instance& message);

wire::SnapshotRef ToWire(const SnapshotId& snapshot);
SnapshotId FromWire(const wire::SnapshotRef& message);

// With the job's name, so that it can be read without the header.
wire::ShardRef ToWire(const ShardName& name);
// `job` is the header's. kInvalidArgument: no shard id, or names beyond kNameBytesMax.
Result<ShardName> FromWire(const wire::ShardRef& message, const JobName& job);

wire::Grant ToWire(const transport::Grant& grant);
// kInvalidArgument: no owner, or a key of another length.
Result<transport::Grant> FromWire(const wire::Grant& message);

// kInvalidArgument: not 16 bytes.
Result<Hash128> DigestFromWire(const std::string& bytes);

wire::StatusMessage ToWire(const Status& status);

// In the same order.
bool SameTags(const std::vector<wire::Tag>& a, const std::vector<wire::Tag>& b);

}  // namespace backstay::replication
