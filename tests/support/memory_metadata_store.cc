#include "tests/support/memory_metadata_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace backstay::testing {

using replication::EmbeddedMetadataStore;
using replication::KeyValue;
using replication::LeaseId;
using replication::MetadataChange;
using replication::MetadataEngine;
using replication::MetadataJournal;
using replication::MetadataLease;
using replication::MetadataStore;
using replication::RangeResult;
using replication::Revision;
using replication::Transaction;
using replication::TransactionResult;

class MemoryMetadata::Journal : public MetadataJournal {
 public:
  explicit Journal(MemoryMetadata* service) : service_(service) {}

  void Append(MetadataChange change, StatusCompletion done) override {
    auto write = [this, change = std::move(change), done = std::move(done)] {
      if (failure_.ok()) failure_ = service_->write_failure_;
      if (failure_.ok()) service_->Apply(change);
      done(failure_);
    };
    // One disk: a write never ends before the one that was started before it.
    ends_ = std::max(ends_, service_->executor_->Now() + service_->write_delay_);
    service_->executor_->RunAt(ends_, lifetime_.Wrap(std::move(write)));
  }

 private:
  MemoryMetadata* const service_;
  Instant ends_;
  Status failure_;
  Lifetime lifetime_;
};

MemoryMetadata::MemoryMetadata(Executor* executor, StoreId store_id) : executor_(executor) {
  disk_.store_id = std::move(store_id);
  Start();
}

MemoryMetadata::~MemoryMetadata() {
  BACKSTAY_CHECK(clients_.empty(), "a client of the metadata service outlives it");
}

std::unique_ptr<MemoryMetadataClient> MemoryMetadata::NewClient() {
  return NewClient(disk_.store_id);
}

std::unique_ptr<MemoryMetadataClient> MemoryMetadata::NewClient(StoreId store_id) {
  const uint64_t id = ++last_client_;
  std::unique_ptr<MemoryMetadataClient> client(
      new MemoryMetadataClient(this, id, std::move(store_id)));
  clients_[id] = client.get();
  return client;
}

void MemoryMetadata::Stop() {
  store_.reset();
  for (const auto& [id, client] : clients_) client->FailOutstanding("the metadata service stopped");
}

void MemoryMetadata::Start() {
  BACKSTAY_CHECK(!running(), "the metadata service runs already");
  write_failure_ = Status::Ok();
  Result<MetadataEngine> engine = MetadataEngine::Make(disk_, executor_->Now());
  store_ = std::make_unique<EmbeddedMetadataStore>(std::move(engine).value(),
                                                   std::make_unique<Journal>(this), executor_);
}

void MemoryMetadata::Replace(StoreId store_id) {
  Stop();
  disk_ = {};
  disk_.store_id = std::move(store_id);
  Start();
}

void MemoryMetadata::Apply(const MetadataChange& change) {
  disk_.revision = change.revision;
  disk_.last_lease = change.last_lease;
  const auto erase_key = [this](const std::string& key) {
    std::erase_if(disk_.pairs, [&key](const KeyValue& pair) { return pair.key == key; });
  };
  for (const std::string& key : change.deletes) erase_key(key);
  for (const KeyValue& put : change.puts) {
    erase_key(put.key);
    const auto before = [](const KeyValue& pair, const std::string& key) { return pair.key < key; };
    disk_.pairs.insert(std::lower_bound(disk_.pairs.begin(), disk_.pairs.end(), put.key, before),
                       put);
  }
  for (const LeaseId ended : change.ended) {
    std::erase_if(disk_.leases, [ended](const MetadataLease& lease) { return lease.id == ended; });
  }
  disk_.leases.insert(disk_.leases.end(), change.granted.begin(), change.granted.end());
}

MemoryMetadataClient::MemoryMetadataClient(MemoryMetadata* service, uint64_t id, StoreId store_id)
    : service_(service), executor_(service->executor_), id_(id), store_id_(std::move(store_id)) {}

MemoryMetadataClient::~MemoryMetadataClient() {
  for (const auto& [call, pending] : pending_) executor_->CancelTimer(pending.timer);
  service_->clients_.erase(id_);
}

void MemoryMetadataClient::SetUnavailable(bool unavailable) {
  unavailable_ = unavailable;
  if (unavailable) FailOutstanding("the connection to the metadata service was cut");
}

void MemoryMetadataClient::SetDelay(Duration request, Duration reply) {
  request_delay_ = request;
  reply_delay_ = reply;
}

void MemoryMetadataClient::GetStoreId(Deadline deadline, Completion<StoreId> done) {
  Call<Result<StoreId>>(
      Kind::kBind, deadline,
      [this, done = std::move(done)](Result<StoreId> id) {
        if (id.ok() && store_id_.empty()) store_id_ = *id;
        if (id.ok() && store_id_ != *id)
          id = Stale("the metadata store is " + id->value + ", not " + store_id_.value);
        done(std::move(id));
      },
      [deadline](MetadataStore& store, Completion<StoreId> answer) {
        store.GetStoreId(deadline, std::move(answer));
      });
}

void MemoryMetadataClient::Commit(Transaction transaction, Deadline deadline,
                                  Completion<TransactionResult> done) {
  Call<Result<TransactionResult>>(Kind::kChange, deadline, std::move(done),
                                  [transaction = std::move(transaction), deadline](
                                      MetadataStore& store, Completion<TransactionResult> answer) {
                                    store.Commit(transaction, deadline, std::move(answer));
                                  });
}

