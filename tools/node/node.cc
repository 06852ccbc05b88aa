#include "tools/node/node.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "replication/job_record.h"
#include "replication/wire_convert.h"
#include "tools/nearest.h"
#include "tools/node/job_host.h"
#include "tools/node/trainer_session.h"

namespace backstay::tools {

namespace wire = replication::wire;

Node::Core::Core(Node& node, DataPlane data)
    : data_address(std::move(data.address)),
      puller(std::move(data.puller)),
      exporter(std::move(data.exporter)),
      snapshots(*node.seams_.executor, node.peers_, node.table_),
      fetches(
          *node.seams_.executor, node.peers_, node.pool_, node.table_, *puller,
          [&node](const ShardName& name, Completion<store::VerifyReport> done) {
            JobHost* const host = node.Host(name.job);
            if (host != nullptr) return host->agent->holder().VerifyOwn(name, std::move(done));
            node.seams_.executor->Post(
                [done, name] { done(Unavailable(ToString(name) + " cannot be verified now")); });
          },
          [&node](const ShardName& name) {
            if (JobHost* host = node.Host(name.job)) host->agent->holder().Discard(name);
          }) {
  exports =
      std::make_unique<replication::ShardExporter>(*node.seams_.executor, node.table_, *exporter);
}

Node::Node(NodeConfig config, NodeSeams seams)
    : config_(std::move(config)),
      seams_(std::move(seams)),
      router_(config_.store),
      membership_(seams_.metadata, seams_.executor, seams_.random, config_.record,
                  {.lease_ttl = config_.lease_ttl}),
      jobs_(seams_.metadata, seams_.executor, seams_.random),
      peers_(*seams_.messenger, router_,
             [this](const NodeId& node) -> std::optional<NodeInstance> {
               const replication::Member* member = membership_.view().Find(node);
               if (member == nullptr) return std::nullopt;
               return member->record.instance;
             }),
      pool_({.node = config_.record.instance.node,
             .repair_reserve_bytes = config_.repair_reserve_bytes},
            *seams_.executor, seams_.offload, *seams_.memory, *seams_.budget),
      table_(pool_),
      verifier_(table_, *seams_.executor, seams_.offload),
      scrubber_(table_, verifier_, *seams_.executor, config_.scrub_bytes_per_second,
                [this](const ShardName& name) { OnScrubbedBad(name); }),
      started_unix_ms_(seams_.executor->clock().UnixMillis()) {
  HandleMessages();
  pool_.OnSlotFree(lifetime_.Wrap([this](store::ReservationId) {
    if (core_ == nullptr) return;
    for (auto& [job, host] : core_->jobs) host->agent->OnSlotFree();
  }));
  pool_.OnSlotClosed(lifetime_.Wrap([this](store::SlotId slot, store::ClientId client) {
    for (TrainerSession* session : sessions_) session->OnSlotClosed(slot, client);
  }));
}

Node::~Node() = default;

// ---- Membership ---------------------------------------------------------------------------------

void Node::Start(StatusCompletion on_joined, StatusCompletion on_lost) {
  on_joined_ = std::move(on_joined);
  on_lost_ = std::move(on_lost);
  membership_.OnChange(lifetime_.Wrap([this] { OnMembershipChanged(); }));
  membership_.Start();
  WatchStore();
  ForgetIdleJobs();
}

void Node::OnMembershipChanged() {
  const NodeInstance self = membership_.self();
  if (!membership_.in()) {
    if (!router_.self().node.empty()) {
      Log(LogLevel::kWarning, "this node lost its lease: it serves nothing until it is back",
          {{"node", router_.self().node.value}, {"why", membership_.status().message()}});
      router_.ClearSelf();
      if (core_ != nullptr) core_->exports->RevokeEverything();
    }
  } else if (router_.self() != self) {
    Join(self);
  }
  if (core_ == nullptr) return;
  for (auto& [job, host] : core_->jobs) {
    host->agent->OnMembershipChanged();
    if (host->leadership) host->leadership->OnMembershipChanged();
    StepLeadership(*host);
  }
}

void Node::Join(const NodeInstance& self) {
  if (core_ == nullptr) {
    Result<DataPlane> data = seams_.data_plane(self);
    if (!data.ok()) {
      if (on_joined_) std::exchange(on_joined_, nullptr)(data.status());
      return;
    }
    core_ = std::make_unique<Core>(*this, std::move(data).value());
  }
  // The data plane stays the first start's: its grants are proven by key, and all of them ended
  // with the lease.
  router_.SetSelf(self);
  Log(LogLevel::kInfo, "this node is a member", {{"node", ToString(self)}});
  if (on_joined_) std::exchange(on_joined_, nullptr)(Status::Ok());
}

// A restored or replaced metadata store would let generations start again.
void Node::WatchStore() {
  seams_.metadata->GetStoreId(
      seams_.executor->Now() + kStoreCheckInterval,
      lifetime_.Wrap([this](const Result<StoreId>& store) {
        const bool other =
            store.ok() ? *store != config_.store : store.status().code() == StatusCode::kStale;
        if (other && on_lost_) {
          router_.ClearSelf();
          return std::exchange(
              on_lost_, nullptr)(Stale("the metadata store is another one than " +
                                       config_.store.value + ", which this node belongs to"));
        }
        seams_.executor->RunAfter(kStoreCheckInterval, lifetime_.Wrap([this] { WatchStore(); }));
      }));
}

void Node::Stop(StatusCompletion done) {
  router_.ClearSelf();
  if (core_ != nullptr) {
    for (auto& [job, host] : core_->jobs) {
      host->leadership.reset();
      host->stand_again = kNoDeadline;
      host->election->SetCandidate(false);
    }
    core_->exports->RevokeEverything();
  }
  membership_.Leave(seams_.executor->Now() + config_.lease_ttl, std::move(done));
}

Status Node::MembershipStatus() const { return membership_.status(); }

replication::PeerRouter& Node::router() { return router_; }

const NodeInstance& Node::self() const { return router_.self(); }

const replication::MembershipView& Node::members() const { return membership_.view(); }

std::optional<std::string> Node::ControlAddress(const NodeId& node) const {
  if (node == config_.record.instance.node) return config_.record.control_address;
  const replication::Member* member = membership_.view().Find(node);
  if (member == nullptr) return std::nullopt;
  return member->record.control_address;
}

// ---- Jobs ---------------------------------------------------------------------------------------

Node::JobHost* Node::Host(const JobName& job) {
  if (core_ == nullptr || job.empty()) return nullptr;
  const auto found = core_->jobs.find(job);
  if (found != core_->jobs.end()) {
    found->second->last_used = seams_.executor->Now();
    return found->second.get();
  }
  if (core_->jobs.size() >= kJobsMax) return nullptr;
  JobHost& host = *(core_->jobs[job] = std::make_unique<JobHost>());
  host.last_used = seams_.executor->Now();
  host.election = std::make_unique<replication::LeaderElection>(
      seams_.metadata, seams_.executor, seams_.random, &membership_, job,
      replication::LeaderElectionOptions(), lifetime_.Wrap([this, job] {
        const auto changed = core_->jobs.find(job);
        if (changed == core_->jobs.end()) return;
        StepLeadership(*changed->second);
        changed->second->agent->OnLeaderChanged();
      }));
  const replication::AgentParts parts{*seams_.executor, *seams_.random,  peers_,           pool_,
                                      table_,           *core_->exports, core_->last_claim};
  host.agent = std::make_unique<replication::JobAgent>(
      job, config_.chunk_bytes, parts, router_, verifier_, *core_->puller,
      [election = host.election.get()]() -> std::optional<replication::LeaderInfo> {
        if (!election->known() || !election->leader()) return std::nullopt;
        return replication::LeaderInfo{election->leader()->instance, election->leader()->term};
      });
  host.restores = std::make_unique<recovery::RestoreAgent>(
      *seams_.executor, *seams_.random, *host.agent, core_->fetches, core_->snapshots,
      [this](const JobName& other) -> replication::LeaderLink* {
        JobHost* const there = Host(other);
        return there == nullptr ? nullptr : &there->agent->leader();
      });
  host.agent->OnView([this, job](const replication::JobView& view) {
    JobHost& there = *core_->jobs.at(job);
    if (view.ended) core_->fetches.EndJob(job);
    there.restores->OnView(view);
    StepLeadership(there);
  });
  host.election->Start();
  return &host;
}

void Node::AuthorizeRead(const JobName& job, const std::string& token_digest,
                         StatusCompletion done) {
  const auto on_read = [this, job, token_digest,
                        done](const Result<replication::StoredJob>& stored) {
    if (!stored.ok() && stored.status().code() == StatusCode::kNotFound) {
      return ExplainMissingJob(job, done);
    }
    if (!stored.ok()) return done(stored.status());
    wire::JobRecord record;
    if (!record.ParseFromString(stored->bytes)) {
      return done(Corrupt("the record of job " + job.value + " cannot be read"));
    }
    if (Status sound = replication::CheckRecord(record, job); !sound.ok()) return done(sound);
    if (record.token_digest() != token_digest) {
      return done(PermissionDenied("job " + job.value +
                                   " belongs to another token than this trainer's job"));
    }
    done(Status::Ok());
  };
  jobs_.Read(job, seams_.executor->Now() + kJobListTimeout, lifetime_.Wrap(on_read));
}

void Node::ExplainMissingJob(const JobName& job, StatusCompletion done) {
  const auto on_listed = [job, done](const Result<replication::JobListing>& listing) {
    std::vector<std::string> names;
    if (listing.ok()) {
      for (const JobName& known : listing->jobs) names.push_back(known.value);
    }
    const std::string nearest = NearestName(job.value, names);
    done(NotFound("there is no job " + job.value +
                  (nearest.empty() ? "" : "; did you mean " + nearest + "?")));
  };
  jobs_.List(seams_.executor->Now() + kJobListTimeout, lifetime_.Wrap(on_listed));
}

// Brings what this node does as a leader in line with who was elected.
void Node::StepLeadership(JobHost& host) {
  host.election->SetCandidate(membership_.in() && host.agent->IsCandidate() &&
                              seams_.executor->Now() >= host.stand_again);
  const Term term = host.election->term();
  if (host.leadership && term != host.led_term) host.leadership.reset();
  if (host.leadership || term.value == 0 || term == host.led_term) return;
  const JobName job = host.agent->job();
  host.led_term = term;
  const replication::LeaderSeams seams{.executor = seams_.executor,
                                       .random = seams_.random,
                                       .membership = &membership_,
                                       .metadata = seams_.metadata,
                                       .jobs = &jobs_,
                                       .messenger = seams_.messenger,
                                       .router = &router_};
  host.leadership = std::make_unique<recovery::JobLeadership>(
      job, term, seams, config_.leader, lifetime_.Wrap([this, job, term](const Status& why) {
        const auto found = core_->jobs.find(job);
        if (found == core_->jobs.end() || found->second->led_term != term) return;
        JobHost& deposed = *found->second;
        Log(LogLevel::kWarning, "this node does not lead a job any more",
            {{"job", job.value}, {"why", why.ToString()}});
        deposed.stand_again = seams_.executor->Now() + kStandAgainDelay;
        deposed.leadership.reset();
        deposed.election->SetCandidate(false);
      }));
}

// As when a reader found it: it is read whole, set aside, and the leader has it made again.
void Node::OnScrubbedBad(const ShardName& name) {
  JobHost* const host = Host(name.job);
  if (host == nullptr) return;  // Not a member now: found again in the next pass.
  host->agent->holder().VerifyOwn(name, [name](const Result<store::VerifyReport>& report) {
    if (report.ok()) return;
    Log(LogLevel::kWarning, "a scrub found damage and could not set the shard aside yet",
        {{"shard", ToString(name)}, {"error", report.status().ToString()}});
  });
}

void Node::ForgetIdleJobs() {
  if (core_ != nullptr) {
    const Instant now = seams_.executor->Now();
    for (auto& [job, host] : core_->jobs) StepLeadership(*host);
    std::erase_if(core_->jobs, [&](const auto& entry) {
      const JobHost& host = *entry.second;
      const bool idle = host.agent->IsIdle() && host.leadership == nullptr &&
                        now - host.last_used > kIdleJobLinger;
      if (idle && host.agent->view().ended) router_.ForgetJob(entry.first);
      return idle;
    });
  }
  seams_.executor->RunAfter(kSweepInterval, lifetime_.Wrap([this] { ForgetIdleJobs(); }));
}

// ---- Messages -----------------------------------------------------------------------------------

void Node::HandleMessages() {
  const auto handle = [this](const wire::Request& request, replication::ReplyFunction reply) {
    OnJobMessage(request, std::move(reply));
  };
  for (const wire::Request::BodyCase kind :
       {wire::Request::kOffer, wire::Request::kAck, wire::Request::kReserve,
        wire::Request::kAdmitShard, wire::Request::kReportShards, wire::Request::kReconfigure,
        wire::Request::kReportVerified, wire::Request::kJobState, wire::Request::kInventory,
        wire::Request::kReplicate, wire::Request::kOpenShard, wire::Request::kVerifyShard,
        wire::Request::kLeaderStatus, wire::Request::kEndJob, wire::Request::kRelease,
        wire::Request::kReportFence}) {
    router_.Handle(kind, handle);
  }
  router_.Handle(wire::Request::kNewAttempt,
                 [this](const wire::Request&, replication::ReplyFunction reply) {
                   wire::Reply answer;
                   answer.mutable_new_attempt()->set_uuid(seams_.random->Hex128());
                   reply(std::move(answer));
                 });
  router_.Handle(wire::Request::kNodeStatus,
                 [this](const wire::Request&, replication::ReplyFunction reply) {
                   wire::Reply answer;
                   *answer.mutable_node_status() = Describe();
                   reply(std::move(answer));
                 });
}

void Node::OnJobMessage(const wire::Request& request, replication::ReplyFunction reply) {
  const JobName job(request.header().job());
  if (job.empty()) return reply(InvalidArgument("message that names no job"));
  if (replication::JobAgent::Handles(request.body_case())) {
    JobHost* const host = Host(job);
    if (host == nullptr) {
      return reply(Unavailable("node " + config_.record.instance.node.value + " serves " +
                               std::to_string(kJobsMax) + " jobs already"));
    }
    host->agent->OnRequest(request, std::move(reply));
    return StepLeadership(*host);
  }
  const auto found = core_ == nullptr ? decltype(core_->jobs.end())() : core_->jobs.find(job);
  if (core_ == nullptr || found == core_->jobs.end() || !found->second->leadership) {
    return reply(Unavailable("node " + config_.record.instance.node.value + " does not lead job " +
                             job.value));
  }
  found->second->leadership->OnRequest(request, std::move(reply));
}

// ---- Trainers -----------------------------------------------------------------------------------

std::unique_ptr<replication::Trainer> Node::Connect(replication::ProcessId process,
                                                    replication::TrainerListener* listener) {
  return std::make_unique<TrainerSession>(*this, process, listener);
}

void Node::ProcessExited(replication::ProcessId process) {
  if (core_ != nullptr) {
    for (auto& [job, host] : core_->jobs) {
      host->agent->ProcessExited(process);
      StepLeadership(*host);
    }
  }
  // Last: what it was filling has been given up by now.
  pool_.ClientExited(store::ClientId(process.value));
}

// ---- Looking ------------------------------------------------------------------------------------

wire::NodeStatusReply Node::Describe() const {
  const store::SlotPoolStats stats = pool_.Stats();
  wire::NodeStatusReply status;
  *status.mutable_node() = replication::ToWire(membership_.self());
  status.mutable_node()->set_node_id(config_.record.instance.node.value);
  for (const std::string& domain : config_.record.domains) status.add_domains(domain);
  status.set_budget_bytes(stats.budget_bytes);
  status.set_reserved_bytes(stats.reserved_bytes);
  status.set_own_bytes(stats.own_bytes);
  status.set_held_bytes(stats.held_bytes);
  status.set_fetched_bytes(stats.fetched_bytes);
  status.set_in_flight_bytes(stats.filling_bytes);
  status.set_pinned_bytes(stats.pinned_bytes);
  status.set_quarantined_bytes(stats.quarantined_bytes);
  status.set_free_slot_bytes(stats.free_bytes);
  status.set_huge_pages(stats.huge_page_bytes != 0);
  status.set_repair_reserve_bytes(stats.repair_reserve_bytes);
  const store::Scrubber::Stats& scrubbed = scrubber_.stats();
  wire::Scrub& scrub = *status.mutable_scrub();
  scrub.set_bytes_per_second(config_.scrub_bytes_per_second);
  scrub.set_bytes(scrubbed.scrubbed_bytes);
  scrub.set_bad_shards(scrubbed.bad_shards);
  scrub.set_passes(scrubbed.passes);
  scrub.set_last_pass_unix_ms(scrubbed.last_pass_unix_ms);
  status.set_started_unix_ms(started_unix_ms_);
  status.set_version(config_.record.version);
  status.set_control_address(config_.record.control_address);
  status.set_serves_metadata(config_.serves_metadata);
  if (seams_.traffic) {
    for (wire::PeerTraffic& peer : seams_.traffic()) *status.add_peers() = std::move(peer);
  }
  if (core_ != nullptr) {
    status.set_data_address(core_->data_address);
    for (const auto& [job, host] : core_->jobs) *status.add_jobs() = host->agent->Describe();
  }
  return status;
}

}  // namespace backstay::tools
