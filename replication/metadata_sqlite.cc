#include "replication/metadata_sqlite.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "replication/metadata_sqlite_file.h"

namespace backstay::replication {
namespace {

// Writes changes to the file on a thread of its own; all that waits while one sync is under way
// share the next.
//
// Thread:  Append() and completions on the executor. The file belongs to the thread.
// Memory:  the store bounds what waits.
// Failure: see MetadataJournal. Destruction writes what was appended, then stops the thread.
class SqliteJournal : public MetadataJournal {
 public:
  SqliteJournal(std::unique_ptr<MetadataSqliteFile> file, Executor* executor)
      : executor_(executor),
        file_(std::move(file)),
        written_(lifetime_.Wrap(
            [this](size_t count, const Status& status) { OnWritten(count, status); })) {
    thread_ = std::thread([this] { WriteUntilStopped(); });
  }

  ~SqliteJournal() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Append(MetadataChange change, StatusCompletion done) override {
    completions_.push_back(std::move(done));
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(change));
    }
    wake_.notify_one();
  }

 private:
  void WriteUntilStopped() {
    std::vector<MetadataChange> batch;
    while (TakeBatch(&batch)) {
      const Status status = file_->Write(batch);
      executor_->Post(
          [written = written_, count = batch.size(), status] { written(count, status); });
    }
  }

  // Waits for changes. False: there are none and none will come.
  bool TakeBatch(std::vector<MetadataChange>* batch) {
    batch->clear();
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    std::swap(*batch, queue_);
    return !batch->empty();
  }

  void OnWritten(size_t count, const Status& status) {
    if (!status.ok() && !failed_)
      Log(LogLevel::kError, "writing metadata failed", {{"error", status.ToString()}});
    failed_ = failed_ || !status.ok();
    for (; count > 0; --count) {
      const StatusCompletion done = std::move(completions_.front());
      completions_.pop_front();
      done(status);
    }
  }

  Executor* const executor_;
  const std::unique_ptr<MetadataSqliteFile> file_;  // The thread's.
  std::deque<StatusCompletion> completions_;        // The executor's, in the order of the changes.
  bool failed_ = false;                             // The executor's: the failure has been logged.

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<MetadataChange> queue_;  // Guarded by mutex_.
  bool stopping_ = false;              // Guarded by mutex_.

  std::thread thread_;
  Lifetime lifetime_;
  const std::function<void(size_t, const Status&)> written_;
};

}  // namespace

Result<std::unique_ptr<EmbeddedMetadataStore>> OpenEmbeddedMetadataStore(
    const EmbeddedMetadataOptions& options, Random* random, Executor* executor) {
  MetadataSnapshot snapshot;
  BACKSTAY_ASSIGN_OR_RETURN(std::unique_ptr<MetadataSqliteFile> file,
                            MetadataSqliteFile::Open(options, random, &snapshot));
  BACKSTAY_ASSIGN_OR_RETURN(MetadataEngine engine, MetadataEngine::Make(snapshot, executor->Now()));
  auto journal = std::make_unique<SqliteJournal>(std::move(file), executor);
  return std::make_unique<EmbeddedMetadataStore>(std::move(engine), std::move(journal), executor);
}

}  // namespace backstay::replication
