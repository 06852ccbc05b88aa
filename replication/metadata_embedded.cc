#include "replication/metadata_embedded.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/units.h"

namespace backstay::replication {
namespace {

size_t SizeBytes(const MetadataChange& change) {
  size_t size_bytes = sizeof(change);
  for (const KeyValue& pair : change.puts)
    size_bytes += sizeof(pair) + pair.key.size() + pair.value.size();
  for (const std::string& key : change.deletes) size_bytes += sizeof(key) + key.size();
  return size_bytes;
}

}  // namespace

EmbeddedMetadataStore::EmbeddedMetadataStore(MetadataEngine engine,
                                             std::unique_ptr<MetadataJournal> journal,
                                             Executor* executor)
    : executor_(executor), engine_(std::move(engine)), journal_(std::move(journal)) {
  ArmExpiry(engine_.NextExpiry());
}

EmbeddedMetadataStore::~EmbeddedMetadataStore() {
  executor_->CancelTimer(expiry_timer_);
  for (const auto& [id, answer] : answers_) executor_->CancelTimer(answer.timer);
  for (const auto& [prefix, waits] : waits_) {
    for (const auto& [id, wait] : waits) executor_->CancelTimer(wait.timer);
  }
}

void EmbeddedMetadataStore::GetStoreId(Deadline deadline, Completion<StoreId> done) {
  if (Status refusal = Refusal(deadline); !refusal.ok())
    return Reply(refusal, false, kNoDeadline, std::move(done));
  Reply(Result<StoreId>(engine_.store_id()), false, deadline, std::move(done));
}

void EmbeddedMetadataStore::Commit(Transaction transaction, Deadline deadline,
                                   Completion<TransactionResult> done) {
  if (Status refusal = Refusal(deadline); !refusal.ok())
    return Reply(refusal, false, kNoDeadline, std::move(done));
  Result<MetadataEngine::Applied> applied = engine_.Apply(transaction);
  if (!applied.ok()) return Reply(applied.status(), false, deadline, std::move(done));
  const bool changes = !applied->change.empty();
  if (changes) Record(std::move(applied->change));
  Reply(Result<TransactionResult>(applied->result), changes, deadline, std::move(done));
}

void EmbeddedMetadataStore::Range(std::string prefix, Deadline deadline,
                                  Completion<RangeResult> done) {
  if (Status refusal = Refusal(deadline); !refusal.ok())
    return Reply(refusal, false, kNoDeadline, std::move(done));
  Reply(engine_.Range(prefix), false, deadline, std::move(done));
}

void EmbeddedMetadataStore::WaitForChange(std::string prefix, Revision after, Deadline deadline,
                                          Completion<RangeResult> done) {
  Status refusal = failure_;
  if (refusal.ok()) refusal = CheckMetadataPrefix(prefix);
  if (refusal.ok() && wait_count_ >= kMetadataWaitsMax) {
    refusal = NoSpace("the metadata store already serves " + std::to_string(wait_count_) +
                      " waits, which is its limit");
  }
  if (!refusal.ok()) return Reply(refusal, false, kNoDeadline, std::move(done));
  if (engine_.MayHaveChanged(prefix, after) || deadline <= executor_->Now()) {
    return Reply(engine_.Range(prefix), false, kNoDeadline, std::move(done));
  }
  const uint64_t id = ++last_wait_id_;
  Wait wait{.timer = kNoTimer, .deadline = deadline, .done = std::move(done)};
  if (deadline != kNoDeadline) {
    wait.timer = executor_->RunAt(
        deadline, lifetime_.Wrap([this, prefix, id] { OnWaitDeadline(prefix, id); }));
  }
  waits_[std::move(prefix)].emplace(id, std::move(wait));
  ++wait_count_;
}

void EmbeddedMetadataStore::GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) {
  if (Status refusal = Refusal(deadline); !refusal.ok())
    return Reply(refusal, false, kNoDeadline, std::move(done));
  Result<MetadataChange> change = engine_.GrantLease(ttl, executor_->Now());
  if (!change.ok()) return Reply(change.status(), false, deadline, std::move(done));
  const LeaseId lease = change->last_lease;
  Record(std::move(*change));
  ArmExpiry(executor_->Now() + ttl);
  Reply(Result<LeaseId>(lease), true, deadline, std::move(done));
}

void EmbeddedMetadataStore::RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) {
  if (Status refusal = Refusal(deadline); !refusal.ok())
    return Reply(refusal, false, kNoDeadline, std::move(done));
  Reply(engine_.RenewLease(lease, executor_->Now()), false, deadline, std::move(done));
}

void EmbeddedMetadataStore::RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) {
  if (Status refusal = Refusal(deadline); !refusal.ok())
    return Reply(refusal, false, kNoDeadline, std::move(done));
  Result<MetadataChange> change = engine_.RevokeLease(lease);
  if (!change.ok()) return Reply(change.status(), false, deadline, std::move(done));
  Record(std::move(*change));
  Reply(Status::Ok(), true, deadline, std::move(done));
}

Status EmbeddedMetadataStore::Refusal(Deadline deadline) const {
  if (!failure_.ok()) return failure_;
  if (deadline <= executor_->Now())
    return DeadlineExceeded("the deadline of a metadata request had passed on arrival");
  if (answers_.size() >= kMetadataAnswersMax) {
    return Unavailable("the metadata store is overloaded: " + std::to_string(answers_.size()) +
                       " answers wait for its disk");
  }
  if (pending_bytes_ > kMetadataPendingBytesMax) {
    return Unavailable("the metadata store is overloaded: " + FormatBytes(pending_bytes_) +
                       " wait for its disk");
  }
  return Status::Ok();
}

