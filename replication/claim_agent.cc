#include "replication/claim_agent.h"

#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "replication/token_digest.h"
#include "replication/wire_convert.h"

namespace backstay::replication {

ClaimAgent::ClaimAgent(JobName job, ShardId shard, uint32_t chunk_bytes, const AgentParts& parts,
                       LeaderLink& leader, const JobGate& gate, std::function<void()> on_report)
    : job_(std::move(job)),
      shard_(std::move(shard)),
      chunk_bytes_(chunk_bytes),
      parts_(parts),
      leader_(leader),
      gate_(gate),
      on_report_(std::move(on_report)),
      saves_(
          job_, shard_, parts.executor, parts.peers, parts.table, parts.exporter, gate,
          [this](const TrainerEvent& event) {
            if (emit_) emit_(event);
          },
          on_report_) {}

ClaimAgent::~ClaimAgent() {
  if (reservation_.value != 0) parts_.pool.Release(reservation_);
}

// ---- Registration -------------------------------------------------------------------------------

Status ClaimAgent::CheckClaim(const ShardClaim& claim) const {
  const std::string what = "shard " + shard_.value + " of job " + job_.value;
  if (claim.world_size == 0 || claim.world_size > kWorldSizeMax ||
      claim.rank.value >= claim.world_size) {
    return InvalidArgument(what + ": rank " + std::to_string(claim.rank.value) +
                           " is not in a world of " + std::to_string(claim.world_size));
  }
  if (claim.replicas > kReplicasMax) {
    return InvalidArgument(what + ": " + std::to_string(claim.replicas) + " replicas; at most " +
                           std::to_string(kReplicasMax) + " are supported");
  }
  if (claim.versions == 0 || claim.versions > kVersionsMax) {
    return InvalidArgument(what + ": " + std::to_string(claim.versions) + " versions; 1 to " +
                           std::to_string(kVersionsMax) + " can be kept");
  }
  if (CeilDiv(claim.size_bytes, chunk_bytes_) > kShardChunksMax) {
    return InvalidArgument(what + ": " + FormatBytes(claim.size_bytes) +
                           " are more than a shard can have");
  }
  return Status::Ok();
}

void ClaimAgent::Register(ProcessId process, const ShardClaim& claim, Emit emit,
                          Completion<Registered> done) {
  Status status = CheckClaim(claim);
  const std::string token_digest = TokenDigest(claim.token);
  // Also after the trainer's exit: the memory that it left is for those who have its token.
  const bool token_known = state_ != ClaimState::kUnclaimed || reservation_.value != 0;
  if (status.ok() && token_known && token_digest != token_digest_) {
    status = PermissionDenied("the token of job " + job_.value +
                              " is another one than this node's trainers use");
  }
  if (!status.ok()) {
    parts_.executor.Post([done = std::move(done), status] { done(status); });
    return;
  }
  if (register_done_) FinishRegister(Stale("a later registration took the place of this one"));
  const bool same_process = state_ != ClaimState::kUnclaimed && process == process_;
  if (state_ != ClaimState::kUnclaimed && !same_process) {
    TakeOver(Stale("another process on " + parts_.peers.self().node.value + " claimed shard " +
                   shard_.value + " of job " + job_.value));
  }
  if (!same_process) {
    trainer_ = parts_.random.Next();
    claim_order_ = {};
    generation_ = Generation();
    fenced_told_ = Generation();
  }
  restoring_uuid_ = AttemptUuid();  // Also of the same process: its call ended with its connection.
  // After a reconnect the trainer says what it is in; the leader's word decides whether it may
  // save.
  if (claim.generation > generation_) generation_ = claim.generation;
  process_ = process;
  number_ = NewNumber();
  claim_ = claim;
  token_digest_ = token_digest;
  emit_ = std::move(emit);
  register_done_ = std::move(done);
  foreign_since_.reset();
  resizing_ = false;
  leader_.Cancel(admission_call_);
  Reserve(++epoch_);
}

// The older claimant loses the shard; what it sealed goes on.
void ClaimAgent::TakeOver(const Status& why) {
  EmitFenced(gate_.view().generation, why);
  emit_ = nullptr;
  saves_.EndUnsealed(why);
  parts_.pool.DisownClient(reservation_, client());
  Log(LogLevel::kWarning, "a trainer lost its shard to another",
      {{"job", job_.value}, {"shard", shard_.value}, {"why", why.message()}});
}

void ClaimAgent::Reserve(uint64_t claim_epoch) {
  state_ = ClaimState::kReserving;
  admitted_by_.reset();
  const Deadline deadline = parts_.executor.Now() + kRegisterTimeout;
  const uint32_t slot_count = claim_.versions + 1;
  const std::optional<store::ReservationRequest> present = parts_.pool.Find(reservation_);
  const bool same_place = present && present->numa_node == claim_.numa_node;
  if (same_place && present->slot_bytes == claim_.size_bytes && present->slot_count == slot_count) {
    return Admit(claim_epoch, deadline);
  }
  const auto refused = [this, claim_epoch](const Status& status) {
    if (claim_epoch != epoch_) return;
    FinishRegister(status);
    GiveUpClaim(status);
  };
  if (present && !same_place) parts_.pool.Release(std::exchange(reservation_, {}));
  if (same_place) {
    parts_.pool.Resize(reservation_, claim_.size_bytes, slot_count,
                       lifetime_.Wrap([=, this](const Status& status) {
                         if (!status.ok()) return refused(status);
                         if (claim_epoch == epoch_) Admit(claim_epoch, deadline);
                       }));
    return;
  }
  parts_.pool.Reserve({.purpose = store::Purpose::kOwn,
                       .job = job_,
                       .shard = shard_,
                       .slot_bytes = claim_.size_bytes,
                       .slot_count = slot_count,
                       .chunk_bytes = chunk_bytes_,
                       .numa_node = claim_.numa_node},
                      lifetime_.Wrap([=, this](const Result<store::ReservationId>& id) {
                        if (!id.ok()) return refused(id.status());
                        if (claim_epoch != epoch_ || reservation_.value != 0) {
                          return parts_.pool.Release(*id);
                        }
                        reservation_ = *id;
                        Admit(claim_epoch, deadline);
                      }));
}

wire::Request ClaimAgent::MakeAdmission() const {
  wire::Request request;
  wire::AdmitShard& admit = *request.mutable_admit_shard();
  admit.set_shard_id(shard_.value);
  admit.set_rank(static_cast<uint32_t>(claim_.rank.value));
  admit.set_world_size(claim_.world_size);
  admit.set_size_bytes(claim_.size_bytes);
  admit.set_replicas(claim_.replicas);
  admit.set_versions(claim_.versions);
  admit.set_token_digest(token_digest_);
  for (const NodeId& node : saves_.targets()) admit.add_current_replicas(node.value);
  *admit.mutable_trainer() = DescribeTrainer();
  admit.set_claim_term(claim_order_.first);
  admit.set_claim_number(claim_order_.second);
  admit.set_repeated(claim_order_.first != 0 || claim_.generation.value != 0);
  return request;
}

void ClaimAgent::Admit(uint64_t claim_epoch, Deadline deadline) {
  state_ = ClaimState::kAdmitting;
  // The leader waits for the job's other ranks before it answers, so an attempt may take a while.
  leader_.Cancel(admission_call_);
  admission_call_ = leader_.Call(MakeAdmission(), deadline,
                                 lifetime_.Wrap([this, claim_epoch](Result<wire::Reply> reply) {
                                   OnAdmitted(claim_epoch, std::move(reply));
                                 }));
}

void ClaimAgent::OnAdmitted(uint64_t claim_epoch, Result<wire::Reply> reply) {
  if (claim_epoch != epoch_) return;
  const bool first = state_ == ClaimState::kAdmitting;
  if (!reply.ok()) {
    if (first) {
      FinishRegister(reply.status());
      return GiveUpClaim(reply.status());
    }
    readmission_ = Readmission::kDue;
    next_readmission_ = parts_.executor.Now() + kReadmitDelay;
    const StatusCode code = reply.status().code();
    if (code == StatusCode::kStale || code == StatusCode::kPermission) {
      TakeOver(reply.status());
      GiveUpClaim(reply.status());
    }
    return;
  }
  readmission_ = Readmission::kNone;
  state_ = ClaimState::kAdmitted;
  // Whoever answered: if the leader has changed since, Step() asks the new one.
  admitted_by_ = FromWire(reply->header().from());
  admitted_term_ = Term(reply->header().term());
  admitted_revision_ = reply->admit_shard().record_revision();
  if (first) TakeClaim();
  claim_order_ = {reply->admit_shard().claim_term(), reply->admit_shard().claim_number()};
  reserved_bytes_peers_ = reply->admit_shard().reserved_bytes_peers();
  std::vector<NodeId> nodes;
  for (const std::string& node : reply->admit_shard().replica_nodes()) nodes.emplace_back(node);
  saves_.SetTargets(nodes);
  if (register_done_) {
    ClaimReply answer;
    answer.chunk_bytes = chunk_bytes_;
    answer.reserved_bytes_local = claim_.size_bytes * (claim_.versions + 1);
    answer.reserved_bytes_peers = reserved_bytes_peers_;
    answer.replica_nodes = std::move(nodes);
    FinishRegister(std::move(answer));
  }
  on_report_();
}

// The token was accepted: what the trainer says of itself and its saves counts from here on.
void ClaimAgent::TakeClaim() {
  saves_.SetPolicy({claim_.rank, claim_.world_size, claim_.replicas, claim_.wait_for_slot});
  if (claim_.missed_step && claim_.generation == generation_) {
    saves_.PassOver({claim_.generation, *claim_.missed_step},
                    Unavailable("the trainer passed the step over while its service was away"));
  }
}

void ClaimAgent::FinishRegister(Result<ClaimReply> reply) {
  const Completion<Registered> done = std::exchange(register_done_, nullptr);
  if (!done) return;
  parts_.executor.Post([done, number = number_, reply = std::move(reply)] {
    if (!reply.ok()) return done(reply.status());
    done(Registered{number, *reply});
  });
}

bool ClaimAgent::EndWithJob(const Status& why) {
  const bool undecided = state_ == ClaimState::kReserving || state_ == ClaimState::kAdmitting;
  if (undecided ||
      (state_ == ClaimState::kAdmitted && admitted_revision_ > gate_.view().revision)) {
    return false;
  }
  EmitFenced(gate_.view().generation, why);
  saves_.EndUnsealed(why);
  saves_.OnView(gate_.view());  // Also what is sealed brings nothing to its replicas any more.
  GiveUpClaim(why);
  return true;
}

void ClaimAgent::GiveUpClaim(const Status& why) {
  leader_.Cancel(admission_call_);
  resizing_ = false;
  ++epoch_;
  number_ = NewNumber();  // Whoever still speaks for the claim gets kStale.
  state_ = ClaimState::kUnclaimed;
  readmission_ = Readmission::kNone;
  emit_ = nullptr;
  saves_.EndUnsealed(why);
  if (reservation_.value != 0) parts_.pool.Release(std::exchange(reservation_, {}));
  on_report_();
}

// This node first, then its peers. Until all have agreed, the old size is what is in force, also
// towards a leader elected meanwhile.
void ClaimAgent::Resize(uint64_t size_bytes, StatusCompletion done) {
  ShardClaim resized = claim_;
  resized.size_bytes = size_bytes;
  if (Status status = CheckClaim(resized); !status.ok()) {
    parts_.executor.Post([done, status] { done(status); });
    return;
  }
  Status refused;
  if (resizing_) {
    refused = Unavailable("another resize of shard " + shard_.value + " of job " + job_.value +
                          " is under way");
  } else if (size_bytes < claim_.size_bytes && saves_.HasOpenSaves()) {
    // Its replicas would not fit the smaller slots any more.
    refused = Unavailable("shard " + shard_.value + " of job " + job_.value +
                          " is being saved with up to " + FormatBytes(claim_.size_bytes) +
                          ": make it smaller once that save is committed or given up");
  }
  if (!refused.ok()) {
    parts_.executor.Post([done, refused] { done(refused); });
    return;
  }
  resizing_ = true;
  const uint64_t claim_epoch = epoch_;
  parts_.pool.Resize(reservation_, size_bytes, claim_.versions + 1,
                     lifetime_.Wrap([=, this](const Status& status) {
                       if (claim_epoch != epoch_) return done(Stale("the claim has ended"));
                       if (!status.ok()) {
                         resizing_ = false;
                         return done(status);
                       }
                       ResizeReplicas(size_bytes, done);
                     }));
}

void ClaimAgent::ResizeReplicas(uint64_t size_bytes, const StatusCompletion& done) {
  wire::Request request = MakeAdmission();
  request.mutable_admit_shard()->set_size_bytes(size_bytes);
  request.mutable_admit_shard()->set_resize(true);
  const auto on_reply = [this, size_bytes, done,
                         claim_epoch = epoch_](const Result<wire::Reply>& reply) {
    if (claim_epoch != epoch_) return done(Stale("the claim has ended"));
    resizing_ = false;
    if (!reply.ok()) {
      // Back to what was agreed, which this node has; the leader may have to hear it again.
      if (state_ == ClaimState::kAdmitted) {
        readmission_ = Readmission::kDue;
        next_readmission_ = parts_.executor.Now();
        admitted_by_.reset();
      }
      return parts_.pool.Resize(reservation_, claim_.size_bytes, claim_.versions + 1,
                                [done, why = reply.status()](const Status&) { done(why); });
    }
    claim_.size_bytes = size_bytes;
    reserved_bytes_peers_ = reply->admit_shard().reserved_bytes_peers();
    std::vector<NodeId> nodes;
    for (const std::string& node : reply->admit_shard().replica_nodes()) nodes.emplace_back(node);
    saves_.SetTargets(nodes);
    done(Status::Ok());
  };
  leader_.Call(std::move(request), parts_.executor.Now() + kRegisterTimeout,
               lifetime_.Wrap(on_reply));
}

// ---- The process --------------------------------------------------------------------------------

Status ClaimAgent::Check(ClaimNumber number) const {
  if (number == number_ && state_ != ClaimState::kUnclaimed) return Status::Ok();
  return Stale("shard " + shard_.value + " of job " + job_.value +
               " is claimed by another process now, or on another node");
}

void ClaimAgent::Disconnect(ClaimNumber number) {
  if (number != number_) return;
  emit_ = nullptr;
  saves_.EndUnsealed(Stale("the trainer's connection ended before the seal"));
}

void ClaimAgent::ProcessExited(ProcessId process) {
  if (state_ == ClaimState::kUnclaimed || process != process_) return;
  const Status why = Stale("the trainer process exited");
  FinishRegister(why);
  leader_.Cancel(admission_call_);
  ++epoch_;
  number_ = NewNumber();
  state_ = ClaimState::kUnclaimed;
  readmission_ = Readmission::kNone;
  emit_ = nullptr;
  saves_.EndUnsealed(why);
  // The reservation stays: the rank may come back here, and finds its memory touched.
  on_report_();
}

std::optional<wire::LiveTrainer> ClaimAgent::LiveTrainer() const {
  if (state_ != ClaimState::kAdmitted) return std::nullopt;
  return DescribeTrainer();
}

wire::LiveTrainer ClaimAgent::DescribeTrainer() const {
  wire::LiveTrainer trainer;
  trainer.set_trainer(trainer_);
  trainer.set_shard_id(shard_.value);
  trainer.set_rank(static_cast<uint32_t>(claim_.rank.value));
  trainer.set_generation(generation_.value);
  trainer.set_restoring_uuid(restoring_uuid_.value);
  trainer.set_restoring_rank(static_cast<uint32_t>(restoring_rank_.value));
  trainer.set_last_call(last_call_);
  return trainer;
}

void ClaimAgent::EmitFenced(Generation generation, const Status& why) {
  if (!emit_) return;
  fenced_told_ = std::max(fenced_told_, generation);
  TrainerEvent event;
  event.kind = TrainerEvent::Kind::kFenced;
  event.generation = generation;
  event.status = why;
  emit_(event);
}

// ---- The leader ---------------------------------------------------------------------------------

void ClaimAgent::OnView(const JobView& view) {
  const auto assignment = view.assignments.find(shard_);
  if (assignment != view.assignments.end()) {
    const bool foreign = assignment->second.primary != parts_.peers.self().node;
    if (!foreign) {
      foreign_since_.reset();
      saves_.SetTargets(assignment->second.replicas);
    } else if (state_ == ClaimState::kAdmitted && !IsAdmittedBy({view.leader, view.term})) {
      // A leader that has not heard of this claim yet: its answer to it decides.
      foreign_since_.reset();
    } else if (state_ == ClaimState::kAdmitted) {
      if (!foreign_since_) foreign_since_ = parts_.executor.Now();
      if (parts_.executor.Now() - *foreign_since_ >= kForeignClaimConfirm) {
        const Status why = Stale("shard " + shard_.value + " of job " + job_.value +
                                 " was claimed on " + assignment->second.primary.value);
        TakeOver(why);
        GiveUpClaim(why);
      }
    } else if (state_ == ClaimState::kUnclaimed && reservation_.value != 0) {
      parts_.pool.Release(std::exchange(reservation_, {}));
    }
  }
  if (generation_.value != 0 && fenced_told_ < generation_) {
    if (view.generation > generation_ || (view.generation == generation_ && view.closing())) {
      EmitFenced(generation_, Stale("generation " + std::to_string(generation_.value) + " of job " +
                                    job_.value + " is over"));
    }
  }
  saves_.OnView(view);
  Step();
}

bool ClaimAgent::IsAdmittedBy(const LeaderInfo& leader) const {
  return admitted_by_ == leader.node &&
         (admitted_term_.value == 0 || admitted_term_ == leader.term);
}

void ClaimAgent::Step() {
  saves_.Step();
  const bool registering = state_ == ClaimState::kReserving || state_ == ClaimState::kAdmitting;
  if (registering && parts_.peers.self().node.empty()) {
    // It would arrive late, and pass for a newer claim than one that was made meanwhile.
    const Status why = Unavailable("this node lost its place in the cluster; register again");
    FinishRegister(why);
    return GiveUpClaim(why);
  }
  if (state_ != ClaimState::kAdmitted) return;
  const std::optional<LeaderInfo> leader = leader_.Find();
  if (!leader || IsAdmittedBy(*leader) || readmission_ == Readmission::kAsked) return;
  if (readmission_ == Readmission::kDue && parts_.executor.Now() < next_readmission_) return;
  readmission_ = Readmission::kAsked;
  leader_.Cancel(admission_call_);
  admission_call_ =
      leader_.Call(MakeAdmission(), parts_.executor.Now() + kRegisterTimeout,
                   lifetime_.Wrap([this, claim_epoch = epoch_](Result<wire::Reply> reply) {
                     OnAdmitted(claim_epoch, std::move(reply));
                   }));
}

}  // namespace backstay::replication
