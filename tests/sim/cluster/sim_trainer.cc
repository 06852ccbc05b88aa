#include "tests/sim/cluster/sim_trainer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/slot_control.h"
#include "store/slot_memory.h"

namespace backstay::sim {
namespace {

constexpr Duration kClaimRetry = std::chrono::milliseconds(50);
constexpr Duration kReconfigureTimeout = std::chrono::seconds(20);
constexpr Duration kChunkTime = std::chrono::microseconds(30);  // To write one into the slot.
constexpr Duration kSlowChunkTime = std::chrono::milliseconds(2);
constexpr uint64_t kSavesPerSlowOne = 4;
constexpr Duration kReadPoll = std::chrono::milliseconds(1);
constexpr uint32_t kReopensMax = 8;
constexpr uint64_t kWritesPerRewrite = 8;  // One of so many saves writes a chunk twice.

uint64_t Mix(uint64_t a, uint64_t b) {
  return SeededRandom(a ^ (b * 0x9e3779b97f4a7c15ULL)).Next();
}

uint64_t HashOf(const std::string& content) { return HashBytes(content).low; }

}  // namespace

SimTrainer::SimTrainer(Executor* executor, Random* random, Auditor* auditor,
                       replication::TrainerPort* port, replication::ProcessId process,
                       TrainerPlan plan)
    : executor_(executor),
      random_(random),
      auditor_(auditor),
      process_(process),
      plan_(std::move(plan)),
      trainer_(port->Connect(process, this)) {
  Claim();
}

SimTrainer::~SimTrainer() = default;

void SimTrainer::Claim() {
  replication::ShardClaim claim;
  claim.job = plan_.job;
  claim.token = plan_.token;
  claim.shard = ShardId(std::to_string(plan_.rank.value));
  claim.rank = plan_.rank;
  claim.world_size = plan_.world_size;
  claim.replicas = plan_.replicas;
  claim.versions = plan_.versions;
  claim.size_bytes = plan_.state_bytes;
  claim.wait_for_slot = true;
  trainer_->Register(claim, lifetime_.Wrap([this](const Result<replication::ClaimReply>& reply) {
    if (reply.ok()) {
      if (state_ == State::kClaiming) state_ = State::kIdle;
      return;
    }
    last_error_ = reply.status();
    executor_->RunAfter(kClaimRetry, lifetime_.Wrap([this] { Claim(); }));
  }));
}

void SimTrainer::Fail(const Status& why) {
  last_error_ = why;
  StopReading();
  state_ = State::kFailed;
}

void SimTrainer::Join(const AttemptUuid& uuid) {
  round_ += 1;
  state_ = State::kReconfiguring;
  StopReading();
  writing_.reset();
  replication::ReconfigureRequest request;
  request.uuid = uuid;
  request.rank = plan_.rank;
  request.world_size = plan_.world_size;
  request.shard = ShardId(std::to_string(plan_.rank.value));
  request.timeout = kReconfigureTimeout;
  request.old_generation = generation_;
  trainer_->Reconfigure(
      request,
      lifetime_.Wrap([this, round = round_](const Result<replication::DecisionReply>& reply) {
        if (round == round_) OnDecision(reply);
      }));
}

// What is open for reading stays pinned.
void SimTrainer::StopReading() {
  if (reading_ && reading_->fetch.memory != nullptr)
    trainer_->CloseShard(reading_->fetch.fetch, [](const Status&) {});
  reading_.reset();
}

void SimTrainer::OnDecision(const Result<replication::DecisionReply>& decision) {
  if (!decision.ok()) return Fail(decision.status());
  StopReading();
  reading_.emplace();
  reading_->decision = *decision;
  if (decision->fresh) return Finish(Status::Ok());
  Fetch();
}

void SimTrainer::Fetch() {
  replication::FetchRequest request;
  request.snapshot = reading_->decision.base;
  request.shard = reading_->decision.shard;
  request.whole = true;
  request.for_restore = true;
  trainer_->Fetch(
      request, lifetime_.Wrap([this, round = round_](const Result<replication::FetchReply>& reply) {
        if (round != round_ || !reading_) {
          // Opened for a round that is over: nobody else would close it.
          if (reply.ok()) trainer_->CloseShard(reply->fetch, [](const Status&) {});
          return;
        }
        if (!reply.ok()) return Finish(reply.status());
        const Result<store::Manifest> manifest = store::DecodeManifest(reply->manifest);
        if (!manifest.ok()) return Finish(manifest.status());
        manifest_ = *manifest;
        reading_->fetch = *reply;
        reading_->content.assign(manifest_->size_bytes, '\0');
        reading_->next_chunk = 0;
        ReadChunks();
      }));
}

void SimTrainer::ReadChunks() {
  const uint64_t chunk_bytes = manifest_->chunk_bytes;
  store::SlotMemory& memory = *reading_->fetch.memory;
  const SlotControlView control(memory.control(), memory.geometry());
  while (reading_->next_chunk < manifest_->chunk_checksums.size()) {
    const uint64_t chunk = reading_->next_chunk;
    const ChunkState chunk_state = control.State(chunk);
    if (chunk_state == ChunkState::kChunkFailed) return Finish(Corrupt("a chunk has no good copy"));
    if (chunk_state == ChunkState::kChunkEmpty) {
      executor_->RunAfter(kReadPoll, lifetime_.Wrap([this, round = round_] {
        if (round == round_ && reading_) ReadChunks();
      }));
      return;
    }
    const uint64_t offset = chunk * chunk_bytes;
    const std::span<char> target(reading_->content.data() + offset,
                                 std::min(chunk_bytes, manifest_->size_bytes - offset));
    const Hash128 hash =
        CopyAndHash(std::as_writable_bytes(target), memory.data().subspan(offset, target.size()));
    if (hash != manifest_->chunk_checksums[chunk]) return ReportBad(static_cast<uint32_t>(chunk));
    reading_->next_chunk += 1;
  }
  Finish(Status::Ok());
}

void SimTrainer::ReportBad(uint32_t chunk) {
  if (++reading_->reopened_count > kReopensMax)
    return Finish(Corrupt("bad chunks again and again"));
  trainer_->ReportBadChunks(reading_->fetch.fetch, {chunk},
                            lifetime_.Wrap([this, round = round_](const Result<bool>& reopened) {
                              if (round != round_ || !reading_) return;
                              if (!reopened.ok()) return Finish(reopened.status());
                              if (*reopened) {
                                trainer_->CloseShard(reading_->fetch.fetch, [](const Status&) {});
                                reading_->fetch = {};
                                return Fetch();
                              }
                              ReadChunks();
                            }));
}

void SimTrainer::Finish(const Status& outcome) {
  replication::FinishRestoreRequest request;
  request.uuid = reading_->decision.uuid;
  request.attempt = reading_->decision.attempt;
  request.ok = outcome.ok();
  request.error = outcome.ToString();
  request.bytes = reading_->content.size();
  request.timeout = kReconfigureTimeout;
  if (outcome.ok()) {
    auditor_->OnVerified(reading_->decision.generation, request.attempt, plan_.rank);
  }
  trainer_->FinishRestore(
      request,
      lifetime_.Wrap([this, round = round_](const Result<replication::FinishRestoreReply>& reply) {
        if (round == round_ && reading_) OnFinished(reply);
      }));
}

void SimTrainer::OnFinished(const Result<replication::FinishRestoreReply>& reply) {
  if (!reply.ok()) return Fail(reply.status());
  if (!reply->resumed) return OnDecision(replication::DecisionReply(reply->next));
  const replication::DecisionReply& decision = reading_->decision;
  uint64_t content = 0;
  std::optional<SnapshotId> base;
  if (decision.fresh) {
    step_ = Step(0);
    history_ = 0;
  } else {
    base = decision.base;
    step_ = decision.base.step;
    BACKSTAY_CHECK(reading_->content.size() >= sizeof(history_), "a shard without a history");
    std::memcpy(&history_, reading_->content.data(), sizeof(history_));
    content = HashOf(reading_->content);
    if (reading_->content != ContentOf(history_))
      auditor_->Violation("a restored state is not one that was ever saved");
  }
  generation_ = decision.generation;
  auditor_->OnResumed(generation_, decision.attempt, plan_.rank, plan_.world_size, base, history_,
                      content);
  StopReading();
  state_ = State::kTraining;
}

void SimTrainer::Fence() {
  trainer_->Fence(generation_, "a peer is gone", executor_->clock().UnixMillis());
  writing_.reset();
  if (state_ == State::kTraining) state_ = State::kIdle;
}

void SimTrainer::TakeStep() {
  step_ = step_.Next();
  history_ = Mix(Mix(history_, generation_.value), step_.value);
}

void SimTrainer::Save() {
  if (writing_ || beginning_ || state_ != State::kTraining) return;
  beginning_ = true;
  trainer_->Begin(step_, plan_.begin_timeout,
                  lifetime_.Wrap([this, round = round_, step = step_, history = history_](
                                     const Result<replication::BeginReply>& begun) {
                    beginning_ = false;
                    if (round != round_ || state_ != State::kTraining) {
                      if (begun.ok()) trainer_->Abandon(begun->save, [](const Status&) {});
                      return;
                    }
                    if (!begun.ok()) {
                      last_error_ = begun.status();
                      return;
                    }
                    writing_.emplace();
                    writing_->snapshot = {begun->generation, step};
                    writing_->history = history;
                    OnBegun(begun);
                  }));
}

void SimTrainer::OnBegun(const Result<replication::BeginReply>& begun) {
  writing_->save = begun->save;
  writing_->memory = begun->memory;
  writing_->content = ContentOf(writing_->history);
  const uint64_t chunk_count = CeilDiv(plan_.state_bytes, begun->memory->geometry().chunk_bytes);
  if (random_->Next() % kWritesPerRewrite == 0) writing_->rewrite = random_->Next() % chunk_count;
  writing_->chunk_time = random_->Next() % kSavesPerSlowOne == 0 ? kSlowChunkTime : kChunkTime;
  store::ShardContents contents;
  store::TensorEntry& tensor = contents.tensors.emplace_back();
  tensor.name = "state";
  tensor.dtype = store::Dtype::kUint8;
  tensor.shape = tensor.global_shape = {writing_->content.size()};
  tensor.size_bytes = writing_->content.size();
  trainer_->StartCopy(writing_->save, writing_->content.size(), store::EncodeContents(contents),
                      lifetime_.Wrap([this, round = round_](const Status& started) {
                        if (round != round_ || !writing_) return;
                        if (!started.ok()) return writing_.reset();
                        WriteChunks();
                      }));
}

void SimTrainer::WriteChunks() {
  store::SlotMemory& memory = *writing_->memory;
  const uint64_t chunk_bytes = memory.geometry().chunk_bytes;
  SlotControlWriter control(memory.control(), memory.geometry());
  const uint64_t offset = writing_->next_chunk * chunk_bytes;
  if (offset < writing_->content.size()) {
    const std::span<const char> source(
        writing_->content.data() + offset,
        std::min<uint64_t>(chunk_bytes, writing_->content.size() - offset));
    const std::span<std::byte> target = memory.data().subspan(offset, source.size());
    Hash128 hash = CopyAndHash(target, std::as_bytes(source));
    if (writing_->rewrite == writing_->next_chunk) {
      target[0] ^= std::byte{1};
      hash = HashBytes(target);
    }
    control.Publish(writing_->next_chunk, hash);
    writing_->next_chunk += 1;
    const Duration base = writing_->chunk_time;
    const Duration jitter(
        static_cast<int64_t>(random_->Next() % static_cast<uint64_t>(base.count())));
    executor_->RunAfter(base + jitter, lifetime_.Wrap([this, round = round_] {
      if (round == round_ && writing_) WriteChunks();
    }));
    return;
  }
  if (writing_->rewrite) {
    // As a copy does that is begun anew: whoever has read the chunk already has other bytes.
    writing_->next_chunk = *std::exchange(writing_->rewrite, std::nullopt);
    const uint64_t again = writing_->next_chunk * chunk_bytes;
    const std::span<const char> source(
        writing_->content.data() + again,
        std::min<uint64_t>(chunk_bytes, writing_->content.size() - again));
    control.Publish(writing_->next_chunk, CopyAndHash(memory.data().subspan(again, source.size()),
                                                      std::as_bytes(source)));
  }
  auditor_->OnSealed(writing_->snapshot, plan_.rank, writing_->history, HashOf(writing_->content));
  trainer_->Seal(writing_->save, /*sound=*/true,
                 lifetime_.Wrap([this](const Result<std::string>& digest) {
                   if (!digest.ok()) last_error_ = digest.status();
                 }));
  writing_.reset();
}

std::string SimTrainer::ContentOf(uint64_t history) const {
  std::string content(plan_.state_bytes, '\0');
  SeededRandom bytes(Mix(history, plan_.rank.value));
  std::memcpy(content.data(), &history, sizeof(history));
  for (size_t at = sizeof(history); at + sizeof(uint64_t) <= content.size();
       at += sizeof(uint64_t)) {
    const uint64_t word = bytes.Next();
    std::memcpy(content.data() + at, &word, sizeof(word));
  }
  return content;
}

void SimTrainer::OnEvent(const replication::TrainerEvent& event) {
  if (event.kind == replication::TrainerEvent::Kind::kCommitted) newest_committed_ = event.snapshot;
  if (event.kind == replication::TrainerEvent::Kind::kFenced && state_ == State::kTraining) {
    last_error_ = event.status;
    state_ = State::kIdle;
  }
}

}  // namespace backstay::sim
