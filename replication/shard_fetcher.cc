#include "replication/shard_fetcher.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "replication/wire_convert.h"

namespace backstay::replication {

ShardFetcher::ShardFetcher(ShardName name, std::optional<Hash128> digest,
                           std::vector<NodeInstance> sources, Executor& executor, PeerLink& peers,
                           store::ShardTable& table, transport::Puller& puller, ReserveSlot reserve,
                           Observer observer)
    : name_(std::move(name)),
      digest_(digest),
      executor_(executor),
      peers_(peers),
      table_(table),
      puller_(puller),
      reserve_(std::move(reserve)),
      observer_(std::move(observer)) {
  for (const NodeInstance& node : sources) {
    if (sources_.size() == kSourcesMax) break;
    Source& source = sources_.emplace_back();
    source.node = node;
  }
  executor_.Post(lifetime_.Wrap([this] { Step(); }));
}

ShardFetcher::~ShardFetcher() {
  executor_.CancelTimer(timer_);
  for (const auto& [id, pull] : pulls_) puller_.Cancel(id);
  ReleaseSources();
}

void ShardFetcher::ReleaseSources() {
  for (Source& source : sources_) {
    if (!source.grant) continue;
    puller_.Release(*source.grant);
    source.grant.reset();
    // By message too: a lost release would keep the source from letting go of the shard.
    wire::Request request;
    *request.mutable_release()->mutable_shard() = ToWire(name_);
    peers_.Send(name_.job, source.node, std::move(request), executor_.Now() + kOpenTimeout,
                [](Result<wire::Reply>) {});
  }
}

std::vector<NodeId> ShardFetcher::ContributingNodes() const {
  std::vector<NodeId> nodes;
  for (const Source& source : sources_) {
    if (source.bytes != 0) nodes.push_back(source.node.node);
  }
  return nodes;
}

void ShardFetcher::WantAll() {
  whole_ = true;
  Want(0, kShardChunksMax);
}

void ShardFetcher::Want(uint64_t first_chunk, uint64_t chunk_count) {
  if (state_ == State::kOpening) {
    wanted_before_open_.emplace_back(first_chunk, chunk_count);
    return;
  }
  const store::Shard* shard = table_.Find(name_);
  if (state_ != State::kReading || shard == nullptr) return;
  const uint64_t end = std::min(shard->ChunkCount(), first_chunk + chunk_count);
  for (uint64_t chunk = first_chunk; chunk < end; ++chunk) {
    if (!shard->received[chunk] && !in_flight_.contains(chunk)) wanted_.insert(chunk);
  }
  executor_.Post(lifetime_.Wrap([this] { Step(); }));
}

void ShardFetcher::Step() {
  if (state_ == State::kSealed || state_ == State::kFailed) return;
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (source.state == SourceState::kClosed && executor_.Now() >= source.next_open) Open(i);
    if (source.verify == VerifyState::kDue && executor_.Now() >= source.next_verify) {
      AskToVerify(i);
    }
  }
  if (state_ == State::kReading) {
    CancelSlow();
    StartPulls();
    if (whole_ && in_flight_.empty() && wanted_.empty() && table_.MissingChunks(name_).empty()) {
      if (Status status = table_.SealReceived(name_); !status.ok()) return Fail(std::move(status));
      state_ = State::kSealed;
      ReleaseSources();
      executor_.Post(lifetime_.Wrap([this] { observer_.on_ended(); }));
      return;
    }
  }
  FailHopeless();
  if (state_ == State::kFailed) return;
  executor_.CancelTimer(timer_);
  timer_ = executor_.RunAfter(kCheckInterval, lifetime_.Wrap([this] {
    timer_ = kNoTimer;
    Step();
  }));
}

// ---- Sources ------------------------------------------------------------------------------------

void ShardFetcher::Open(size_t index) {
  Source& source = sources_[index];
  source.state = SourceState::kOpening;
  ++source.open_count;
  wire::Request request;
  *request.mutable_open_shard()->mutable_shard() = ToWire(name_);
  if (digest_) request.mutable_open_shard()->set_digest(digest_->ToByteString());
  peers_.Send(name_.job, source.node, std::move(request), executor_.Now() + kOpenTimeout,
              lifetime_.Wrap(
                  [this, index](Result<wire::Reply> reply) { OnOpened(index, std::move(reply)); }));
}

