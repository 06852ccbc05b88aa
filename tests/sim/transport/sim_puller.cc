#include "tests/sim/transport/sim_puller.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "tests/sim/transport/sim_exporter.h"
#include "transport/pull_request.h"

namespace backstay::sim {

using transport::ChunkOutcome;
using transport::Grant;
using transport::PullCompletion;
using transport::PullId;
using transport::PullRequest;
using transport::PullResult;

SimPuller::SimPuller(SimNetworkTransport* network, const NodeInstance& node)
    : network_(network), node_(node) {
  network_->pullers_.push_back(this);
}

SimPuller::~SimPuller() {
  std::erase(network_->pullers_, this);
  while (!pulls_.empty()) Finish(pulls_.begin()->first, Unavailable("the puller was destroyed"));
}

PullId SimPuller::Pull(PullRequest request, PullCompletion done) {
  const PullId id = ++last_id_;
  ActivePull& pull = pulls_[id];
  pull.result = transport::EmptyPullResult(request);
  pull.request = std::move(request);
  pull.done = std::move(done);
  const Status valid = transport::ValidatePullRequest(pull.request);
  if (!valid.ok() || pull.result.chunks.empty()) {
    Finish(id, valid);
    return id;
  }
  if (pull.request.deadline != kNoDeadline) {
    pull.deadline_timer =
        network_->executor_->RunAt(pull.request.deadline, lifetime_.Wrap([this, id] {
          Finish(id, DeadlineExceeded("the pull's deadline passed before its last chunk"));
        }));
  }
  network_->executor_->RunAfter(network_->options_.latency,
                                lifetime_.Wrap([this, id] { StartChunk(id); }));
  return id;
}

void SimPuller::Cancel(PullId id) { Finish(id, Unavailable("the pull was cancelled")); }

void SimPuller::Release(const Grant& grant) {
  SimNetworkTransport* const network = network_;
  const NodeId reader = node_.node;
  if (network->Draw(network->release_loss_per_million_)) {
    ++network->counters_.releases_lost;
    return;
  }
  // Not bound to this puller's lifetime: a message that was sent arrives after its sender's death.
  network->executor_->RunAfter(network->options_.latency, network->lifetime_.Wrap([=] {
    SimExporter* const exporter = network->StateOf(grant.owner.node).exporter;
    const bool open =
        network->PathBetween(reader, grant.owner.node) == SimNetworkTransport::Path::kOpen;
    if (exporter == nullptr || !open) {
      ++network->counters_.releases_lost;
      return;
    }
    exporter->OnRelease(grant);
  }));
}

void SimPuller::RetryWaiting() {
  std::vector<PullId> waiting;
  for (const auto& [id, pull] : pulls_) {
    if (pull.stall_timer != kNoTimer) waiting.push_back(id);
  }
  for (const PullId id : waiting) StartChunk(id);
}

void SimPuller::StartChunk(PullId id) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  ActivePull& pull = found->second;
  const NodeId& source = pull.request.source.owner.node;
  switch (network_->PathBetween(node_.node, source)) {
    case SimNetworkTransport::Path::kBroken:
      Finish(id, Unavailable("connection to " + source.value + " was refused"));
      return;
    case SimNetworkTransport::Path::kSilent:
      WaitForSource(id, &pull);
      return;
    case SimNetworkTransport::Path::kOpen:
      break;
  }
  network_->executor_->CancelTimer(std::exchange(pull.stall_timer, kNoTimer));
  const uint64_t bytes = transport::ChunkTarget(pull.request, pull.next_chunk).size();
  network_->executor_->RunAt(network_->BookChunk(node_.node, source, bytes),
                             lifetime_.Wrap([this, id] { OnChunkArrived(id); }));
}

void SimPuller::WaitForSource(PullId id, ActivePull* pull) {
  if (pull->stall_timer != kNoTimer) return;
  pull->stall_timer =
      network_->executor_->RunAfter(network_->options_.stall_timeout, lifetime_.Wrap([this, id] {
        if (!pulls_.contains(id)) return;
        ++network_->counters_.pulls_stalled;
        Finish(id, Unavailable("the source sent no byte for the stall timeout"));
      }));
}

void SimPuller::OnChunkArrived(PullId id) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  ActivePull& pull = found->second;
  const Grant& grant = pull.request.source;
  // What was on its way when the path went silent is lost; it is asked for again when the path
  // heals.
  if (network_->PathBetween(node_.node, grant.owner.node) != SimNetworkTransport::Path::kOpen) {
    StartChunk(id);
    return;
  }
  SimExporter* const exporter = network_->StateOf(grant.owner.node).exporter;
  if (exporter == nullptr) {
    Finish(id, Unavailable("nothing serves at " + grant.owner.node.value));
    return;
  }
  const uint64_t offset_bytes =
      pull.request.source_offset_bytes + pull.next_chunk * pull.request.chunk_bytes;
  const uint64_t bytes = transport::ChunkTarget(pull.request, pull.next_chunk).size();
  if (const Status allowed = exporter->Check(grant, offset_bytes, bytes); !allowed.ok()) {
    Finish(id, allowed);
    return;
  }
  TakeChunk(&pull, exporter->Read(grant.id, offset_bytes, bytes));
  if (pull.next_chunk == pull.result.chunks.size()) {
    Finish(id, Status::Ok());
  } else {
    StartChunk(id);
  }
}

void SimPuller::TakeChunk(ActivePull* pull, std::span<const std::byte> source) {
  const uint64_t index = pull->next_chunk++;
  const std::span<std::byte> target = transport::ChunkTarget(pull->request, index);
  std::copy(source.begin(), source.end(), target.begin());
  if (network_->DrawCorruption(pull->request.source.owner.node)) {
    const uint64_t bit = network_->random_->Next() % (target.size() * 8);
    target[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
  ++network_->counters_.chunks_moved;
  network_->counters_.bytes_moved += target.size();
  pull->result.hashes[index] = HashBytes(std::span<const std::byte>(target));
  const bool matches =
      pull->request.expected.empty() || pull->request.expected[index] == pull->result.hashes[index];
  pull->result.chunks[index] = matches ? ChunkOutcome::kVerified : ChunkOutcome::kMismatch;
}

void SimPuller::Finish(PullId id, Status status) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  ActivePull pull = std::move(found->second);
  pulls_.erase(found);
  network_->executor_->CancelTimer(pull.deadline_timer);
  network_->executor_->CancelTimer(pull.stall_timer);
  if (status.code() == StatusCode::kStale) ++network_->counters_.pulls_stale;
  if (status.code() == StatusCode::kUnavailable) ++network_->counters_.pulls_unavailable;
  pull.result.status = std::move(status);
  network_->executor_->Post(
      [done = std::move(pull.done), result = std::move(pull.result)]() mutable {
        done(std::move(result));
      });
}

}  // namespace backstay::sim