void MemoryMetadataClient::Range(std::string prefix, Deadline deadline,
                                 Completion<RangeResult> done) {
  Call<Result<RangeResult>>(
      Kind::kRead, deadline, std::move(done),
      [prefix = std::move(prefix), deadline](MetadataStore& store, Completion<RangeResult> answer) {
        store.Range(prefix, deadline, std::move(answer));
      });
}

void MemoryMetadataClient::WaitForChange(std::string prefix, Revision after, Deadline deadline,
                                         Completion<RangeResult> done) {
  Call<Result<RangeResult>>(Kind::kWait, deadline, std::move(done),
                            [prefix = std::move(prefix), after, deadline](
                                MetadataStore& store, Completion<RangeResult> answer) {
                              store.WaitForChange(prefix, after, deadline, std::move(answer));
                            });
}

void MemoryMetadataClient::GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) {
  Call<Result<LeaseId>>(Kind::kChange, deadline, std::move(done),
                        [ttl, deadline](MetadataStore& store, Completion<LeaseId> answer) {
                          store.GrantLease(ttl, deadline, std::move(answer));
                        });
}

void MemoryMetadataClient::RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) {
  Call<Status>(Kind::kRead, deadline, std::move(done),
               [lease, deadline](MetadataStore& store, StatusCompletion answer) {
                 store.RenewLease(lease, deadline, std::move(answer));
               });
}

void MemoryMetadataClient::RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) {
  Call<Status>(Kind::kChange, deadline, std::move(done),
               [lease, deadline](MetadataStore& store, StatusCompletion answer) {
                 store.RevokeLease(lease, deadline, std::move(answer));
               });
}

template <typename T>
void MemoryMetadataClient::Call(Kind kind, Deadline deadline, std::function<void(T)> done,
                                std::function<void(MetadataStore&, std::function<void(T)>)> send) {
  const uint64_t call = ++last_call_;
  Pending pending{
      .kind = kind, .timer = kNoTimer, .fail = [done](Status status) { done(std::move(status)); }};
  // A wait that lasts until its deadline is answered by the store, not by this timer.
  if (kind != Kind::kWait && deadline != kNoDeadline) {
    auto expire = [this, call] {
      FailLater(call, DeadlineExceeded("the metadata service did not answer in time"));
    };
    pending.timer = executor_->RunAt(deadline, lifetime_.Wrap(std::move(expire)));
  }
  pending_.emplace(call, std::move(pending));
  if (unavailable_) return FailLater(call, Unavailable("the metadata service cannot be reached"));
  auto arrive = [this, call, kind, done = std::move(done), send = std::move(send)] {
    Send<T>(call, kind, std::move(done), std::move(send));
  };
  executor_->RunAfter(request_delay_, lifetime_.Wrap(std::move(arrive)));
}

template <typename T>
void MemoryMetadataClient::Send(uint64_t call, Kind kind, std::function<void(T)> done,
                                std::function<void(MetadataStore&, std::function<void(T)>)> send) {
  if (kind == Kind::kChange && lost_requests_ > 0) {
    --lost_requests_;
    return FailLater(call, UnknownOutcome("the metadata service did not answer"));
  }
  if (Status refusal = Refusal(kind); !refusal.ok()) return FailLater(call, std::move(refusal));
  const bool lose = kind == Kind::kChange && lost_replies_ > 0;
  if (lose) --lost_replies_;
  send(*service_->store_, lifetime_.Wrap([this, call, lose, done = std::move(done)](T result) {
    if (lose) return FailLater(call, UnknownOutcome("the metadata service did not answer"));
    if (reply_delay_ == Duration::zero()) return Finish<T>(call, done, std::move(result));
    auto arrive = [this, call, done, result = std::move(result)] { Finish<T>(call, done, result); };
    executor_->RunAfter(reply_delay_, lifetime_.Wrap(std::move(arrive)));
  }));
}

template <typename T>
void MemoryMetadataClient::Finish(uint64_t call, const std::function<void(T)>& done, T result) {
  const auto found = pending_.find(call);
  if (found == pending_.end()) return;  // Answered otherwise: deadline, or cut off.
  executor_->CancelTimer(found->second.timer);
  pending_.erase(found);
  done(std::move(result));
}

Status MemoryMetadataClient::Refusal(Kind kind) const {
  if (!service_->running()) return Unavailable("the metadata service is not running");
  if (kind == Kind::kBind) return Status::Ok();
  if (store_id_.empty())
    return Unavailable("the metadata store's id is not known yet; ask for it first");
  if (store_id_ != service_->disk_.store_id) {
    return Stale("the metadata store is " + service_->disk_.store_id.value + ", not " +
                 store_id_.value);
  }
  return Status::Ok();
}

void MemoryMetadataClient::FailLater(uint64_t call, Status status) {
  executor_->Post(lifetime_.Wrap([this, call, status = std::move(status)] {
    const auto found = pending_.find(call);
    if (found == pending_.end()) return;
    executor_->CancelTimer(found->second.timer);
    const std::function<void(Status)> fail = std::move(found->second.fail);
    pending_.erase(found);
    fail(status);
  }));
}

void MemoryMetadataClient::FailOutstanding(const std::string& why) {
  for (const auto& [call, pending] : pending_) {
    FailLater(call, pending.kind == Kind::kChange ? UnknownOutcome(why) : Unavailable(why));
  }
}

}  // namespace backstay::testing
