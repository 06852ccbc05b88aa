#include "tools/node/trainer_session.h"

#include <utility>

#include "replication/token_digest.h"

namespace backstay::tools {

using replication::ClaimAgent;

TrainerSession::TrainerSession(Node& node, replication::ProcessId process,
                               replication::TrainerListener* listener)
    : node_(node), process_(process), listener_(listener) {
  node_.sessions_.insert(this);
}

TrainerSession::~TrainerSession() {
  node_.sessions_.erase(this);
  if (node_.core_ == nullptr) return;
  for (const replication::FetchHandle fetch : open_) {
    // It was open; there is nobody left to tell otherwise.
    (void)node_.core_->fetches.Close(fetch);
  }
  if (const Result<ClaimAgent*> claim = Claim(); claim.ok()) (*claim)->Disconnect(*claim_);
}

template <typename T>
void TrainerSession::Answer(Completion<T> done, Result<T> value) {
  node_.seams_.executor->Post(
      lifetime_.Wrap([done = std::move(done), value = std::move(value)] { done(value); }));
}

void TrainerSession::Answer(StatusCompletion done, Status status) {
  node_.seams_.executor->Post(
      lifetime_.Wrap([done = std::move(done), status = std::move(status)] { done(status); }));
}

Result<Node::JobHost*> TrainerSession::Host(const JobName& job) const {
  Node::JobHost* host = node_.Host(job);
  if (host == nullptr) {
    const Status member = node_.MembershipStatus();
    if (member.ok()) {
      return Unavailable("this node serves " + std::to_string(Node::kJobsMax) + " jobs already");
    }
    return Unavailable("this node is not a member of its cluster yet: " + member.message());
  }
  return host;
}

Result<ClaimAgent*> TrainerSession::Claim() const {
  if (!claim_) return InvalidArgument("the trainer has not registered a shard yet");
  BACKSTAY_ASSIGN_OR_RETURN(Node::JobHost * host, Host(job_));
  return host->agent->FindClaim(shard_, *claim_);
}

void TrainerSession::AuthorizeRead(const JobName& job, StatusCompletion done) {
  if (const Result<ClaimAgent*> claim = Claim(); !claim.ok()) {
    return Answer(std::move(done), claim.status());
  }
  node_.AuthorizeRead(job, token_digest_, lifetime_.Wrap(std::move(done)));
}

void TrainerSession::Emit(const replication::TrainerEvent& event) {
  node_.seams_.executor->Post(lifetime_.Wrap([this, event] { listener_->OnEvent(event); }));
}

// ---- Claim --------------------------------------------------------------------------------------

void TrainerSession::Register(replication::ShardClaim claim,
                              Completion<replication::ClaimReply> done) {
  const auto bad_name = [](const std::string& name) {
    return name.empty() || name.size() > kNameBytesMax || name.find('\0') != std::string::npos;
  };
  if (bad_name(claim.job.value) || bad_name(claim.shard.value)) {
    return Answer(std::move(done),
                  Result<replication::ClaimReply>(InvalidArgument(
                      "names of jobs and shards have 1 to " + std::to_string(kNameBytesMax) +
                      " bytes, none of them zero")));
  }
  if (claim_ && claim.job != job_) {
    return Answer(std::move(done),
                  Result<replication::ClaimReply>(InvalidArgument(
                      "this connection has claimed shard " + shard_.value + " of job " +
                      job_.value + "; another job needs another connection")));
  }
  if (registering_ != 0 && (claim.job != asked_job_ || claim.shard != asked_shard_)) {
    return Answer(std::move(done),
                  Result<replication::ClaimReply>(InvalidArgument(
                      "this connection is registering shard " + asked_shard_.value + " of job " +
                      asked_job_.value + "; another shard needs another connection")));
  }
  const Result<Node::JobHost*> host = Host(claim.job);
  if (!host.ok()) {
    return Answer(std::move(done), Result<replication::ClaimReply>(host.status()));
  }
  asked_job_ = claim.job;
  asked_shard_ = claim.shard;
  ++registering_;
  (*host)->agent->Register(
      process_, claim,
      lifetime_.Wrap([this](const replication::TrainerEvent& event) { Emit(event); }),
      lifetime_.Wrap([this, done, token_digest = replication::TokenDigest(claim.token)](
                         const Result<ClaimAgent::Registered>& registered) {
        --registering_;
        if (!registered.ok()) return done(registered.status());
        // A rank that comes back under another number goes on with that number's shard.
        if (claim_ && shard_ != asked_shard_) {
          if (const Result<Node::JobHost*> old = Host(job_); old.ok()) {
            (*old)->agent->LeaveClaim(shard_, *claim_);
          }
        }
        // Only a token that the job's leader has accepted speaks for this connection.
        job_ = asked_job_;
        shard_ = asked_shard_;
        token_digest_ = token_digest;
        claim_ = registered->number;
        done(registered->reply);
      }));
  // A node with a trainer stands for the job's leadership: somebody has to admit it.
  node_.StepLeadership(**host);
}

void TrainerSession::Resize(uint64_t size_bytes, StatusCompletion done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) return Answer(std::move(done), claim.status());
  (*claim)->Resize(size_bytes, lifetime_.Wrap(std::move(done)));
}