void ShardFetcher::OnOpened(size_t index, Result<wire::Reply> reply) {
  Source& source = sources_[index];
  if (state_ == State::kSealed || state_ == State::kFailed) {
    if (reply.ok()) {
      const Result<transport::Grant> late = FromWire(reply->open_shard().grant());
      if (late.ok()) puller_.Release(*late);
    }
    return;
  }
  if (!reply.ok()) {
    switch (reply.status().code()) {
      case StatusCode::kNotFound:
      case StatusCode::kCorrupt:
      case StatusCode::kStale:  // Another start of the node: it has lost its memory.
      case StatusCode::kInvalidArgument:
        LoseSource(source, reply.status());
        break;
      default:
        CloseSource(source, reply.status());
        break;
    }
    return Step();
  }
  const wire::OpenShardReply& opened = reply->open_shard();
  Result<transport::Grant> grant = FromWire(opened.grant());
  const Result<Hash128> digest = DigestFromWire(opened.digest());
  if (!grant.ok() || !digest.ok() || store::ManifestDigest(opened.manifest()) != *digest ||
      (digest_ && *digest_ != *digest)) {
    LoseSource(source, Corrupt(source.node.node.value + " answered with a manifest of " +
                               ToString(name_) + " that does not match its digest"));
    return Step();
  }
  digest_ = *digest;
  source.state = SourceState::kOpen;
  source.grant = std::move(grant).value();
  if (state_ == State::kOpening && manifest_.empty()) OnManifest(opened);
  Step();
}

void ShardFetcher::OnManifest(const wire::OpenShardReply& opened) {
  const Result<store::Manifest> manifest = store::DecodeManifest(opened.manifest());
  if (!manifest.ok()) return Fail(manifest.status());
  if (manifest->name != name_) {
    return Fail(Corrupt("asked for " + ToString(name_) + " and got the manifest of " +
                        ToString(manifest->name)));
  }
  manifest_ = opened.manifest();
  reserve_(
      manifest->size_bytes, manifest->chunk_bytes,
      lifetime_.Wrap([this, size_bytes = manifest->size_bytes, chunk_bytes = manifest->chunk_bytes](
                         const Result<store::ReservationId>& reservation) {
        if (state_ != State::kOpening) return;  // It has failed meanwhile.
        if (!reservation.ok()) return Fail(reservation.status());
        const Result<const store::Shard*> shard =
            table_.BeginReceive({.name = name_,
                                 .role = store::ShardRole::kFetched,
                                 .size_bytes = size_bytes,
                                 .chunk_bytes = chunk_bytes,
                                 .reservation = *reservation,
                                 .unix_ms = executor_.clock().UnixMillis()});
        if (!shard.ok()) return Fail(shard.status());
        state_ = State::kReading;
        if (Status status = table_.AcceptManifest(name_, manifest_, *digest_); !status.ok()) {
          return Fail(std::move(status));
        }
        manifest_.clear();
        for (const auto& [first, count] : wanted_before_open_) Want(first, count);
        wanted_before_open_.clear();
        executor_.Post(lifetime_.Wrap([this] { observer_.on_opened(); }));
        executor_.Post(lifetime_.Wrap([this] { Step(); }));
      }));
}

// To be asked again later, unless it is gone for good.
void ShardFetcher::CloseSource(Source& source, const Status& why) {
  if (source.open_count >= kOpensOfDeadMax && !peers_.IsAlive(source.node)) {
    return LoseSource(source, NotFound(ToString(source.node) + " is gone: " + why.message()));
  }
  if (source.grant) puller_.Release(*source.grant);
  source.grant.reset();
  source.state = SourceState::kClosed;
  source.trouble = why;
  source.next_open = executor_.Now() + kReopenDelay;
}

void ShardFetcher::LoseSource(Source& source, const Status& why) {
  if (source.grant) puller_.Release(*source.grant);
  source.grant.reset();
  source.state = SourceState::kLost;
  source.trouble = why;
  Log(LogLevel::kWarning, "a holder cannot be read from",
      {{"shard", ToString(name_)}, {"node", ToString(source.node)}, {"why", why.ToString()}});
}

