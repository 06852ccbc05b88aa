#include "replication/replica_receiver.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

constexpr size_t kChecksumBytes = 16;

}  // namespace

ReplicaReceiver::ReplicaReceiver(ShardName name, NodeInstance source, bool repair,
                                 Executor& executor, PeerLink& peers, store::ShardTable& table,
                                 transport::Puller& puller, std::function<void()> on_ended)
    : name_(std::move(name)),
      source_(std::move(source)),
      repair_(repair),
      executor_(executor),
      peers_(peers),
      table_(table),
      puller_(puller),
      on_ended_(std::move(on_ended)),
      last_offer_(executor.Now()) {}

ReplicaReceiver::~ReplicaReceiver() {
  executor_.CancelTimer(timer_);
  for (const transport::PullId pull : pulls_) puller_.Cancel(pull);
  if (grant_) puller_.Release(*grant_);
}

Status ReplicaReceiver::OnOffer(const wire::Offer& offer) {
  last_offer_ = executor_.Now();
  if (state_ != State::kReceiving) return Status::Ok();
  BACKSTAY_ASSIGN_OR_RETURN(transport::Grant grant, FromWire(offer.grant()));
  const store::Shard* shard = table_.Find(name_);
  if (shard == nullptr) return Unavailable("the replica of " + ToString(name_) + " was given up");
  if (offer.used_bytes() != shard->size_bytes || offer.chunk_bytes() != shard->chunk_bytes ||
      grant.size_bytes < shard->size_bytes || grant.owner.node != source_.node) {
    return InvalidArgument("offer of " + ToString(name_) +
                           " that differs from the one before in size or source");
  }
  BACKSTAY_RETURN_IF_ERROR(TakeChecksums(offer, shard->ChunkCount()));
  // The source repeats a grant that its own releases (of an earlier receiver, say) have ended: not
  // taken again, so that the answer asks for another one.
  if (grant.id != ended_grant_) grant_ = std::move(grant);
  if (!offer.manifest().empty()) {
    BACKSTAY_ASSIGN_OR_RETURN(const Hash128 digest, DigestFromWire(offer.digest()));
    BACKSTAY_RETURN_IF_ERROR(table_.AcceptManifest(name_, offer.manifest(), digest));
    offered_.clear();
  }
  Step();
  return Status::Ok();
}

Status ReplicaReceiver::TakeChecksums(const wire::Offer& offer, uint64_t chunk_count) {
  const store::Shard& shard = *table_.Find(name_);
  for (const wire::ReadyChunks& ready : offer.ready()) {
    const uint64_t count = ready.checksums().size() / kChecksumBytes;
    if (ready.checksums().size() % kChecksumBytes != 0 ||
        ready.first_chunk() + count > chunk_count) {
      return InvalidArgument("offer of " + ToString(name_) + " with chunks that it does not have");
    }
    for (uint64_t i = 0; i < count && shard.manifest == nullptr; ++i) {
      const uint64_t chunk = ready.first_chunk() + i;
      if (shard.received[chunk] || in_flight_.contains(chunk)) continue;
      offered_[chunk] = *Hash128::FromBytes(
          std::string_view(ready.checksums()).substr(i * kChecksumBytes, kChecksumBytes));
    }
  }
  return Status::Ok();
}

void ReplicaReceiver::FillReply(wire::OfferReply* reply) const {
  const store::Shard* shard = table_.Find(name_);
  const bool has_manifest = shard != nullptr && shard->manifest != nullptr;
  if (has_manifest) reply->set_digest(shard->digest.ToByteString());
  switch (state_) {
    case State::kReceiving:
      // Without a grant there is nothing to go on with: asks for the offer to begin anew.
      reply->set_state(grant_ ? wire::REPLICA_PULLING : wire::REPLICA_FAILED);
      break;
    case State::kHeld:
      reply->set_state(wire::REPLICA_HELD);
      break;
    case State::kFailed:
      reply->set_state(wire::REPLICA_FAILED);
      break;
  }
}

void ReplicaReceiver::Step() {
  if (state_ != State::kReceiving) return;
  const store::Shard* shard = table_.Find(name_);
  if (shard == nullptr) return Fail(Unavailable("the replica was given up"));
  if (shard->manifest != nullptr && in_flight_.empty() && table_.MissingChunks(name_).empty()) {
    return Hold(*shard);
  }
  if (!grant_ || timer_ != kNoTimer) return;
  for (const Run& run : Wanted(*shard)) {
    if (pulls_.size() >= kPullsInFlightMax) break;
    StartPull(*shard, run);
  }
}

// Runs of chunks that are missing, not under way, and whose checksum is known.
std::vector<ReplicaReceiver::Run> ReplicaReceiver::Wanted(const store::Shard& shard) const {
  const uint64_t run_chunks_max = std::max<uint64_t>(1, kPullBytesMax / shard.chunk_bytes);
  std::vector<Run> runs;
  const auto add = [&](uint64_t chunk) {
    if (in_flight_.contains(chunk)) return;
    if (!runs.empty() && runs.back().first + runs.back().count == chunk &&
        runs.back().count < run_chunks_max) {
      ++runs.back().count;
    } else if (runs.size() < kPullsInFlightMax) {
      runs.push_back({chunk, 1});
    }
  };
  if (shard.manifest != nullptr) {
    for (const uint64_t chunk : table_.MissingChunks(name_)) add(chunk);
  } else {
    for (const auto& [chunk, checksum] : offered_) add(chunk);
  }
  return runs;
}

