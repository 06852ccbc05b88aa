#include "replication/membership.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "replication/metadata_keys.h"
#include "replication/metadata_records.pb.h"

namespace backstay::replication {
namespace {

// A renewal may fail twice and the third still comes in time.
constexpr int kRenewalsPerTtl = 3;
// Of the view: with answers at least every third of a ttl, a view is confirmed in time unless two
// in a row are lost.
constexpr int kViewPollsPerTtl = 3;

MetadataWatchOptions WatchOptions(const MembershipOptions& options) {
  return {.poll = options.lease_ttl / kViewPollsPerTtl,
          .answer_slack = options.lease_ttl / 2,
          .retry_min = options.retry_min,
          .retry_max = options.retry_max};
}

}  // namespace

Membership::Membership(MetadataStore* store, Executor* executor, Random* random, NodeRecord record,
                       MembershipOptions options)
    : store_(store),
      executor_(executor),
      options_(options),
      record_(std::move(record)),
      node_(record_.instance.node),
      why_not_in_(Unavailable("node " + node_.value + " has not been admitted yet")),
      retry_delay_(options.retry_min, options.retry_max, random) {
  BACKSTAY_CHECK(CheckNodeRecord(record_).ok(), "a node's own record breaks a limit");
  record_.instance.incarnation = Incarnation();
  watch_.emplace(
      store, executor, random, std::string(kNodesPrefix), WatchOptions(options),
      [this](const RangeResult& range, Instant asked_at) { OnView(range, asked_at); },
      [](const Status& error) {
        Log(LogLevel::kDebug, "reading the membership failed", {{"error", error.ToString()}});
      });
}

Membership::~Membership() {
  for (const TimerId timer : {retry_timer_, renew_timer_, end_timer_, stale_timer_}) {
    executor_->CancelTimer(timer);
  }
}

void Membership::Start() {
  watch_->Start();
  Step();
}

void Membership::Leave(Deadline deadline, StatusCompletion done) {
  const LeaseId lease = lease_;
  if (lease != kNoLease) LoseLease(Unavailable("node " + node_.value + " has left"));
  state_ = MembershipState::kLeft;
  why_not_in_ = Unavailable("node " + node_.value + " has left");
  ++session_;
  executor_->CancelTimer(retry_timer_);
  watch_.reset();
  executor_->CancelTimer(stale_timer_);
  view_.current = false;
  Notify();
  if (lease == kNoLease) return executor_->Post([done = std::move(done)] { done(Status::Ok()); });
  store_->RevokeLease(lease, deadline, [done = std::move(done)](const Status& status) {
    done(status.code() == StatusCode::kNotFound ? Status::Ok() : status);
  });
}

MembershipState Membership::state() const {
  const bool over = state_ == MembershipState::kIn && executor_->Now() >= lease_end_;
  return over ? MembershipState::kOut : state_;
}

Status Membership::status() const {
  if (in()) return Status::Ok();
  if (state_ != MembershipState::kIn) return why_not_in_;
  return Unavailable("node " + node_.value + " could not renew its lease in time");
}

NodeInstance Membership::self() const {
  return {node_, in() ? record_.instance.incarnation : Incarnation()};
}

LeaseId Membership::lease() const { return in() ? lease_ : kNoLease; }

std::optional<Compare> Membership::SelfCondition() const {
  if (!in()) return std::nullopt;
  return Compare{.key = NodeKey(node_),
                 .target = Compare::Target::kCreateRevision,
                 .revision = self_revision_};
}

Membership::ListenerId Membership::OnChange(std::function<void()> listener) {
  listeners_.emplace(++last_listener_, std::move(listener));
  return last_listener_;
}

template <typename F>
auto Membership::InSession(F callback) {
  return lifetime_.Wrap(
      [this, session = session_, callback = std::move(callback)](auto&&... args) mutable {
        if (session == session_) callback(std::forward<decltype(args)>(args)...);
      });
}

void Membership::Step() {
  if (state_ == MembershipState::kLeft || state_ == MembershipState::kIn) return;
  if (busy_ || retry_timer_ != kNoTimer) return;
  busy_ = true;
  if (old_lease_ != kNoLease) {
    EndOldLease();
  } else if (lease_ == kNoLease) {
    Grant();
  } else {
    ReadStarts();
  }
}

void Membership::EndOldLease() {
  store_->RevokeLease(old_lease_, CallDeadline(), InSession([this](const Status& status) {
                        if (!status.ok() && status.code() != StatusCode::kNotFound) {
                          return RetryLater(status);
                        }
                        old_lease_ = kNoLease;
                        busy_ = false;
                        Step();
                      }));
}

void Membership::Grant() {
  const Instant sent = executor_->Now();
  store_->GrantLease(
      options_.lease_ttl, CallDeadline(),
      InSession([this, sent](const Result<LeaseId>& lease) { OnGranted(sent, lease); }));
}

void Membership::OnGranted(Instant sent, const Result<LeaseId>& lease) {
  if (!lease.ok()) return RetryLater(lease.status());
  lease_ = *lease;
  busy_ = false;
  SetLeaseEnd(sent + options_.lease_ttl);
  RenewAt(sent + options_.lease_ttl / kRenewalsPerTtl);
  Step();
}

void Membership::ReadStarts() {
  const std::string key = NodeStartsKey(node_);
  store_->Range(key, CallDeadline(), InSession([this, key](const Result<RangeResult>& answer) {
                  if (!answer.ok()) return RetryLater(answer.status());
                  const KeyValue* pair = FindPair(*answer, key);
                  if (pair == nullptr) return Admit(0, 0);
                  wire::NodeStarts starts;
                  if (!starts.ParseFromString(pair->value)) {
                    return RetryLater(Corrupt("the start count of node " + node_.value +
                                              " in the metadata store cannot be read"));
                  }
                  Admit(starts.count(), pair->mod_revision);
                }));
}

void Membership::Admit(uint64_t starts, Revision starts_revision) {
  const NodeInstance instance{node_, Incarnation(starts + 1)};
  NodeRecord record = record_;
  record.instance = instance;
  wire::NodeStarts next;
  next.set_count(starts + 1);
  Transaction transaction;
  transaction.compares = {
      {NodeStartsKey(node_), Compare::Target::kModRevision, starts_revision},
      {NodeKey(node_), Compare::Target::kCreateRevision, 0},
  };
  transaction.operations = {
      {Operation::Kind::kPut, NodeStartsKey(node_), next.SerializeAsString(), kNoLease},
      {Operation::Kind::kPut, NodeKey(node_), EncodeNodeRecord(record), lease_},
  };
  store_->Commit(std::move(transaction), CallDeadline(),
                 InSession([this, instance](const Result<TransactionResult>& result) {
                   OnAdmitted(instance, result);
                 }));
}

void Membership::OnAdmitted(const NodeInstance& instance, const Result<TransactionResult>& result) {
  if (!result.ok()) {
    if (result.status().code() == StatusCode::kNotFound) return LoseLease(result.status());
    return RetryLater(result.status());
  }
  if (!result->succeeded) return ReadClaim();
  BecomeIn(instance.incarnation, result->revision);
}

void Membership::ReadClaim() {
  store_->Range(NodeKey(node_), CallDeadline(),
                InSession([this](const Result<RangeResult>& answer) { OnClaim(answer); }));
}

void Membership::OnClaim(const Result<RangeResult>& answer) {
  if (!answer.ok()) return RetryLater(answer.status());
  const KeyValue* pair = FindPair(*answer, NodeKey(node_));
  if (pair == nullptr) {
    return RetryLater(Unavailable("node " + node_.value + " was started twice at the same time"));
  }
  const Result<NodeRecord> claim = DecodeNodeRecord(pair->value);
  if (!claim.ok()) return RetryLater(claim.status());
  // The own lease: an admission whose answer was lost.
  if (pair->lease == lease_) return BecomeIn(claim->instance.incarnation, pair->create_revision);
  RetryLater(Unavailable("node id " + node_.value + " is claimed by start " +
                         std::to_string(claim->instance.incarnation.value) + " at " +
                         claim->control_address +
                         ", whose lease has not ended: wait, or give this node another id"));
}

void Membership::BecomeIn(Incarnation incarnation, Revision revision) {
  record_.instance.incarnation = incarnation;
  self_revision_ = revision;
  state_ = MembershipState::kIn;
  busy_ = false;
  retry_delay_.Reset();
  Log(LogLevel::kInfo, "admitted to the membership", {{"node", ToString(record_.instance)}});
  Notify();
}

void Membership::RetryLater(Status why) {
  busy_ = false;
  if (why != why_not_in_) {
    Log(LogLevel::kWarning, "not in the membership", {{"why", why.ToString()}});
    why_not_in_ = std::move(why);
    Notify();
  }
  auto step = [this] {
    retry_timer_ = kNoTimer;
    Step();
  };
  retry_timer_ = executor_->RunAfter(retry_delay_.Next(), lifetime_.Wrap(std::move(step)));
}

void Membership::RenewAt(Instant when) {
  renew_timer_ = executor_->RunAt(when, InSession([this] { Renew(); }));
}

void Membership::Renew() {
  const Instant sent = executor_->Now();
  const Deadline deadline = std::min(sent + options_.lease_ttl / kRenewalsPerTtl, lease_end_);
  store_->RenewLease(lease_, deadline,
                     InSession([this, sent](const Status& status) { OnRenewed(sent, status); }));
}

void Membership::OnRenewed(Instant sent, const Status& status) {
  if (status.ok()) {
    SetLeaseEnd(sent + options_.lease_ttl);
    return RenewAt(sent + options_.lease_ttl / kRenewalsPerTtl);
  }
  if (status.code() == StatusCode::kNotFound || status.code() == StatusCode::kStale) {
    return LoseLease(status);
  }
  Log(LogLevel::kDebug, "renewing the node's lease failed", {{"error", status.ToString()}});
  RenewAt(executor_->Now() + std::min(options_.retry_min, options_.lease_ttl / kRenewalsPerTtl));
}

void Membership::SetLeaseEnd(Instant end) {
  lease_end_ = end;
  executor_->CancelTimer(end_timer_);
  end_timer_ = executor_->RunAt(
      end, InSession([this] {
        LoseLease(Unavailable("node " + node_.value + " could not renew its lease in time"));
      }));
}

void Membership::LoseLease(Status why) {
  ++session_;
  executor_->CancelTimer(end_timer_);
  executor_->CancelTimer(renew_timer_);
  if (state_ == MembershipState::kIn) {
    state_ = MembershipState::kOut;
    Log(LogLevel::kWarning, "out of the membership", {{"why", why.ToString()}});
  }
  old_lease_ = lease_;
  lease_ = kNoLease;
  self_revision_ = 0;
  why_not_in_ = std::move(why);
  busy_ = false;
  Notify();
  // On the executor: the caller may be in the middle of a change of its own.
  executor_->Post(InSession([this] { Step(); }));
}

void Membership::OnView(const RangeResult& range, Instant asked_at) {
  std::map<NodeId, Member> members;
  for (const KeyValue& pair : range.pairs) {
    const Result<NodeId> node = ParseNodeKey(pair.key);
    Result<NodeRecord> record = DecodeNodeRecord(pair.value);
    if (!node.ok() || !record.ok() || record->instance.node != *node) {
      const NodeId name = node.ok() ? *node : NodeId(pair.key);
      if (std::exchange(unreadable_[name], pair.mod_revision) != pair.mod_revision) {
        const Status why = record.ok() ? Corrupt("it names another node") : record.status();
        Log(LogLevel::kWarning, "a node's record in the metadata store is unreadable",
            {{"key", pair.key}, {"error", why.ToString()}});
      }
      continue;
    }
    members[*node] = {.record = *std::move(record), .create_revision = pair.create_revision};
  }
  const bool changed = !view_.current || view_.revision == 0 || members != view_.members;
  view_.members = std::move(members);
  view_.revision = range.revision;
  view_.read_at = asked_at;
  const Instant stale_at = asked_at + options_.lease_ttl;
  view_.current = stale_at > executor_->Now();
  executor_->CancelTimer(stale_timer_);
  stale_timer_ = executor_->RunAt(stale_at, lifetime_.Wrap([this] { OnViewStale(); }));
  if (changed) Notify();
  if (state_ != MembershipState::kIn || range.revision < self_revision_) return;
  const Member* self = view_.Find(record_.instance);
  if (self == nullptr || self->create_revision != self_revision_) {
    LoseLease(Unavailable("node " + node_.value + " was removed from the membership"));
  }
}

void Membership::OnViewStale() {
  if (!std::exchange(view_.current, false)) return;
  Log(LogLevel::kWarning, "who is alive is not known: the metadata store does not answer");
  Notify();
}

void Membership::Notify() {
  if (notify_posted_) return;
  notify_posted_ = true;
  executor_->Post(lifetime_.Wrap([this] {
    notify_posted_ = false;
    // A listener may add or remove listeners.
    ListenerId last = 0;
    for (auto it = listeners_.begin(); it != listeners_.end(); it = listeners_.upper_bound(last)) {
      last = it->first;
      const std::function<void()> listener = it->second;
      listener();
    }
  }));
}

}  // namespace backstay::replication
