#include "replication/leader_election.h"

#include <utility>

#include "base/log.h"
#include "replication/metadata_keys.h"
#include "replication/metadata_records.pb.h"

namespace backstay::replication {
namespace {

// A record that cannot be read still shows that somebody leads: no name, but a term.
Leader DecodeLeader(const KeyValue& pair) {
  Leader leader;
  leader.term = Term(pair.create_revision);
  wire::LeaderRecord record;
  if (!record.ParseFromString(pair.value) || !CheckName("node", record.node_id()).ok() ||
      record.control_address().size() > kNodeTextBytesMax) {
    Log(LogLevel::kWarning, "a job's leader record in the metadata store is unreadable",
        {{"key", pair.key}});
    return leader;
  }
  leader.instance = {NodeId(record.node_id()), Incarnation(record.incarnation())};
  leader.control_address = record.control_address();
  return leader;
}

}  // namespace

LeaderElection::LeaderElection(MetadataStore* store, Executor* executor, Random* random,
                               Membership* membership, JobName job, LeaderElectionOptions options,
                               std::function<void()> listener)
    : store_(store),
      executor_(executor),
      membership_(membership),
      job_(std::move(job)),
      key_(LeaderKey(job_)),
      options_(options),
      listener_(std::move(listener)),
      retry_delay_(options.watch.retry_min, options.watch.retry_max, random) {
  watch_.emplace(
      store, executor, random, key_, options.watch,
      [this](const RangeResult& range, Instant) { OnState(range); },
      [this](const Status& error) {
        Log(LogLevel::kDebug, "reading a job's leader failed",
            {{"job", job_.value}, {"error", error.ToString()}});
      });
  membership_listener_ = membership_->OnChange(lifetime_.Wrap([this] {
    Step();
    NotifyIfChanged();
  }));
}

LeaderElection::~LeaderElection() {
  membership_->RemoveListener(membership_listener_);
  executor_->CancelTimer(retry_timer_);
}

void LeaderElection::Start() { watch_->Start(); }

void LeaderElection::SetCandidate(bool candidate) {
  candidate_ = candidate;
  Step();
  NotifyIfChanged();
}

Term LeaderElection::term() const {
  const LeaseId lease = membership_->lease();
  const bool own = candidate_ && leader_.has_value() && lease != kNoLease && lease == leader_lease_;
  return own ? leader_->term : Term();
}

std::optional<Compare> LeaderElection::TermCondition() const {
  if (!leading()) return std::nullopt;
  return Compare{.key = key_, .target = Compare::Target::kCreateRevision, .revision = term().value};
}

void LeaderElection::Step() {
  if (busy_ || retry_timer_ != kNoTimer || !known() || !membership_->in()) return;
  if (candidate_ && !leader_.has_value()) {
    Campaign();
  } else if (!candidate_ && leader_.has_value() && leader_lease_ == membership_->lease()) {
    Resign();
  }
}

void LeaderElection::Campaign() {
  busy_ = true;
  const Leader self{.instance = membership_->self(),
                    .control_address = membership_->record().control_address,
                    .term = Term()};
  wire::LeaderRecord record;
  record.set_node_id(self.instance.node.value);
  record.set_incarnation(self.instance.incarnation.value);
  record.set_control_address(self.control_address);
  const LeaseId lease = membership_->lease();
  Transaction transaction;
  transaction.compares = {{key_, Compare::Target::kCreateRevision, 0},
                          *membership_->SelfCondition()};
  transaction.operations = {{Operation::Kind::kPut, key_, record.SerializeAsString(), lease}};
  store_->Commit(std::move(transaction), executor_->Now() + options_.call_deadline,
                 lifetime_.Wrap([this, lease, self](const Result<TransactionResult>& result) {
                   OnCampaigned(lease, self, result);
                 }));
}

void LeaderElection::OnCampaigned(LeaseId lease, const Leader& self,
                                  const Result<TransactionResult>& result) {
  busy_ = false;
  // Lost, or not known: the watch tells who leads. The delay keeps a node from asking in a circle.
  if (!result.ok() || !result->succeeded) return RetryLater();
  retry_delay_.Reset();
  Leader leader = self;
  leader.term = Term(result->revision);
  Observe(result->revision, std::move(leader), lease);
}

void LeaderElection::Resign() {
  busy_ = true;
  Transaction transaction;
  transaction.compares = {{key_, Compare::Target::kCreateRevision, leader_->term.value}};
  transaction.operations = {{Operation::Kind::kDelete, key_, "", kNoLease}};
  store_->Commit(std::move(transaction), executor_->Now() + options_.call_deadline,
                 lifetime_.Wrap([this](const Result<TransactionResult>& result) {
                   busy_ = false;
                   if (!result.ok() || !result->succeeded) return RetryLater();
                   retry_delay_.Reset();
                   Observe(result->revision, std::nullopt, kNoLease);
                 }));
}

void LeaderElection::OnState(const RangeResult& range) {
  const KeyValue* pair = FindPair(range, key_);
  if (pair == nullptr) return Observe(range.revision, std::nullopt, kNoLease);
  Observe(range.revision, DecodeLeader(*pair), pair->lease);
}

void LeaderElection::Observe(Revision revision, std::optional<Leader> leader, LeaseId lease) {
  // An answer that was on its way while a transaction of our own succeeded tells the past.
  if (known() && revision < *read_revision_) return;
  read_revision_ = revision;
  leader_ = std::move(leader);
  leader_lease_ = lease;
  Step();
  NotifyIfChanged();
}

void LeaderElection::RetryLater() {
  auto step = [this] {
    retry_timer_ = kNoTimer;
    Step();
  };
  retry_timer_ = executor_->RunAfter(retry_delay_.Next(), lifetime_.Wrap(std::move(step)));
}

void LeaderElection::NotifyIfChanged() {
  if (told_known_ == known() && told_term_ == term() && told_leader_ == leader_) return;
  told_known_ = known();
  told_term_ = term();
  told_leader_ = leader_;
  if (notify_posted_) return;
  notify_posted_ = true;
  executor_->Post(lifetime_.Wrap([this] {
    notify_posted_ = false;
    listener_();
  }));
}

}  // namespace backstay::replication
