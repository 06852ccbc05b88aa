#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/random.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// A job's record in the metadata store; what the bytes mean is job_record.h's business.
struct StoredJob {
  std::string bytes;
  Revision revision = 0;  // Of the transaction that wrote it: what the next write compares.
};

struct JobListing {
  std::vector<JobName> jobs;  // In the order of their keys.
};

// Reads and writes the records of jobs. A write is one transaction that compares the record's last
// revision and whatever else must hold: the leader's term, nodes that must be alive.
//
// Thread:  the owning executor; completions never run before the call has returned.
// Memory:  pointers outlive it; outstanding completions are dropped when it is destroyed.
// Failure: a lost answer to a write is resolved by reading: a record of a later revision that holds
//          the very bytes is ours. kUnknownOutcome only when the deadline came first.
class JobStore {
 public:
  JobStore(MetadataStore* store, Executor* executor, Random* random);
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  // kNotFound: it is certain that the job has no record.
  void Read(const JobName& job, Deadline deadline, Completion<StoredJob> done);

  // As Read(), once the record is another one than at store revision `after`, or at `deadline` as
  // it is. kNotFound when it has been removed, or still does not exist at the deadline.
  void WaitForChange(const JobName& job, Revision after, Deadline deadline,
                     Completion<StoredJob> done);

  // Puts `bytes`, if the record's revision is `expected` (0: the job has none) and all `conditions`
  // hold; the result is the record's new revision. kStale: a comparison did not hold, so the caller
  // acts on the past; nothing was written. kInvalidArgument: a bad name, or too many or too large.
  void Write(const JobName& job, std::string bytes, Revision expected,
             std::vector<Compare> conditions, Deadline deadline, Completion<Revision> done);

  // Removes the record under the same rules. A record that is gone counts as removed.
  void Remove(const JobName& job, Revision expected, std::vector<Compare> conditions,
              Deadline deadline, StatusCompletion done);

  // All jobs that have a record.
  void List(Deadline deadline, Completion<JobListing> done);

  static constexpr Duration kRetryMin = std::chrono::milliseconds(20);
  static constexpr Duration kRetryMax = std::chrono::seconds(1);

 private:
  struct Update;

  void Commit(std::shared_ptr<Update> update);
  void OnCommitted(std::shared_ptr<Update> update, const Result<TransactionResult>& result);
  // Finds out whether a transaction whose answer was lost has happened.
  void Resolve(std::shared_ptr<Update> update);
  void OnResolved(std::shared_ptr<Update> update, const Result<RangeResult>& answer);
  void ResolveLater(std::shared_ptr<Update> update, const Status& why);

  MetadataStore* const store_;
  Executor* const executor_;
  Random* const random_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