template <typename T, typename Done>
void EmbeddedMetadataStore::Reply(T result, bool changes, Deadline deadline, Done done) {
  auto run = [result = std::move(result), done = std::move(done)](const Status& status) mutable {
    if (status.ok()) {
      done(std::move(result));
    } else {
      done(status);
    }
  };
  AddAnswer({.after = appended_, .changes = changes, .timer = kNoTimer, .run = std::move(run)},
            deadline);
}

void EmbeddedMetadataStore::AddAnswer(Answer answer, Deadline deadline) {
  const uint64_t id = ++last_answer_id_;
  const bool ready = answer.after <= durable_ || !failure_.ok();
  if (!ready && deadline != kNoDeadline) {
    auto expire = [this, id] {
      auto late = answers_.extract(id);
      late.mapped().run(
          DeadlineExceeded("the metadata store's disk did not confirm a write in time"));
    };
    answer.timer = executor_->RunAt(deadline, lifetime_.Wrap(std::move(expire)));
  }
  answers_.emplace(id, std::move(answer));
  if (ready) ReleaseSoon();
}

void EmbeddedMetadataStore::ReleaseSoon() {
  if (release_posted_) return;
  release_posted_ = true;
  executor_->Post(lifetime_.Wrap([this] {
    release_posted_ = false;
    Release();
  }));
}

void EmbeddedMetadataStore::Release() {
  // Answers that come in while these run get a turn of their own, so that a caller that always asks
  // again cannot hold the executor.
  const uint64_t last = last_answer_id_;
  while (!answers_.empty()) {
    const auto first = answers_.begin();
    const bool durable = first->second.after <= durable_;
    if (!durable && failure_.ok()) return;
    if (first->first > last) return ReleaseSoon();
    auto answer = answers_.extract(first);
    executor_->CancelTimer(answer.mapped().timer);
    if (durable) {
      answer.mapped().run(Status::Ok());
    } else {
      answer.mapped().run(answer.mapped().changes ? UnknownOutcome(failure_.message()) : failure_);
    }
  }
}

void EmbeddedMetadataStore::Record(MetadataChange change) {
  const Sequence sequence = ++appended_;
  pending_sizes_.push_back(SizeBytes(change));
  pending_bytes_ += pending_sizes_.back();
  if (!change.puts.empty() || !change.deletes.empty()) WakeWaits(change);
  auto appended = [this, sequence](const Status& status) { OnAppended(sequence, status); };
  journal_->Append(std::move(change), lifetime_.Wrap(std::move(appended)));
}

void EmbeddedMetadataStore::OnAppended(Sequence sequence, const Status& status) {
  if (!failure_.ok()) return;
  if (!status.ok()) return Fail(status);
  durable_ = sequence;
  pending_bytes_ -= pending_sizes_.front();
  pending_sizes_.pop_front();
  Release();
}

void EmbeddedMetadataStore::Fail(const Status& status) {
  failure_ = Unavailable(
      "the metadata store has stopped until its service is started again, because a write "
      "failed: " +
      status.message());
  executor_->CancelTimer(expiry_timer_);
  expiry_timer_ = kNoTimer;
  const auto waits = std::move(waits_);
  waits_.clear();
  wait_count_ = 0;
  for (const auto& [prefix, of_prefix] : waits) {
    for (const auto& [id, wait] : of_prefix) {
      executor_->CancelTimer(wait.timer);
      Reply(failure_, false, kNoDeadline, wait.done);
    }
  }
  ReleaseSoon();
}

void EmbeddedMetadataStore::WakeWaits(const MetadataChange& change) {
  for (auto it = waits_.begin(); it != waits_.end();) {
    const auto entry = it++;
    const std::string& prefix = entry->first;
    const auto touches = [&prefix](std::string_view key) { return key.starts_with(prefix); };
    const auto put = [&touches](const KeyValue& pair) { return touches(pair.key); };
    if (!std::any_of(change.puts.begin(), change.puts.end(), put) &&
        !std::any_of(change.deletes.begin(), change.deletes.end(), touches)) {
      continue;
    }
    const Result<RangeResult> range = engine_.Range(prefix);
    for (auto& [id, wait] : entry->second) {
      executor_->CancelTimer(wait.timer);
      --wait_count_;
      Reply(range, false, wait.deadline, std::move(wait.done));
    }
    waits_.erase(entry);
  }
}

void EmbeddedMetadataStore::OnWaitDeadline(const std::string& prefix, uint64_t id) {
  const auto found = waits_.find(prefix);
  auto wait = found->second.extract(id);
  if (found->second.empty()) waits_.erase(found);
  --wait_count_;
  if (durable_ < appended_) {
    return wait.mapped().done(
        DeadlineExceeded("the metadata store's disk did not confirm a write in time"));
  }
  wait.mapped().done(engine_.Range(prefix));
}

void EmbeddedMetadataStore::ArmExpiry(Instant when) {
  // Renewals leave the timer alone: it finds nothing due, and is set again for what is.
  if (when == kNoDeadline || (expiry_timer_ != kNoTimer && expiry_at_ <= when)) return;
  executor_->CancelTimer(expiry_timer_);
  expiry_at_ = when;
  expiry_timer_ = executor_->RunAt(when, lifetime_.Wrap([this] { OnExpiry(); }));
}

void EmbeddedMetadataStore::OnExpiry() {
  expiry_timer_ = kNoTimer;
  MetadataChange change = engine_.ExpireLeases(executor_->Now());
  if (!change.empty()) Record(std::move(change));
  ArmExpiry(engine_.NextExpiry());
}

}  // namespace backstay::replication
