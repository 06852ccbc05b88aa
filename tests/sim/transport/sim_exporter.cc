#include "tests/sim/transport/sim_exporter.h"

#include <utility>

#include "base/check.h"

namespace backstay::sim {

using transport::Grant;
using transport::GrantId;
using transport::Region;

SimExporter::SimExporter(SimNetworkTransport* network, const NodeInstance& node)
    : network_(network), node_(node) {
  network_->StateOf(node_.node).exporter = this;
}

SimExporter::~SimExporter() {
  SimExporter*& current = network_->StateOf(node_.node).exporter;
  if (current == this) current = nullptr;
  for (auto& [id, granted] : grants_) {
    network_->executor_->CancelTimer(granted.expiry_timer);
    network_->executor_->Post(std::move(granted.on_ended));
  }
}

Grant SimExporter::Export(Region region, Deadline expiry, std::function<void()> on_ended) {
  const GrantId id = ++last_id_;
  Granted granted;
  granted.region = region;
  granted.key = network_->random_->Bytes(transport::kGrantKeyBytes);
  granted.on_ended = std::move(on_ended);
  if (expiry != kNoDeadline) {
    granted.expiry_timer =
        network_->executor_->RunAt(expiry, lifetime_.Wrap([this, id] { Revoke(id); }));
  }
  Grant grant;
  grant.id = id;
  grant.owner = node_;
  grant.address = "sim:" + node_.node.value;
  grant.key = granted.key;
  grant.size_bytes = region.bytes.size();
  grants_.emplace(id, std::move(granted));
  return grant;
}

void SimExporter::Revoke(GrantId id) {
  const auto found = grants_.find(id);
  if (found == grants_.end() || found->second.revoked) return;
  found->second.revoked = true;
  // Ending takes a while, and never the same while: whoever reuses the region at once is caught.
  const auto delay_max = static_cast<uint64_t>(network_->options_.latency.count()) * 2 + 1;
  const auto delay = Duration(static_cast<int64_t>(network_->random_->Next() % delay_max));
  network_->executor_->RunAfter(delay, lifetime_.Wrap([this, id] { End(id); }));
}

void SimExporter::End(GrantId id) {
  const auto found = grants_.find(id);
  BACKSTAY_CHECK(found != grants_.end(), "a revoked grant stays until it has ended");
  network_->executor_->CancelTimer(found->second.expiry_timer);
  network_->executor_->Post(std::move(found->second.on_ended));
  grants_.erase(found);
}

Status SimExporter::Check(const Grant& grant, uint64_t offset_bytes, uint64_t size_bytes) const {
  const std::string name = "grant " + std::to_string(grant.id) + " of " + ToString(grant.owner);
  if (grant.owner != node_) return Stale(name + ": the node is now " + ToString(node_));
  const auto found = grants_.find(grant.id);
  if (found == grants_.end()) return Stale(name + " has ended");
  if (found->second.key != grant.key) return PermissionDenied(name + ": the key was not accepted");
  if (found->second.revoked) return Stale(name + " was revoked");
  const uint64_t region_bytes = found->second.region.bytes.size();
  if (offset_bytes > region_bytes || size_bytes > region_bytes - offset_bytes) {
    return InvalidArgument(name + ": " + std::to_string(size_bytes) + " bytes at " +
                           std::to_string(offset_bytes) + " are outside of the region of " +
                           std::to_string(region_bytes));
  }
  return Status::Ok();
}

std::span<const std::byte> SimExporter::Read(GrantId id, uint64_t offset_bytes,
                                             uint64_t size_bytes) {
  return grants_.at(id).region.bytes.subspan(offset_bytes, size_bytes);
}

void SimExporter::OnRelease(const Grant& grant) {
  if (Check(grant, 0, 0).ok()) Revoke(grant.id);
}

}  // namespace backstay::sim
