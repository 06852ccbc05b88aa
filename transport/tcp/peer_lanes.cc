#include "transport/tcp/peer_lanes.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "transport/pull_request.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/lane.h"

namespace backstay::transport {

static_assert(kReadBytesTarget <= kReadBytesMax);
static_assert(kLaneWindowBytes >= kLaneReadsMin * kReadBytesTarget);

std::span<std::byte> ActivePull::TargetOf(const ChunkRun& run) const {
  const uint64_t begin = run.first_chunk * request.chunk_bytes;
  return request.target.subspan(
      begin, std::min(run.chunk_count * request.chunk_bytes, request.target.size() - begin));
}

PeerLanes::PeerLanes(NodeInstance owner, std::string address, const LaneOptions* options,
                     PullerCounters* counters)
    : owner_(std::move(owner)),
      address_(std::move(address)),
      options_(options),
      counters_(counters) {}

template <typename F>
void PeerLanes::Count(F change) {
  const std::lock_guard lock(counters_->mutex);
  change(counters_->peers[owner_.node]);
}

PeerLanes::~PeerLanes() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    const auto active = active_;
    for (const auto& pull : active) EndLocked(pull, Unavailable("the puller was destroyed"));
    for (const auto& lane : lanes_) {
      eventfd_write(lane->wake.get(), 1);
      if (lane->socket >= 0) shutdown(lane->socket, SHUT_RDWR);
    }
    work_.notify_all();
  }
  // No method runs any more but those of the lanes, which do not touch the list.
  for (const auto& lane : lanes_) lane->thread.join();
}

void PeerLanes::Add(const std::shared_ptr<ActivePull>& pull) {
  const std::lock_guard lock(mutex_);
  active_.push_back(pull);
  Queue(pull);
  StartLanes(CeilDiv(pull->request.target.size(), kReadBytesTarget));
  work_.notify_all();
}

void PeerLanes::End(const std::shared_ptr<ActivePull>& pull, const Status& status) {
  const std::lock_guard lock(mutex_);
  EndLocked(pull, status);
  InterruptLanesOf(pull.get());
}

void PeerLanes::Release(const Grant& grant) {
  const std::lock_guard lock(mutex_);
  if (releases_.size() >= kReleasesQueuedMax) {
    releases_.pop_front();
    const std::lock_guard counters_lock(counters_->mutex);
    ++counters_->releases_dropped;
  }
  releases_.push_back(grant);
  StartLanes(1);
  work_.notify_one();
}

bool PeerLanes::Unused() {
  const std::lock_guard lock(mutex_);
  JoinFinished();
  return lanes_.empty() && active_.empty() && releases_.empty();
}

void PeerLanes::JoinFinished() {
  std::erase_if(lanes_, [](const std::unique_ptr<LaneState>& lane) {
    // A finished lane's thread takes the mutex no more, so this does not wait for anything that
    // waits for us.
    if (lane->finished) lane->thread.join();
    return lane->finished;
  });
}

void PeerLanes::StartLanes(uint64_t read_count) {
  JoinFinished();
  const uint64_t wanted = std::min<uint64_t>(read_count, std::max(options_->lane_count, 1u));
  while (lanes_.size() < wanted) {
    auto lane = std::make_unique<LaneState>();
    lane->wake.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    LaneState* const state = lane.get();
    try {
      lane->thread = std::thread([this, state] { Lane(this, state).Run(); });
    } catch (const std::system_error& error) {
      OnNoThread(Unavailable(std::string("cannot start a lane's thread: ") + error.what()));
      return;
    }
    lanes_.push_back(std::move(lane));
  }
}

void PeerLanes::OnNoThread(const Status& status) {
  LogOnce(status);
  // Fewer lanes than wanted do as well; without any, nobody would ever serve these pulls.
  if (!lanes_.empty()) return;
  const auto active = active_;
  for (const auto& pull : active) EndLocked(pull, status);
  releases_.clear();
}

bool PeerLanes::WaitForWork(LaneState* lane) {
  std::unique_lock lock(mutex_);
  const bool work = work_.wait_for(lock, options_->idle_timeout, [this] {
    return stopping_ || !with_work_.empty() || !releases_.empty();
  });
  if (work && !stopping_) return true;
  FinishLocked(lane);
  return false;
}

void PeerLanes::FinishLocked(LaneState* lane) {
  lane->finished = true;
  if (lane->socket < 0) return;
  lane->socket = -1;
  Count([](PeerReadCounts& peer) { --peer.lanes_open; });
}

void PeerLanes::Queue(const std::shared_ptr<ActivePull>& pull) {
  if (!pull->has_work()) return;
  if (std::find(with_work_.begin(), with_work_.end(), pull) == with_work_.end()) {
    with_work_.push_back(pull);
  }
}

ChunkRun PeerLanes::NextRun(ActivePull* pull) {
  if (!pull->returned.empty()) {
    const ChunkRun run = pull->returned.back();
    pull->returned.pop_back();
    return run;
  }
  const uint64_t chunks_of_read =
      std::max<uint64_t>(kReadBytesTarget / pull->request.chunk_bytes, 1);
  const uint64_t left = pull->result.chunks.size() - pull->next_chunk;
  const ChunkRun run{pull->next_chunk, std::min(chunks_of_read, left)};
  pull->next_chunk += run.chunk_count;
  return run;
}

