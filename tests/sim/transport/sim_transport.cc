#include "tests/sim/transport/sim_transport.h"

#include <algorithm>

#include "base/check.h"
#include "tests/sim/transport/sim_exporter.h"
#include "tests/sim/transport/sim_puller.h"

namespace backstay::sim {

namespace {

std::pair<NodeId, NodeId> Ordered(const NodeId& a, const NodeId& b) {
  return a < b ? std::pair(a, b) : std::pair(b, a);
}

}  // namespace

SimNetworkTransport::SimNetworkTransport(Executor* executor, Random* random,
                                         SimNetworkOptions options)
    : executor_(executor), random_(random), options_(options) {}

SimNetworkTransport::~SimNetworkTransport() {
  BACKSTAY_CHECK(pullers_.empty(), "the network outlives its pullers");
}

std::unique_ptr<transport::Exporter> SimNetworkTransport::MakeExporter(const NodeInstance& node) {
  return std::make_unique<SimExporter>(this, node);
}

std::unique_ptr<transport::Puller> SimNetworkTransport::MakePuller(const NodeInstance& node) {
  return std::make_unique<SimPuller>(this, node);
}

void SimNetworkTransport::SetDown(const NodeId& node, bool down) {
  StateOf(node).down = down;
  FaultsChanged();
}

void SimNetworkTransport::SetPartitioned(const NodeId& a, const NodeId& b, bool partitioned) {
  if (partitioned) {
    partitions_.insert(Ordered(a, b));
  } else {
    partitions_.erase(Ordered(a, b));
  }
  FaultsChanged();
}

void SimNetworkTransport::SetStalled(const NodeId& node, bool stalled) {
  StateOf(node).stalled = stalled;
  FaultsChanged();
}

void SimNetworkTransport::SetSlowdown(const NodeId& node, uint32_t factor) {
  StateOf(node).slowdown = std::max<uint32_t>(factor, 1);
}

void SimNetworkTransport::CorruptNextChunks(const NodeId& source, uint64_t chunk_count) {
  StateOf(source).corrupt_next_chunks = chunk_count;
}

void SimNetworkTransport::SetCorruptPerMillion(uint32_t chunks_per_million) {
  corrupt_per_million_ = chunks_per_million;
}

void SimNetworkTransport::SetReleaseLossPerMillion(uint32_t releases_per_million) {
  release_loss_per_million_ = releases_per_million;
}

SimNetworkTransport::Path SimNetworkTransport::PathBetween(const NodeId& reader,
                                                           const NodeId& source) {
  const NodeState& from = StateOf(source);
  const NodeState& to = StateOf(reader);
  // A partition hides whether the other side still lives.
  if (partitions_.contains(Ordered(reader, source))) return Path::kSilent;
  if (from.down || to.down) return Path::kBroken;
  return from.stalled || to.stalled ? Path::kSilent : Path::kOpen;
}

Instant SimNetworkTransport::BookChunk(const NodeId& reader, const NodeId& source, uint64_t bytes) {
  NodeState& from = StateOf(source);
  NodeState& to = StateOf(reader);
  const auto wire_time = [&](uint32_t slowdown) {
    // In double: bytes * 1e9 overflows 64 bits for large chunks on slow nodes, and a nanosecond
    // does not matter.
    return Duration(static_cast<int64_t>(static_cast<double>(bytes) * 1e9 * slowdown /
                                         static_cast<double>(options_.bytes_per_second)));
  };
  const Instant begin = std::max({executor_->Now(), from.sends_free_at, to.receives_free_at});
  from.sends_free_at = begin + wire_time(from.slowdown);
  to.receives_free_at = begin + wire_time(to.slowdown);
  return std::max(from.sends_free_at, to.receives_free_at) + options_.latency;
}

bool SimNetworkTransport::DrawCorruption(const NodeId& source) {
  NodeState& from = StateOf(source);
  bool corrupt = corrupt_per_million_ > 0 && Draw(corrupt_per_million_);
  if (from.corrupt_next_chunks > 0) {
    --from.corrupt_next_chunks;
    corrupt = true;
  }
  if (corrupt) ++counters_.chunks_corrupted;
  return corrupt;
}

void SimNetworkTransport::FaultsChanged() {
  for (SimPuller* puller : pullers_) puller->RetryWaiting();
}

}  // namespace backstay::sim
