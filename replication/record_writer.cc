#include "replication/record_writer.h"

#include <utility>

#include "base/log.h"
#include "replication/metadata_keys.h"

namespace backstay::replication {

RecordWriter::RecordWriter(JobName job, Term term, const LeaderSeams& seams,
                           const LeaderConfig& config, std::function<void()> on_change,
                           StatusCompletion on_deposed)
    : job_(std::move(job)),
      term_(term),
      seams_(seams),
      config_(config),
      on_change_(std::move(on_change)),
      on_deposed_(std::move(on_deposed)),
      delay_(config.retry_min, config.retry_max, seams.random) {}

Compare RecordWriter::TermCondition() const {
  return {LeaderKey(job_), Compare::Target::kCreateRevision, term_.value};
}

void RecordWriter::Start() { Load(); }

void RecordWriter::Load() {
  const auto on_read = [this](const Result<StoredJob>& stored) {
    if (stored.status().code() == StatusCode::kNotFound) {
      loaded_ = true;
    } else if (stored.ok()) {
      if (Status status = Adopt(*stored); !status.ok()) {
        Depose(status);
        return;
      }
      loaded_ = true;
    } else {
      seams_.executor->RunAfter(delay_.Next(), lifetime_.Wrap([this] { Load(); }));
      return;
    }
    delay_.Reset();
    on_change_();
    Next();
  };
  seams_.jobs->Read(job_, seams_.executor->Now() + config_.transaction_deadline,
                    lifetime_.Wrap(on_read));
}

Status RecordWriter::Adopt(const StoredJob& stored) {
  wire::JobRecord record;
  if (!record.ParseFromString(stored.bytes)) {
    return Corrupt("the record of job " + job_.value + " cannot be read");
  }
  BACKSTAY_RETURN_IF_ERROR(CheckRecord(record, job_));
  record_ = std::move(record);
  bytes_ = stored.bytes;
  revision_ = stored.revision;
  return Status::Ok();
}

void RecordWriter::Apply(Change change, std::vector<Compare> conditions, StatusCompletion done) {
  const auto refuse = [&](Status status) {
    seams_.executor->Post(
        lifetime_.Wrap([done = std::move(done), status = std::move(status)] { done(status); }));
  };
  if (deposed_) {
    refuse(Unavailable("this node does not lead job " + job_.value + " any more"));
    return;
  }
  if (queue_.size() >= kChangesMax) {
    refuse(Unavailable("too many changes to the record of job " + job_.value + " are waiting"));
    return;
  }
  Pending pending;
  pending.change = std::move(change);
  pending.conditions = std::move(conditions);
  pending.done = std::move(done);
  pending.deadline = seams_.executor->Now() + config_.transaction_deadline;
  queue_.push_back(std::move(pending));
  seams_.executor->Post(lifetime_.Wrap([this] { Next(); }));
}

void RecordWriter::Next() {
  if (busy_ || !loaded_ || queue_.empty() || deposed_) return;
  busy_ = true;
  TryFront();
}

void RecordWriter::TryFront() {
  Pending& front = queue_.front();
  Result<wire::JobRecord> next = front.change(record_);
  if (!next.ok()) {
    FinishFront(next.status());
    return;
  }
  front.next = std::move(next).value();
  front.next_bytes = front.next.SerializeAsString();
  if (exists() && front.next_bytes == bytes_) {
    FinishFront(Status::Ok());
    return;
  }
  if (++front.tries > kTriesMax) {
    FinishFront(Unavailable("the record of job " + job_.value + " keeps changing"));
    return;
  }
  std::vector<Compare> conditions = front.conditions;
  conditions.push_back(TermCondition());
  seams_.jobs->Write(job_, front.next_bytes, revision_, std::move(conditions), front.deadline,
                     lifetime_.Wrap([this](const Result<Revision>& result) { OnWritten(result); }));
}

void RecordWriter::OnWritten(const Result<Revision>& result) {
  Pending& front = queue_.front();
  if (result.ok()) {
    record_ = std::move(front.next);
    bytes_ = std::move(front.next_bytes);
    revision_ = *result;
    delay_.Reset();
    FinishFront(Status::Ok());
    return;
  }
  switch (result.status().code()) {
    case StatusCode::kStale:
    case StatusCode::kDeadline:
    case StatusCode::kUnknownOutcome:
      Reread(result.status());
      break;
    case StatusCode::kUnavailable:
      RetryLater(result.status());
      break;
    default:
      FinishFront(result.status());
  }
}

void RecordWriter::RetryLater(const Status& why) {
  if (seams_.executor->Now() >= queue_.front().deadline) {
    FinishFront(
        Unavailable("the record of job " + job_.value + " could not be written: " + why.message()));
    return;
  }
  seams_.executor->RunAfter(delay_.Next(), lifetime_.Wrap([this] { TryFront(); }));
}

void RecordWriter::Reread(const Status& why) {
  // However late: until the record was read, nobody knows what it is, and nothing else can be
  // written.
  seams_.jobs->Read(
      job_, seams_.executor->Now() + config_.transaction_deadline,
      lifetime_.Wrap([this, why](const Result<StoredJob>& stored) { OnReread(why, stored); }));
}

void RecordWriter::OnReread(const Status& why, const Result<StoredJob>& stored) {
  const bool gone = stored.status().code() == StatusCode::kNotFound;
  if (!stored.ok() && !gone) {
    seams_.executor->RunAfter(delay_.Next(), lifetime_.Wrap([this, why] { Reread(why); }));
    return;
  }
  if (gone && exists()) {
    Depose(Stale("the record of job " + job_.value + " has been removed"));
    return;
  }
  Pending& front = queue_.front();
  if (stored.ok() && stored->revision != revision_) {
    const bool is_ours = stored->bytes == front.next_bytes;
    if (Status status = Adopt(*stored); !status.ok()) {
      Depose(status);
      return;
    }
    if (is_ours) {
      FinishFront(Status::Ok());
      return;
    }
    on_change_();
    TryFront();
    return;
  }
  // The record is what the transaction compared with.
  if (why.code() != StatusCode::kStale) {
    RetryLater(why);
  } else if (front.conditions.empty() || !exists()) {
    Depose(Stale("another node was elected leader of job " + job_.value));
  } else {
    ProbeTerm();
  }
}

void RecordWriter::ProbeTerm() {
  const auto on_probe = [this](const Result<TransactionResult>& result) {
    if (!result.ok()) {
      RetryLater(result.status());
    } else if (!result->succeeded) {
      Depose(Stale("another node was elected leader of job " + job_.value));
    } else {
      FinishFront(Stale("a node that was counted on is not alive any more"));
    }
  };
  Transaction probe;
  probe.compares.push_back(TermCondition());
  seams_.metadata->Commit(std::move(probe), seams_.executor->Now() + config_.transaction_deadline,
                          lifetime_.Wrap(on_probe));
}

void RecordWriter::FinishFront(const Status& status) {
  const StatusCompletion done = std::move(queue_.front().done);
  const bool changed = status.ok();
  queue_.pop_front();
  busy_ = false;
  if (changed) on_change_();
  done(status);
  seams_.executor->Post(lifetime_.Wrap([this] { Next(); }));
}

void RecordWriter::Depose(const Status& why) {
  deposed_ = true;
  busy_ = false;
  std::deque<Pending> waiting = std::move(queue_);
  queue_.clear();
  // Unavailable to whoever waits: the next leader may well do it.
  for (const Pending& pending : waiting) pending.done(Unavailable(why.message()));
  on_deposed_(why);
}

}  // namespace backstay::replication