// The holder decides by reading its memory; this fetch goes on with others meanwhile.
void ShardFetcher::AskToVerify(size_t index) {
  Source& source = sources_[index];
  source.verify = VerifyState::kAsked;
  wire::Request request;
  *request.mutable_verify_shard()->mutable_shard() = ToWire(name_);
  request.mutable_verify_shard()->set_digest(digest_->ToByteString());
  peers_.Send(name_.job, source.node, std::move(request), executor_.Now() + kPullTimeout,
              lifetime_.Wrap(
                  [this, index](const Result<wire::Reply>& reply) { OnVerified(index, reply); }));
}

void ShardFetcher::OnVerified(size_t index, const Result<wire::Reply>& reply) {
  Source& source = sources_[index];
  source.verify = VerifyState::kIdle;
  if (state_ != State::kReading || source.state == SourceState::kLost) return;
  const std::string what = source.node.node.value + "'s copy of " + ToString(name_);
  if (reply.ok() && reply->verify_shard().bad_chunks_size() == 0) {
    ++source.verify_count;
    std::erase_if(source.doubted,
                  [&](uint64_t chunk) { return source.mismatches[chunk] <= kMismatchesMax; });
  } else if (reply.ok()) {
    LoseSource(source, Corrupt(what + " is damaged"));
  } else if (reply.status().code() == StatusCode::kNotFound ||
             reply.status().code() == StatusCode::kCorrupt) {
    LoseSource(source, reply.status());
  } else if (!peers_.IsAlive(source.node)) {
    LoseSource(source, NotFound(ToString(source.node) + " is gone: " + reply.status().message()));
  } else {
    // Not asked, or not answered yet, which says nothing of its memory: Step() asks again.
    source.verify = VerifyState::kDue;
    source.next_verify = executor_.Now() + kReopenDelay;
  }
  Step();
}

// ---- Pulls --------------------------------------------------------------------------------------

void ShardFetcher::StartPulls() {
  // Round by round, so that the first runs are spread over all sources.
  for (size_t round = 0; round < kPullsPerSourceMax; ++round) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].state != SourceState::kOpen || sources_[i].pull_count > round) continue;
      if (const std::optional<Pull> run = NextRun(i)) StartPull(*run);
    }
  }
}

std::optional<ShardFetcher::Pull> ShardFetcher::NextRun(size_t index) const {
  const Source& source = sources_[index];
  const store::Shard& shard = *table_.Find(name_);
  const uint64_t run_chunks_max = std::max<uint64_t>(1, kRunBytesMax / shard.chunk_bytes);
  Pull run;
  for (const uint64_t chunk : wanted_) {
    const bool usable = !source.doubted.contains(chunk);
    if (run.count == 0) {
      if (!usable) continue;
      run = {index, chunk, 1, executor_.Now()};
    } else if (usable && chunk == run.first + run.count && run.count < run_chunks_max) {
      ++run.count;
    } else {
      break;
    }
  }
  if (run.count == 0) return std::nullopt;
  return run;
}

void ShardFetcher::StartPull(const Pull& pull) {
  const store::Shard& shard = *table_.Find(name_);
  Source& source = sources_[pull.source];
  transport::PullRequest request;
  request.source = *source.grant;
  request.source_offset_bytes = pull.first * shard.chunk_bytes;
  request.chunk_bytes = shard.chunk_bytes;
  request.deadline = executor_.Now() + kPullTimeout;
  const std::span<std::byte> first = shard.ChunkBytes(pull.first);
  const std::span<std::byte> last = shard.ChunkBytes(pull.first + pull.count - 1);
  request.target = {first.data(), last.data() + last.size()};
  for (uint64_t chunk = pull.first; chunk < pull.first + pull.count; ++chunk) {
    request.expected.push_back(shard.manifest->chunk_checksums[chunk]);
    wanted_.erase(chunk);
    in_flight_.insert(chunk);
  }
  ++source.pull_count;
  auto pin = std::make_shared<store::ShardPin>(table_.Pin(name_));
  auto id = std::make_shared<transport::PullId>(0);
  *id = puller_.Pull(std::move(request),
                     [pin, taken = lifetime_.Wrap([this, id](const transport::PullResult& result) {
                       OnPulled(*id, result);
                     })](transport::PullResult result) mutable {
                       pin->Reset();
                       taken(result);
                     });
  pulls_[*id] = pull;
}