// ---- Saves --------------------------------------------------------------------------------------

void TrainerSession::Begin(Step step, Duration timeout, Completion<replication::BeginReply> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) {
    return Answer(std::move(done), Result<replication::BeginReply>(claim.status()));
  }
  ClaimAgent& agent = **claim;
  agent.saves().Begin(agent.generation(), step, agent.client(), agent.reservation(), timeout,
                      lifetime_.Wrap(std::move(done)));
}

void TrainerSession::StartCopy(replication::SaveHandle save, uint64_t used_bytes,
                               std::string contents, StatusCompletion done) {
  const Result<ClaimAgent*> claim = Claim();
  Answer(std::move(done),
         claim.ok() ? (*claim)->saves().StartCopy(save, used_bytes, contents) : claim.status());
}

void TrainerSession::Seal(replication::SaveHandle save, bool sound, Completion<std::string> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) return Answer(std::move(done), Result<std::string>(claim.status()));
  (*claim)->saves().Seal(save, sound, lifetime_.Wrap(std::move(done)));
}

void TrainerSession::StepIsSound(Step step, StatusCompletion done) {
  const Result<ClaimAgent*> claim = Claim();
  if (claim.ok()) (*claim)->saves().StepIsSound(step);
  Answer(std::move(done), claim.status());
}

void TrainerSession::Abandon(replication::SaveHandle save, StatusCompletion done) {
  const Result<ClaimAgent*> claim = Claim();
  Answer(std::move(done), claim.ok() ? (*claim)->saves().Abandon(save) : claim.status());
}

// Whatever became of the claim: the mapping is the process's.
void TrainerSession::OnSlotClosed(store::SlotId slot, store::ClientId client) {
  if (client.value != process_.value) return;
  replication::TrainerEvent event;
  event.kind = replication::TrainerEvent::Kind::kSlotClosed;
  event.slot_id = slot.value;
  Emit(event);
}

void TrainerSession::SlotUnmapped(uint64_t slot_id, StatusCompletion done) {
  Answer(std::move(done),
         node_.pool_.ClientUnmapped(store::ClientId(process_.value), store::SlotId(slot_id)));
}

void TrainerSession::Fence(Generation generation, std::string reason, int64_t seen_unix_ms) {
  const Result<ClaimAgent*> claim = Claim();
  const Result<Node::JobHost*> host = Host(job_);
  // A trainer that has lost its claim fences nothing.
  if (!claim.ok() || !host.ok()) return;
  (*host)->agent->Fence(generation, reason, seen_unix_ms, (*claim)->claim().rank);
}

// ---- Reconfigure and restore --------------------------------------------------------------------

void TrainerSession::NewAttempt(Completion<AttemptUuid> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) return Answer(std::move(done), Result<AttemptUuid>(claim.status()));
  Answer(std::move(done), Result<AttemptUuid>((*Host(job_))->restores->NewAttempt()));
}

void TrainerSession::Reconfigure(replication::ReconfigureRequest request,
                                 Completion<replication::DecisionReply> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) {
    return Answer(std::move(done), Result<replication::DecisionReply>(claim.status()));
  }
  (*Host(job_))->restores->Reconfigure({shard_, *claim_}, request, lifetime_.Wrap(std::move(done)));
}

void TrainerSession::Fetch(replication::FetchRequest request,
                           Completion<replication::FetchReply> done) {
  if (request.job.empty() || request.job == job_) return FetchAllowed(request, std::move(done));
  AuthorizeRead(request.job, [this, request, done](const Status& allowed) {
    if (!allowed.ok()) return done(allowed);
    FetchAllowed(request, done);
  });
}

void TrainerSession::FetchAllowed(const replication::FetchRequest& request,
                                  Completion<replication::FetchReply> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) {
    return Answer(std::move(done), Result<replication::FetchReply>(claim.status()));
  }
  // A reply that finds this connection gone has opened the shard for nobody.
  (*Host(job_))
      ->restores->Fetch(
          {shard_, *claim_}, request,
          [node = &node_,
           taken = lifetime_.Wrap(
               [this, done](const Result<replication::FetchReply>& reply, bool* was_taken) {
                 *was_taken = true;
                 if (reply.ok()) open_.insert(reply->fetch);
                 done(reply);
               })](const Result<replication::FetchReply>& reply) mutable {
            bool was_taken = false;
            taken(reply, &was_taken);
            if (!was_taken && reply.ok()) (void)node->core_->fetches.Close(reply->fetch);
          });
}