std::optional<LaneRead> PeerLanes::Take(LaneState* lane) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || with_work_.empty()) return std::nullopt;
  const std::shared_ptr<ActivePull> pull = std::move(with_work_.front());
  with_work_.pop_front();
  const LaneRead read{pull, NextRun(pull.get())};
  ++pull->reads_outstanding;
  lane->reads.push_back(read);
  Queue(pull);
  return read;
}

std::optional<Grant> PeerLanes::TakeRelease() {
  const std::lock_guard lock(mutex_);
  if (releases_.empty()) return std::nullopt;
  Grant grant = std::move(releases_.front());
  releases_.pop_front();
  return grant;
}

void PeerLanes::OnReadEnd(LaneState* lane, LaneReadResult result) {
  // First, so that who sees the pull's completion sees its bytes counted.
  Count([&](PeerReadCounts& peer) { peer.bytes_read += result.bytes; });
  const std::lock_guard lock(mutex_);
  const LaneRead read = std::move(lane->reads.front());
  lane->reads.pop_front();
  BACKSTAY_CHECK(result.outcomes.size() <= read.run.chunk_count, "a read reports its own chunks");
  const auto begin = static_cast<std::ptrdiff_t>(read.run.first_chunk);
  PullResult& whole = read.pull->result;
  std::copy(result.outcomes.begin(), result.outcomes.end(), whole.chunks.begin() + begin);
  std::copy(result.hashes.begin(), result.hashes.end(), whole.hashes.begin() + begin);
  --read.pull->reads_outstanding;
  // Its other reads are answered soon, in order, so the lanes stay open.
  if (!result.status.ok()) EndLocked(read.pull, result.status);
  CompleteIfOver(read.pull);
}

void PeerLanes::OnConnected(LaneState* lane, int socket) {
  const std::lock_guard lock(mutex_);
  lane->socket = socket;
  lane->interrupted = false;
  last_logged_.clear();
  if (stopping_) shutdown(socket, SHUT_RDWR);
  Count([](PeerReadCounts& peer) { ++peer.lanes_open; });
}

void PeerLanes::OnConnectFailed(LaneState* lane, const Status& status) {
  const std::lock_guard lock(mutex_);
  FinishLocked(lane);
  if (stopping_) return;
  Count([](PeerReadCounts& peer) { ++peer.connects_failed; });
  LogOnce(status);
  // With another lane connected the peer is alive and only wants fewer lanes.
  const bool others = std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& other) {
    return other->socket >= 0 && !other->finished;
  });
  if (others) return;
  const auto active = active_;
  for (const auto& pull : active) EndLocked(pull, status);
  releases_.clear();
}

void PeerLanes::OnDisconnect(LaneState* lane) {
  const std::lock_guard lock(mutex_);
  lane->socket = -1;
  Count([](PeerReadCounts& peer) { --peer.lanes_open; });
}

void PeerLanes::OnLaneFailed(LaneState* lane, const Status& status, bool retry) {
  const std::lock_guard lock(mutex_);
  const bool ours = std::exchange(lane->interrupted, false);
  if (!ours && !retry && !stopping_) {
    LogOnce(status);
    Count([](PeerReadCounts& peer) { ++peer.lanes_failed; });
  }
  const std::deque<LaneRead> reads = std::exchange(lane->reads, {});
  for (const LaneRead& read : reads) {
    --read.pull->reads_outstanding;
    if (!read.pull->ended.has_value()) read.pull->returned.push_back(read.run);
  }
  for (const LaneRead& read : reads) {
    if (ours || retry) {
      Queue(read.pull);
    } else {
      EndLocked(read.pull, status);
      InterruptLanesOf(read.pull.get());
    }
    CompleteIfOver(read.pull);
  }
  work_.notify_all();
}

void PeerLanes::EndLocked(const std::shared_ptr<ActivePull>& pull, const Status& status) {
  if (pull->ended.has_value()) return;
  pull->ended = status;
  std::erase(with_work_, pull);
  CompleteIfOver(pull);
}

void PeerLanes::InterruptLanesOf(const ActivePull* pull) {
  for (const auto& lane : lanes_) {
    const bool reads_for_it =
        std::any_of(lane->reads.begin(), lane->reads.end(),
                    [&](const LaneRead& read) { return read.pull.get() == pull; });
    if (!reads_for_it || lane->socket < 0) continue;
    lane->interrupted = true;
    shutdown(lane->socket, SHUT_RDWR);
  }
}

void PeerLanes::CompleteIfOver(const std::shared_ptr<ActivePull>& pull) {
  if (pull->reads_outstanding > 0 || pull->has_work() || !pull->complete) return;
  std::erase(active_, pull);
  pull->result.status = pull->ended.value_or(Status::Ok());
  std::exchange(pull->complete, nullptr)(std::move(pull->result));
}

void PeerLanes::LogOnce(const Status& status) {
  if (status.message() == last_logged_) return;
  last_logged_ = status.message();
  Log(LogLevel::kWarning, "a data lane failed",
      {{"owner", ToString(owner_)}, {"address", address_}, {"why", status.ToString()}});
}

}  // namespace backstay::transport