void ShardFetcher::OnPulled(transport::PullId id, const transport::PullResult& result) {
  const Pull pull = pulls_.at(id);
  pulls_.erase(id);
  Source& source = sources_[pull.source];
  --source.pull_count;
  for (uint64_t i = 0; i < pull.count; ++i) in_flight_.erase(pull.first + i);
  const store::Shard* shard = table_.Find(name_);
  if (state_ != State::kReading || shard == nullptr) return;
  for (uint64_t i = 0; i < pull.count; ++i) {
    const uint64_t chunk = pull.first + i;
    if (result.chunks[i] == transport::ChunkOutcome::kVerified) {
      table_.ChunkReceived(name_, chunk, result.hashes[i]);
      const uint64_t bytes = shard->ChunkBytes(chunk).size();
      source.bytes += bytes;
      source.open_count = 0;  // It works: an ended grant is only renewed.
      bytes_read_ += bytes;
      continue;
    }
    wanted_.insert(chunk);
    // Counts against the source only if its grant was valid to the end of the read.
    if (result.chunks[i] == transport::ChunkOutcome::kMismatch && result.status.ok()) {
      source.doubted.insert(chunk);
      ++source.mismatches[chunk];
    }
  }
  if (!source.doubted.empty() && source.verify == VerifyState::kIdle &&
      source.state == SourceState::kOpen) {
    source.trouble = Corrupt("chunks of " + source.node.node.value +
                             "'s copy arrived other than its manifest says");
    if (source.verify_count < kVerifiesMax) AskToVerify(pull.source);
  }
  if (!result.status.ok() && source.state == SourceState::kOpen) {
    CloseSource(source, result.status);
  }
  Step();
}

// A slow source keeps what it is reading only while nobody else is free to read it.
void ShardFetcher::CancelSlow() {
  if (!wanted_.empty()) return;  // Whoever is free has work.
  for (const auto& [id, pull] : pulls_) {
    if (executor_.Now() - pull.started < kSlowPull) continue;
    const bool other_is_idle =
        std::any_of(sources_.begin(), sources_.end(), [&, slow = pull.source](const Source& s) {
          return &s != &sources_[slow] && s.state == SourceState::kOpen && s.pull_count == 0;
        });
    if (!other_is_idle) continue;
    // Its completion puts the rest back, and closes the source for kReopenDelay.
    puller_.Cancel(id);
    return;
  }
}

// ---- The end ------------------------------------------------------------------------------------

bool ShardFetcher::MayStillBring(const Source& source, uint64_t chunk) const {
  if (source.state == SourceState::kLost) return false;
  return !source.doubted.contains(chunk) || source.verify != VerifyState::kIdle;
}

void ShardFetcher::FailHopeless() {
  if (state_ == State::kOpening) {
    const bool hope = std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
      return source.state != SourceState::kLost;
    });
    if (hope) return;
    std::string message = "no node has " + ToString(name_) + ":";
    for (const Source& source : sources_) {
      message += " " + source.node.node.value + ": " + source.trouble.message() + ";";
    }
    Status why = NotFound(std::move(message));
    return Fail(std::move(why));
  }
  for (const uint64_t chunk : wanted_) {
    const bool hope = std::any_of(sources_.begin(), sources_.end(), [&](const Source& source) {
      return MayStillBring(source, chunk);
    });
    if (hope) continue;
    std::string message = "chunk " + std::to_string(chunk) + " of " + ToString(name_) +
                          " cannot be had from any of " + std::to_string(sources_.size()) +
                          " holders:";
    for (const Source& source : sources_) {
      message += " " + source.node.node.value + ": " + source.trouble.message() + ";";
    }
    return Fail(Corrupt(std::move(message)));
  }
}

void ShardFetcher::Fail(Status why) {
  if (state_ == State::kFailed || state_ == State::kSealed) return;
  if (const store::Shard* shard = table_.Find(name_); state_ == State::kReading && shard) {
    for (uint64_t chunk = 0; chunk < shard->ChunkCount(); ++chunk) {
      if (!shard->received[chunk]) table_.ChunkFailed(name_, chunk);
    }
  }
  state_ = State::kFailed;
  trouble_ = std::move(why);
  for (const auto& [id, pull] : pulls_) puller_.Cancel(id);
  ReleaseSources();
  executor_.Post(lifetime_.Wrap([this] { observer_.on_ended(); }));
}

}  // namespace backstay::replication
