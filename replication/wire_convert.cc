#include "replication/wire_convert.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace backstay::replication {
namespace {

// Of an address in a grant: a host name and a port.
constexpr size_t kAddressBytesMax = 512;

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax && name.find('\0') == std::string_view::npos;
}

}  // namespace

wire::Instance ToWire(const NodeInstance& instance) {
  wire::Instance message;
  message.set_node_id(instance.node.value);
  message.set_incarnation(instance.incarnation.value);
  return message;
}

NodeInstance FromWire(const wire::Instance& message) {
  return {NodeId(message.node_id()), Incarnation(message.incarnation())};
}

wire::SnapshotRef ToWire(const SnapshotId& snapshot) {
  wire::SnapshotRef message;
  message.set_generation(snapshot.generation.value);
  message.set_step(snapshot.step.value);
  return message;
}

SnapshotId FromWire(const wire::SnapshotRef& message) {
  return {Generation(message.generation()), Step(message.step())};
}

wire::ShardRef ToWire(const ShardName& name) {
  wire::ShardRef message;
  *message.mutable_snapshot() = ToWire(name.snapshot);
  message.set_shard_id(name.shard.value);
  message.set_job(name.job.value);
  return message;
}

Result<ShardName> FromWire(const wire::ShardRef& message, const JobName& job) {
  ShardName name;
  name.job = message.job().empty() ? job : JobName(message.job());
  name.snapshot = FromWire(message.snapshot());
  name.shard = ShardId(message.shard_id());
  if (!IsName(name.job.value) || !IsName(name.shard.value)) {
    return InvalidArgument("message that names no shard, or with a name of more than " +
                           std::to_string(kNameBytesMax) + " bytes");
  }
  return name;
}

wire::Grant ToWire(const transport::Grant& grant) {
  wire::Grant message;
  message.set_id(grant.id);
  *message.mutable_owner() = ToWire(grant.owner);
  message.set_address(grant.address);
  message.set_key(grant.key);
  message.set_size_bytes(grant.size_bytes);
  return message;
}

Result<transport::Grant> FromWire(const wire::Grant& message) {
  if (!IsName(message.owner().node_id()) || message.key().size() != transport::kGrantKeyBytes ||
      message.address().size() > kAddressBytesMax) {
    return InvalidArgument("message with a malformed grant");
  }
  transport::Grant grant;
  grant.id = message.id();
  grant.owner = FromWire(message.owner());
  grant.address = message.address();
  grant.key = message.key();
  grant.size_bytes = message.size_bytes();
  return grant;
}

Result<Hash128> DigestFromWire(const std::string& bytes) {
  const std::optional<Hash128> digest = Hash128::FromBytes(bytes);
  if (!digest) {
    return InvalidArgument("message with a digest of " + std::to_string(bytes.size()) +
                           " bytes instead of 16");
  }
  return *digest;
}

wire::StatusMessage ToWire(const Status& status) {
  wire::StatusMessage message;
  message.set_code(static_cast<uint32_t>(status.code()));
  message.set_message(status.message());
  return message;
}

bool SameTags(const std::vector<wire::Tag>& a, const std::vector<wire::Tag>& b) {
  return std::ranges::equal(a, b, [](const wire::Tag& x, const wire::Tag& y) {
    return x.name() == y.name() && x.value() == y.value();
  });
}

}  // namespace backstay::replication