void ReplicaReceiver::StartPull(const store::Shard& shard, const Run& run) {
  const bool by_manifest = shard.manifest != nullptr;
  transport::PullRequest request;
  request.source = *grant_;
  request.source_offset_bytes = run.first * shard.chunk_bytes;
  request.chunk_bytes = shard.chunk_bytes;
  request.deadline = executor_.Now() + kPullTimeout;
  const std::span<std::byte> first = shard.ChunkBytes(run.first);
  const std::span<std::byte> last = shard.ChunkBytes(run.first + run.count - 1);
  request.target = {first.data(), last.data() + last.size()};
  for (uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
    request.expected.push_back(by_manifest ? shard.manifest->chunk_checksums[chunk]
                                           : offered_.at(chunk));
    offered_.erase(chunk);
    in_flight_.insert(chunk);
  }
  // The pin lives as long as the transport may write, whatever becomes of this object.
  auto pin = std::make_shared<store::ShardPin>(table_.Pin(name_));
  auto id = std::make_shared<transport::PullId>(0);
  Pull pull{run, by_manifest, grant_->id, request.expected};
  *id = puller_.Pull(
      std::move(request),
      [pin, taken = lifetime_.Wrap([this, id, pull](const transport::PullResult& result) {
        pulls_.erase(*id);
        OnPulled(pull, result);
      })](transport::PullResult result) mutable {
        pin->Reset();
        taken(result);
      });
  pulls_.insert(*id);
}

void ReplicaReceiver::OnPulled(const Pull& pull, const transport::PullResult& result) {
  const store::Shard* shard = table_.Find(name_);
  for (uint64_t i = 0; i < pull.run.count; ++i) in_flight_.erase(pull.run.first + i);
  if (state_ != State::kReceiving || shard == nullptr) return Step();
  for (uint64_t i = 0; i < pull.run.count; ++i) {
    const uint64_t chunk = pull.run.first + i;
    switch (result.chunks[i]) {
      case transport::ChunkOutcome::kVerified:
        table_.ChunkReceived(name_, chunk, result.hashes[i]);
        break;
      case transport::ChunkOutcome::kMismatch:
        // Before the seal: written again since; the manifest will say what is right. Against the
        // manifest it counts only if the grant was valid to the end of the read.
        if (pull.by_manifest && result.status.ok()) ++mismatch_count_;
        break;
      case transport::ChunkOutcome::kNotRead:
        if (shard->manifest == nullptr) offered_.try_emplace(chunk, pull.expected[i]);
        break;
    }
  }
  if (mismatch_count_ > kMismatchesMax) {
    return Fail(Corrupt(source_.node.value + "'s copy of " + ToString(name_) +
                        " does not match its manifest"));
  }
  if (!result.status.ok()) return OnPullFailed(pull.grant, result.status);
  failure_count_ = 0;
  Step();
}

void ReplicaReceiver::OnPullFailed(transport::GrantId grant, const Status& status) {
  ++failure_count_;
  if (failure_count_ > kFailuresMax) return Fail(status);
  // A grant that has ended is of no use any more; the source's next offer brings another.
  const bool ended =
      status.code() == StatusCode::kStale || status.code() == StatusCode::kPermission;
  if (ended) ended_grant_ = grant;
  if (ended && grant_ && grant_->id == grant) grant_.reset();
  StepLater(kRetryDelay);
}

void ReplicaReceiver::StepLater(Duration delay) {
  if (timer_ != kNoTimer) return;
  timer_ = executor_.RunAfter(delay, lifetime_.Wrap([this] {
    timer_ = kNoTimer;
    Step();
  }));
}

void ReplicaReceiver::Hold(const store::Shard& shard) {
  const Hash128 digest = shard.digest;
  if (Status status = table_.SealReceived(name_); !status.ok()) return Fail(std::move(status));
  state_ = State::kHeld;
  if (grant_) puller_.Release(*grant_);
  grant_.reset();
  wire::Request request;
  *request.mutable_ack()->mutable_shard() = ToWire(name_);
  request.mutable_ack()->set_digest(digest.ToByteString());
  // Once: if it is lost, the source's next offer is answered the same.
  peers_.Send(name_.job, source_, std::move(request), executor_.Now() + kPullTimeout,
              [](Result<wire::Reply>) {});
  executor_.Post(lifetime_.Wrap([this] { on_ended_(); }));
}

void ReplicaReceiver::Fail(Status status) {
  state_ = State::kFailed;
  trouble_ = std::move(status);
  for (const transport::PullId pull : pulls_) puller_.Cancel(pull);
  if (grant_) puller_.Release(*grant_);
  grant_.reset();
  executor_.Post(lifetime_.Wrap([this] { on_ended_(); }));
}

}  // namespace backstay::replication
