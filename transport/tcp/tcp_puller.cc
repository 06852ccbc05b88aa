#include "transport/tcp/tcp_puller.h"

#include <utility>

#include "transport/pull_request.h"

namespace backstay::transport {

TcpPuller::TcpPuller(Executor* executor, TcpPullerOptions options) : executor_(executor) {
  lane_options_.store = std::move(options.store);
  lane_options_.reader = std::move(options.node);
  lane_options_.lane_count = options.lane_count;
  lane_options_.receive_buffer_bytes = options.receive_buffer_bytes;
  lane_options_.connect_timeout = options.connect_timeout;
  lane_options_.stall_timeout = options.stall_timeout;
  lane_options_.idle_timeout = options.idle_timeout;
}

TcpPuller::~TcpPuller() {
  peers_.clear();
  for (const auto& [id, tracked] : pulls_) executor_->CancelTimer(tracked.deadline_timer);
}

PullId TcpPuller::Pull(PullRequest request, PullCompletion done) {
  const PullId id = ++last_id_;
  auto pull = std::make_shared<ActivePull>();
  pull->result = EmptyPullResult(request);
  pull->request = std::move(request);
  // Runs on the executor even when the puller is gone by then. Moves `done` there: a copy left
  // behind would be destroyed, with what it captured, on a lane's thread.
  pull->complete = [executor = executor_, done = std::move(done),
                    forget =
                        lifetime_.Wrap([this, id] { Forget(id); })](PullResult result) mutable {
    executor->Post(
        [done = std::move(done), forget = std::move(forget), result = std::move(result)]() mutable {
          forget();
          done(std::move(result));
        });
  };
  const Status valid = ValidatePullRequest(pull->request);
  if (!valid.ok() || pull->result.chunks.empty()) {
    pull->result.status = valid;
    pull->complete(std::move(pull->result));
    return id;
  }
  Tracked& tracked = pulls_[id];
  tracked.pull = pull;
  tracked.peer = PeerOf(pull->request.source);
  if (pull->request.deadline != kNoDeadline) {
    tracked.deadline_timer = executor_->RunAt(pull->request.deadline, lifetime_.Wrap([this, id] {
      End(id, DeadlineExceeded("the pull's deadline passed before its last chunk"));
    }));
  }
  tracked.peer->Add(pull);
  return id;
}

void TcpPuller::Cancel(PullId id) { End(id, Unavailable("the pull was cancelled")); }

void TcpPuller::Release(const Grant& grant) {
  if (grant.key.size() == kGrantKeyBytes) PeerOf(grant)->Release(grant);
}

TcpPullerStats TcpPuller::Stats() const {
  const std::lock_guard lock(counters_.mutex);
  TcpPullerStats stats;
  stats.releases_dropped = counters_.releases_dropped;
  stats.peers = counters_.peers;
  for (const auto& [node, peer] : stats.peers) {
    stats.total.bytes_read += peer.bytes_read;
    stats.total.lanes_open += peer.lanes_open;
    stats.total.lanes_failed += peer.lanes_failed;
    stats.total.connects_failed += peer.connects_failed;
  }
  return stats;
}

PeerLanes* TcpPuller::PeerOf(const Grant& grant) {
  PeerKey key(grant.address, grant.owner);
  const auto found = peers_.find(key);
  if (found != peers_.end()) return found->second.get();
  // Nodes come back under new starts and addresses: the old ones leave when a new one appears.
  // Those that a pull's bookkeeping still refers to stay.
  std::erase_if(peers_, [this](const auto& entry) {
    for (const auto& [id, tracked] : pulls_) {
      if (tracked.peer == entry.second.get()) return false;
    }
    return entry.second->Unused();
  });
  auto& peer = peers_[std::move(key)];
  peer = std::make_unique<PeerLanes>(grant.owner, grant.address, &lane_options_, &counters_);
  return peer.get();
}

void TcpPuller::End(PullId id, const Status& status) {
  const auto found = pulls_.find(id);
  if (found != pulls_.end()) found->second.peer->End(found->second.pull, status);
}

void TcpPuller::Forget(PullId id) {
  const auto found = pulls_.find(id);
  if (found == pulls_.end()) return;
  executor_->CancelTimer(found->second.deadline_timer);
  pulls_.erase(found);
}

}  // namespace backstay::transport
