#include "replication/metadata_watch.h"

#include <algorithm>
#include <utility>

namespace backstay::replication {

Duration RetryDelay::Next() {
  const Duration delay = next_;
  next_ = std::min(next_ * 2, max_);
  const auto half = static_cast<uint64_t>(delay.count() / 2);
  return delay - Duration(static_cast<int64_t>(half == 0 ? 0 : random_->Next() % half));
}

MetadataWatch::MetadataWatch(MetadataStore* store, Executor* executor, Random* random,
                             std::string prefix, MetadataWatchOptions options,
                             StateCallback on_state, ErrorCallback on_error)
    : store_(store),
      executor_(executor),
      prefix_(std::move(prefix)),
      options_(options),
      on_state_(std::move(on_state)),
      on_error_(std::move(on_error)),
      retry_delay_(options.retry_min, options.retry_max, random) {}

MetadataWatch::~MetadataWatch() { executor_->CancelTimer(retry_timer_); }

void MetadataWatch::Start() { Ask(); }

void MetadataWatch::Ask() {
  const Instant now = executor_->Now();
  auto answered =
      lifetime_.Wrap([this, now](const Result<RangeResult>& answer) { OnAnswer(now, answer); });
  if (!read_once_) {
    store_->Range(prefix_, now + options_.answer_slack, std::move(answered));
  } else {
    store_->WaitForChange(prefix_, revision_, now + options_.poll, std::move(answered));
  }
}

void MetadataWatch::OnAnswer(Instant asked_at, const Result<RangeResult>& answer) {
  if (!answer.ok()) return Retry(answer.status());
  if (answer->revision < revision_) {
    return Retry(Stale("the metadata store went back from revision " + std::to_string(revision_) +
                       " to " + std::to_string(answer->revision) +
                       ": an old copy was put in its place"));
  }
  retry_delay_.Reset();
  read_once_ = true;
  revision_ = answer->revision;
  Ask();
  on_state_(*answer, asked_at);
}

void MetadataWatch::Retry(const Status& error) {
  // What happened meanwhile is unknown, so the next question is for the state, not for a change.
  read_once_ = false;
  auto ask = [this] {
    retry_timer_ = kNoTimer;
    Ask();
  };
  retry_timer_ = executor_->RunAfter(retry_delay_.Next(), lifetime_.Wrap(std::move(ask)));
  on_error_(error);
}

}  // namespace backstay::replication
