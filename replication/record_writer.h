#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "replication/job_record.h"
#include "replication/job_store.h"
#include "replication/leader_seams.h"
#include "replication/metadata_watch.h"

namespace backstay::replication {

// A leader's copy of its job's record, and the only way in which it changes: one transition of
// job_record.h after the other, each one transaction conditional on the record's revision, on the
// leader's term, and on what the caller adds.
//
// Thread:  the owning executor. Completions run there, never inside Apply().
// Memory:  what `seams` points to outlives it; completions do not run once it is gone.
// Failure: an outcome that is not known is found out by reading the record again. A record that
//          somebody else wrote is taken over and the change is tried on that one: its own
//          conditions decide. A term that does not hold any more ends the leadership: `on_deposed`.
class RecordWriter {
 public:
  static constexpr size_t kChangesMax = 256;
  static constexpr int kTriesMax = 16;  // Of one change, on a record that keeps moving.

  // Of the current record; a default one while the job has none.
  using Change = std::function<Result<wire::JobRecord>(const wire::JobRecord& current)>;

  RecordWriter(JobName job, Term term, const LeaderSeams& seams, const LeaderConfig& config,
               std::function<void()> on_change, StatusCompletion on_deposed);
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Reads the record until it is known.
  void Start();

  bool loaded() const { return loaded_; }
  bool exists() const { return revision_ != 0; }
  const wire::JobRecord& record() const { return record_; }
  Revision revision() const { return revision_; }

  // `done`: ok once the change is recorded (or changes nothing). The change's own error: nothing
  // was written. kStale: one of `conditions` does not hold. kUnavailable: the store could not be
  // reached in time, or the leadership has ended; this leader does not make the change any more.
  void Apply(Change change, std::vector<Compare> conditions, StatusCompletion done);

 private:
  struct Pending {
    Change change;
    std::vector<Compare> conditions;
    StatusCompletion done;
    Deadline deadline;
    int tries = 0;
    wire::JobRecord next;
    std::string next_bytes;  // Empty before the first try.
  };

  Compare TermCondition() const;
  void Load();
  Status Adopt(const StoredJob& stored);
  void Next();
  void TryFront();
  void OnWritten(const Result<Revision>& result);
  // Reads what the record is after an attempt that failed with `why`.
  void Reread(const Status& why);
  void OnReread(const Status& why, const Result<StoredJob>& stored);
  // Only the caller's conditions or the term can have failed: finds out which.
  void ProbeTerm();
  void RetryLater(const Status& why);
  void FinishFront(const Status& status);
  void Depose(const Status& why);

  const JobName job_;
  const Term term_;
  const LeaderSeams seams_;
  const LeaderConfig config_;
  const std::function<void()> on_change_;
  const StatusCompletion on_deposed_;

  bool loaded_ = false;
  wire::JobRecord record_;
  std::string bytes_;
  Revision revision_ = 0;
  bool busy_ = false;  // The front of the queue is being written.
  bool deposed_ = false;
  std::deque<Pending> queue_;
  RetryDelay delay_;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
