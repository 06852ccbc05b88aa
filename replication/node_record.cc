#include "replication/node_record.h"

#include <string_view>
#include <utility>

#include "replication/metadata_keys.h"
#include "replication/metadata_records.pb.h"

namespace backstay::replication {
namespace {

Status CheckText(std::string_view what, std::string_view text) {
  if (text.size() <= kNodeTextBytesMax) return Status::Ok();
  return InvalidArgument("a node's " + std::string(what) + " has " + std::to_string(text.size()) +
                         " bytes; the limit is " + std::to_string(kNodeTextBytesMax));
}

}  // namespace

const Member* MembershipView::Find(const NodeInstance& instance) const {
  const Member* member = Find(instance.node);
  return member != nullptr && member->record.instance == instance ? member : nullptr;
}

const Member* MembershipView::Find(const NodeId& node) const {
  const auto found = members.find(node);
  return found == members.end() ? nullptr : &found->second;
}

std::optional<Compare> MembershipView::AliveCondition(const NodeInstance& instance) const {
  const Member* member = Find(instance);
  if (member == nullptr) return std::nullopt;
  return Compare{.key = NodeKey(instance.node),
                 .target = Compare::Target::kCreateRevision,
                 .revision = member->create_revision};
}

Status CheckNodeRecord(const NodeRecord& record) {
  BACKSTAY_RETURN_IF_ERROR(CheckName("node", record.instance.node.value));
  BACKSTAY_RETURN_IF_ERROR(CheckText("control address", record.control_address));
  BACKSTAY_RETURN_IF_ERROR(CheckText("data address", record.data_address));
  BACKSTAY_RETURN_IF_ERROR(CheckText("boot id", record.boot_id));
  BACKSTAY_RETURN_IF_ERROR(CheckText("version", record.version));
  if (record.domains.size() > kNodeDomainsMax) {
    return InvalidArgument("a node has " + std::to_string(record.domains.size()) +
                           " failure domain labels; the limit is " +
                           std::to_string(kNodeDomainsMax));
  }
  for (const std::string& domain : record.domains) {
    if (domain.empty()) return InvalidArgument("a node's failure domain label is empty");
    BACKSTAY_RETURN_IF_ERROR(CheckText("failure domain label", domain));
  }
  return Status::Ok();
}

std::string EncodeNodeRecord(const NodeRecord& record) {
  wire::NodeRecord message;
  message.set_node_id(record.instance.node.value);
  message.set_incarnation(record.instance.incarnation.value);
  message.set_control_address(record.control_address);
  message.set_data_address(record.data_address);
  for (const std::string& domain : record.domains) message.add_domains(domain);
  message.set_boot_id(record.boot_id);
  message.set_memory_budget_bytes(record.memory_budget_bytes);
  message.set_hosts_simulated(record.hosts_simulated);
  message.set_version(record.version);
  return message.SerializeAsString();
}

Result<NodeRecord> DecodeNodeRecord(const std::string& bytes) {
  wire::NodeRecord message;
  if (!message.ParseFromString(bytes)) return Corrupt("a node's record cannot be read");
  NodeRecord record{.instance = {NodeId(message.node_id()), Incarnation(message.incarnation())},
                    .control_address = message.control_address(),
                    .data_address = message.data_address(),
                    .domains = {message.domains().begin(), message.domains().end()},
                    .boot_id = message.boot_id(),
                    .memory_budget_bytes = message.memory_budget_bytes(),
                    .hosts_simulated = message.hosts_simulated(),
                    .version = message.version()};
  if (const Status status = CheckNodeRecord(record); !status.ok()) {
    return Corrupt("a node's record is out of bounds: " + status.message());
  }
  if (record.instance.incarnation.value == 0) return Corrupt("a node's record has no incarnation");
  return record;
}

}  // namespace backstay::replication
