#include "replication/job_store.h"

#include <utility>

#include "base/log.h"
#include "replication/metadata_keys.h"
#include "replication/metadata_watch.h"

namespace backstay::replication {
namespace {

Result<StoredJob> Extract(const JobName& job, Result<RangeResult> answer) {
  if (!answer.ok()) return answer.status();
  const KeyValue* pair = FindPair(*answer, JobRecordKey(job));
  if (pair == nullptr) return NotFound("job " + job.value + " has no record");
  return StoredJob{.bytes = pair->value, .revision = pair->mod_revision};
}

}  // namespace

// One write or removal on its way through commits and re-reads.
struct JobStore::Update {
  JobName job;
  std::string key;
  std::optional<std::string> bytes;  // Nothing: remove.
  Revision expected = 0;
  std::vector<Compare> conditions;
  Deadline deadline;
  Completion<Revision> done;
  bool uncertain = false;  // Some transaction of it was sent and not answered.
  bool refused = false;    // The last transaction of it was answered: a comparison did not hold.
  RetryDelay retry_delay;
};

JobStore::JobStore(MetadataStore* store, Executor* executor, Random* random)
    : store_(store), executor_(executor), random_(random) {}

void JobStore::Read(const JobName& job, Deadline deadline, Completion<StoredJob> done) {
  auto read = [job, done = std::move(done)](Result<RangeResult> answer) {
    done(Extract(job, std::move(answer)));
  };
  store_->Range(JobRecordKey(job), deadline, lifetime_.Wrap(std::move(read)));
}

void JobStore::WaitForChange(const JobName& job, Revision after, Deadline deadline,
                             Completion<StoredJob> done) {
  auto read = [job, done = std::move(done)](Result<RangeResult> answer) {
    done(Extract(job, std::move(answer)));
  };
  store_->WaitForChange(JobRecordKey(job), after, deadline, lifetime_.Wrap(std::move(read)));
}

void JobStore::Write(const JobName& job, std::string bytes, Revision expected,
                     std::vector<Compare> conditions, Deadline deadline,
                     Completion<Revision> done) {
  Commit(std::make_shared<Update>(Update{.job = job,
                                         .key = JobRecordKey(job),
                                         .bytes = std::move(bytes),
                                         .expected = expected,
                                         .conditions = std::move(conditions),
                                         .deadline = deadline,
                                         .done = std::move(done),
                                         .uncertain = false,
                                         .refused = false,
                                         .retry_delay = {kRetryMin, kRetryMax, random_}}));
}

void JobStore::Remove(const JobName& job, Revision expected, std::vector<Compare> conditions,
                      Deadline deadline, StatusCompletion done) {
  auto removed = [done = std::move(done)](const Result<Revision>& result) {
    done(result.status());
  };
  Commit(std::make_shared<Update>(Update{.job = job,
                                         .key = JobRecordKey(job),
                                         .bytes = std::nullopt,
                                         .expected = expected,
                                         .conditions = std::move(conditions),
                                         .deadline = deadline,
                                         .done = std::move(removed),
                                         .uncertain = false,
                                         .refused = false,
                                         .retry_delay = {kRetryMin, kRetryMax, random_}}));
}

void JobStore::List(Deadline deadline, Completion<JobListing> done) {
  auto list = [done = std::move(done)](const Result<RangeResult>& answer) {
    if (!answer.ok()) return done(answer.status());
    JobListing listing;
    for (const KeyValue& pair : answer->pairs) {
      Result<JobName> job = ParseJobRecordKey(pair.key);
      if (job.ok()) {
        listing.jobs.push_back(*std::move(job));
      } else if (job.status().code() != StatusCode::kNotFound) {
        Log(LogLevel::kWarning, "a job's key in the metadata store is unreadable",
            {{"key", pair.key}, {"error", job.status().ToString()}});
      }
    }
    done(std::move(listing));
  };
  store_->Range(std::string(kJobsPrefix), deadline, lifetime_.Wrap(std::move(list)));
}

void JobStore::Commit(std::shared_ptr<Update> update) {
  if (Status status = CheckName("job", update->job.value); !status.ok()) {
    return executor_->Post(lifetime_.Wrap([update, status] { update->done(status); }));
  }
  Transaction transaction;
  transaction.compares = update->conditions;
  transaction.compares.push_back({update->key, Compare::Target::kModRevision, update->expected});
  transaction.operations.push_back(
      update->bytes.has_value()
          ? Operation{Operation::Kind::kPut, update->key, *update->bytes, kNoLease}
          : Operation{Operation::Kind::kDelete, update->key, "", kNoLease});
  store_->Commit(std::move(transaction), update->deadline,
                 lifetime_.Wrap([this, update](const Result<TransactionResult>& result) {
                   OnCommitted(update, result);
                 }));
}

void JobStore::OnCommitted(std::shared_ptr<Update> update,
                           const Result<TransactionResult>& result) {
  if (result.ok() && result->succeeded) return update->done(result->revision);
  update->refused = result.ok();
  if (result.ok()) {
    // Perhaps it is an earlier try of our own that the comparison met.
    if (update->uncertain) return Resolve(std::move(update));
    return update->done(Stale("the record of job " + update->job.value +
                              " or what it depends on has changed since it was read"));
  }
  const StatusCode code = result.status().code();
  if (code == StatusCode::kUnknownOutcome || code == StatusCode::kDeadline) {
    update->uncertain = true;
    return ResolveLater(std::move(update), result.status());
  }
  if (!update->uncertain) return update->done(result.status());
  ResolveLater(std::move(update), result.status());
}

void JobStore::Resolve(std::shared_ptr<Update> update) {
  store_->Range(update->key, update->deadline,
                lifetime_.Wrap([this, update](const Result<RangeResult>& answer) {
                  OnResolved(update, answer);
                }));
}

void JobStore::OnResolved(std::shared_ptr<Update> update, const Result<RangeResult>& answer) {
  if (!answer.ok()) return ResolveLater(std::move(update), answer.status());
  const KeyValue* pair = FindPair(*answer, update->key);
  const Revision revision = pair == nullptr ? 0 : pair->mod_revision;
  if (revision == update->expected) {
    // Not written so far, but the lost request may still arrive. Writing again settles it: only one
    // of the two can succeed, and if it was this that was refused, so is the other.
    if (!update->refused) return Commit(std::move(update));
    return update->done(Stale("what the record of job " + update->job.value +
                              " depends on has changed since it was read"));
  }
  if (pair == nullptr && !update->bytes.has_value()) return update->done(answer->revision);
  if (pair != nullptr && update->bytes.has_value() && pair->value == *update->bytes) {
    return update->done(pair->mod_revision);
  }
  update->done(Stale("the record of job " + update->job.value + " was changed by another writer"));
}

void JobStore::ResolveLater(std::shared_ptr<Update> update, const Status& why) {
  const Instant at = executor_->Now() + update->retry_delay.Next();
  if (at >= update->deadline) {
    return update->done(UnknownOutcome("whether the record of job " + update->job.value +
                                       " was written could not be found out: " + why.message()));
  }
  executor_->RunAt(at, lifetime_.Wrap([this, update] { Resolve(update); }));
}

}  // namespace backstay::replication