void TrainerSession::FetchChunks(replication::FetchHandle fetch, uint32_t first_chunk,
                                 uint32_t chunk_count, StatusCompletion done) {
  if (!open_.contains(fetch)) {
    return Answer(std::move(done), NotFound("this connection has not opened that shard"));
  }
  Answer(std::move(done), node_.core_->fetches.FetchChunks(fetch, first_chunk, chunk_count));
}

void TrainerSession::ReportBadChunks(replication::FetchHandle fetch, std::vector<uint32_t> chunks,
                                     Completion<bool> done) {
  if (!open_.contains(fetch)) {
    return Answer(std::move(done),
                  Result<bool>(NotFound("this connection has not opened that shard")));
  }
  if (chunks.empty()) return Answer(std::move(done), Result<bool>(false));
  node_.core_->fetches.ReportBad(fetch, lifetime_.Wrap(std::move(done)));
}

void TrainerSession::CloseShard(replication::FetchHandle fetch, StatusCompletion done) {
  if (open_.erase(fetch) == 0) {
    return Answer(std::move(done), NotFound("this connection has not opened that shard"));
  }
  Answer(std::move(done), node_.core_->fetches.Close(fetch));
}

void TrainerSession::FinishRestore(replication::FinishRestoreRequest request,
                                   Completion<replication::FinishRestoreReply> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) {
    return Answer(std::move(done), Result<replication::FinishRestoreReply>(claim.status()));
  }
  (*Host(job_))
      ->restores->FinishRestore({shard_, *claim_}, request, lifetime_.Wrap(std::move(done)));
}

// ---- Looking ------------------------------------------------------------------------------------

void TrainerSession::SnapshotIndex(JobName job, SnapshotId snapshot,
                                   Completion<replication::SnapshotIndexReply> done) {
  if (const Result<ClaimAgent*> claim = Claim(); !claim.ok()) {
    return Answer(std::move(done), Result<replication::SnapshotIndexReply>(claim.status()));
  }
  if (job.empty() || job == job_) return IndexAllowed(job_, snapshot, std::move(done));
  AuthorizeRead(job, [this, job, snapshot, done](const Status& allowed) {
    if (!allowed.ok()) return done(allowed);
    IndexAllowed(job, snapshot, done);
  });
}

void TrainerSession::IndexAllowed(const JobName& job, SnapshotId snapshot,
                                  Completion<replication::SnapshotIndexReply> done) {
  Node::JobHost* const host = node_.Host(job);
  if (host == nullptr) {
    return Answer(std::move(done), Result<replication::SnapshotIndexReply>(
                                       Unavailable("job " + job.value + " cannot be asked now")));
  }
  node_.core_->snapshots.Index(host->agent->leader(), job, snapshot,
                               lifetime_.Wrap(std::move(done)));
}

void TrainerSession::NewestCommitted(Completion<SnapshotId> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) return Answer(std::move(done), Result<SnapshotId>(claim.status()));
  node_.core_->snapshots.Locate(
      (*Host(job_))->agent->leader(), job_, SnapshotId(),
      lifetime_.Wrap([done](const Result<replication::SnapshotWhereabouts>& where) {
        if (!where.ok()) return done(where.status());
        done(where->snapshot);
      }));
}

void TrainerSession::QuerySnapshot(SnapshotId snapshot,
                                   Completion<replication::QuerySnapshotReply> done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) {
    return Answer(std::move(done), Result<replication::QuerySnapshotReply>(claim.status()));
  }
  Answer(std::move(done),
         Result<replication::QuerySnapshotReply>((*claim)->saves().Query(snapshot)));
}

void TrainerSession::Finish(bool drop_state, StatusCompletion done) {
  const Result<ClaimAgent*> claim = Claim();
  if (!claim.ok()) return Answer(std::move(done), claim.status());
  replication::wire::Request request;
  request.mutable_end_job()->set_drop(drop_state);
  request.mutable_end_job()->set_token_digest(token_digest_);
  (*Host(job_))
      ->agent->leader()
      .Call(std::move(request), node_.seams_.executor->Now() + kFinishTimeout,
            lifetime_.Wrap(
                [done](const Result<replication::wire::Reply>& reply) { done(reply.status()); }));
}

}  // namespace backstay::tools
