#include "tools/admin/admin_queries.h"

#include <utility>

#include "replication/job_record.h"
#include "replication/metadata_keys.h"
#include "replication/metadata_records.pb.h"
#include "replication/wire_convert.h"
#include "store/manifest.h"
#include "tools/admin/fan_out.h"
#include "tools/nearest.h"

namespace backstay::tools {

using replication::FindPair;
using replication::KeyValue;
using replication::MembershipView;
using replication::RangeResult;

std::string NearestHint(std::string_view name, const std::vector<std::string>& candidates) {
  static constexpr size_t kShownMax = 8;
  if (candidates.empty()) return "; there are none";
  const std::string nearest = NearestName(name, candidates);
  if (!nearest.empty()) return "; did you mean " + store::QuoteName(nearest) + "?";
  std::string hint = "; there are ";
  for (size_t i = 0; i < candidates.size() && i < kShownMax; ++i) {
    hint += (i == 0 ? "" : ", ") + store::QuoteName(candidates[i]);
  }
  if (candidates.size() > kShownMax) {
    hint += " and " + std::to_string(candidates.size() - kShownMax) + " more";
  }
  return hint;
}

AdminQueries::AdminQueries(AdminSeams seams) : seams_(std::move(seams)) {}

void AdminQueries::Send(const NodeInstance& to, const JobName& job,
                        replication::wire::Request request, Duration timeout,
                        Completion<replication::wire::Reply> done) {
  *request.mutable_header() = seams_.header(job);
  *request.mutable_header()->mutable_to() = replication::ToWire(to);
  seams_.messenger->Send(to.node, std::move(request), After(timeout),
                         lifetime_.Wrap(std::move(done)));
}

// ---- Nodes

std::vector<wire::NodeReport> AdminQueries::KnownNodes() const {
  std::vector<wire::NodeReport> nodes;
  const NodeInstance self = seams_.self();
  bool self_known = self.node.empty();
  for (const auto& [id, member] : seams_.members().members) {
    wire::NodeReport& node = nodes.emplace_back();
    *node.mutable_node() = replication::ToWire(member.record.instance);
    for (const std::string& domain : member.record.domains) node.add_domains(domain);
    node.set_control_address(member.record.control_address);
    self_known = self_known || id == self.node;
  }
  if (!self_known) *nodes.emplace_back().mutable_node() = replication::ToWire(self);
  return nodes;
}

void AdminQueries::AskNodes(Completion<std::vector<wire::NodeReport>> done) {
  auto nodes = std::make_shared<std::vector<wire::NodeReport>>(KnownNodes());
  const NodeId self = seams_.self().node;
  auto ask = [this, nodes, self](size_t index, FanOut::Done answered) {
    wire::NodeReport& node = (*nodes)[index];
    const NodeInstance instance = replication::FromWire(node.node());
    if (instance.node == self) {
      *node.mutable_status() = seams_.describe();
      node.set_answered(true);
      return answered();
    }
    replication::wire::Request request;
    request.mutable_node_status();
    Send(instance, JobName(), std::move(request), kNodeAnswerTimeout,
         [nodes, index, answered](Result<replication::wire::Reply> reply) {
           wire::NodeReport& report = (*nodes)[index];
           report.set_answered(reply.ok() && reply->has_node_status());
           if (report.answered()) {
             *report.mutable_status() = std::move(*reply->mutable_node_status());
           } else {
             report.set_error(reply.ok() ? "answered with something else"
                                         : reply.status().ToString());
           }
           answered();
         });
  };
  // Posted, so that a cluster of one is not answered inside of the call.
  auto finished = [this, nodes, done = std::move(done)] {
    seams_.executor->Post(lifetime_.Wrap([nodes, done] { done(std::move(*nodes)); }));
  };
  FanOut::Run(nodes->size(), kNodesAskedAtOnceMax, std::move(ask), std::move(finished));
}

void AdminQueries::Cluster(Completion<wire::ClusterReply> done) {
  auto reply = std::make_shared<wire::ClusterReply>();
  reply->set_store_id(seams_.store.value);
  reply->set_asked_node(seams_.self().node.value);
  auto both = [this, reply](size_t index, FanOut::Done answered) {
    if (index == 0) {
      return AskNodes([reply, answered](Result<std::vector<wire::NodeReport>> nodes) {
        for (wire::NodeReport& node : *nodes) *reply->add_nodes() = std::move(node);
        answered();
      });
    }
    auto started = [this, reply, answered](const Result<RangeResult>& range) {
      reply->set_metadata_reachable(range.ok());
      for (size_t i = 0; range.ok() && i < range->pairs.size(); ++i) {
        const std::string key = range->pairs[i].key.substr(replication::kNodeStartsPrefix.size());
        const Result<std::string> node = replication::UnescapeName(key);
        if (!node.ok() || seams_.members().Find(NodeId(*node)) != nullptr) continue;
        if (reply->departed_size() < static_cast<int>(kDepartedMax)) reply->add_departed(*node);
      }
      answered();
    };
    seams_.metadata->Range(std::string(replication::kNodeStartsPrefix),
                           After(kMetadataAnswerTimeout), lifetime_.Wrap(std::move(started)));
  };
  FanOut::Run(2, 2, std::move(both), [reply, done = std::move(done)] { done(std::move(*reply)); });
}

// ---- Jobs

void AdminQueries::AddRecord(const KeyValue& pair, JobEntries& jobs) {
  const Result<JobName> job = replication::ParseJobRecordKey(pair.key);
  if (!job.ok()) return;
  JobEntry& entry = jobs[*job];
  entry.record_revision = pair.mod_revision;
  if (entry.record.ParseFromString(pair.value)) {
    entry.record_status = replication::CheckRecord(entry.record, *job);
  } else {
    entry.record_status = Corrupt("the record of job " + store::QuoteName(job->value) +
                                  " in the metadata store is unreadable");
  }
  if (!entry.record_status.ok()) entry.record.Clear();
  entry.record.set_job(job->value);
  entry.token_digest = std::exchange(*entry.record.mutable_token_digest(), "");
}

void AdminQueries::AddLeader(const KeyValue& pair, const JobName& job, JobEntries& jobs) {
  replication::wire::LeaderRecord record;
  if (!record.ParseFromString(pair.value)) return;  // Then it has none that could be asked.
  JobEntry& entry = jobs[job];
  entry.leader = {NodeId(record.node_id()), Incarnation(record.incarnation())};
  entry.term = Term(pair.create_revision);
}

void AdminQueries::ReadJobs(Completion<JobEntries> done) {
  auto read = [done = std::move(done)](const Result<RangeResult>& range) {
    if (!range.ok()) return done(range.status());
    JobEntries jobs;
    for (const KeyValue& pair : range->pairs) AddRecord(pair, jobs);
    JobEntries listed;
    for (auto& [job, entry] : jobs) {
      const KeyValue* leader = FindPair(*range, replication::LeaderKey(job));
      listed[job] = std::move(entry);
      if (leader != nullptr) AddLeader(*leader, job, listed);
    }
    done(std::move(listed));
  };
  seams_.metadata->Range(std::string(replication::kJobsPrefix), After(kMetadataAnswerTimeout),
                         lifetime_.Wrap(std::move(read)));
}

void AdminQueries::ReadJob(const JobName& job, Completion<JobEntry> done) {
  ReadJobs([job, done = std::move(done)](Result<JobEntries> jobs) {
    if (!jobs.ok()) return done(jobs.status());
    if (const auto found = jobs->find(job); found != jobs->end()) return done(found->second);
    std::vector<std::string> names;
    for (const auto& [name, entry] : *jobs) names.push_back(name.value);
    done(
        NotFound("there is no job " + store::QuoteName(job.value) + NearestHint(job.value, names)));
  });
}

void AdminQueries::Jobs(Completion<wire::JobsReply> done) {
  ReadJobs([this, done = std::move(done)](Result<JobEntries> jobs) {
    if (!jobs.ok()) return done(jobs.status());
    auto reply = std::make_shared<wire::JobsReply>();
    for (auto& [job, entry] : *jobs) {
      wire::JobOverview& overview = *reply->add_jobs();
      *overview.mutable_record() = std::move(entry.record);
      if (!entry.record_status.ok()) overview.set_record_error(entry.record_status.ToString());
      overview.set_term(entry.term.value);
      if (!entry.leader.node.empty()) {
        *overview.mutable_leader() = replication::ToWire(entry.leader);
      }
    }
    auto ask = [this, reply](size_t index, FanOut::Done answered) {
      const wire::JobOverview& overview = reply->jobs(static_cast<int>(index));
      if (!overview.has_leader()) return answered();
      AskLeader(JobName(overview.record().job()), replication::FromWire(overview.leader()), {},
                [reply, index, answered](Result<wire::JobReply> answer) {
                  wire::JobOverview& job = *reply->mutable_jobs(static_cast<int>(index));
                  job.set_leader_answered(answer->leader_answered());
                  job.set_leader_error(answer->leader_error());
                  job.set_waiting_uuid(answer->leader().waiting_uuid());
                  *job.mutable_missing_ranks() = answer->leader().missing_ranks();
                  job.set_fenced_unix_ms(answer->leader().fence().unix_ms());
                  job.set_under_protected(
                      static_cast<uint32_t>(answer->leader().state().under_protected_size()));
                  answered();
                });
    };
    FanOut::Run(static_cast<size_t>(reply->jobs_size()), kNodesAskedAtOnceMax, std::move(ask),
                [reply, done] { done(std::move(*reply)); });
  });
}

void AdminQueries::AskLeader(const JobName& job, const NodeInstance& leader, wire::JobReply reply,
                             Completion<wire::JobReply> done) {
  replication::wire::Request request;
  request.mutable_leader_status();
  Send(leader, job, std::move(request), kNodeAnswerTimeout,
       [reply = std::move(reply),
        done = std::move(done)](Result<replication::wire::Reply> answer) mutable {
         reply.set_leader_answered(answer.ok() && answer->has_leader_status());
         if (reply.leader_answered()) {
           *reply.mutable_leader() = std::move(*answer->mutable_leader_status());
         } else {
           reply.set_leader_error(answer.ok() ? "answered with something else"
                                              : answer.status().ToString());
         }
         done(std::move(reply));
       });
}

// Without the metadata store nobody can say who was elected; whoever leads still knows.
void AdminQueries::AskAnyLeader(const JobName& job, wire::JobReply reply,
                                Completion<wire::JobReply> done) {
  auto nodes = std::make_shared<std::vector<wire::NodeReport>>(KnownNodes());
  auto best = std::make_shared<wire::JobReply>(std::move(reply));
  best->set_leader_error("no node that could be reached leads the job");
  auto ask = [this, job, nodes, best](size_t index, FanOut::Done answered) {
    AskLeader(job, replication::FromWire((*nodes)[index].node()), {},
              [best, answered](Result<wire::JobReply> answer) {
                if (answer->leader_answered() && answer->leader().term() >= best->term()) {
                  best->set_term(answer->leader().term());
                  *best->mutable_elected() = answer->leader().leader();
                  *best->mutable_leader() = std::move(*answer->mutable_leader());
                  best->set_leader_answered(true);
                  best->clear_leader_error();
                }
                answered();
              });
  };
  auto finished = [best, job, done = std::move(done)] {
    if (best->leader_answered()) return done(std::move(*best));
    done(Unavailable("job " + store::QuoteName(job.value) + ": " + best->metadata_error() +
                     ", and " + best->leader_error()));
  };
  FanOut::Run(nodes->size(), kNodesAskedAtOnceMax, std::move(ask), std::move(finished));
}

void AdminQueries::Job(const wire::JobRequest& request, Completion<wire::JobReply> done) {
  const JobName job(request.job());
  ReadJob(job, [this, job, done = std::move(done)](Result<JobEntry> entry) {
    wire::JobReply reply;
    reply.set_now_unix_ms(seams_.executor->clock().UnixMillis());
    if (!entry.ok()) {
      if (entry.status().code() == StatusCode::kNotFound) return done(entry.status());
      reply.set_metadata_error(entry.status().ToString());
      return AskAnyLeader(job, std::move(reply), done);
    }
    if (!entry->record_status.ok()) return done(entry->record_status);
    *reply.mutable_record() = std::move(entry->record);
    if (entry->leader.node.empty()) {
      reply.set_leader_error(
          "nobody leads it now; a node stands for it once it has a trainer of it or its shards");
      return done(std::move(reply));
    }
    *reply.mutable_elected() = replication::ToWire(entry->leader);
    reply.set_term(entry->term.value);
    AskLeader(job, entry->leader, std::move(reply), done);
  });
}

void AdminQueries::EndJob(const wire::EndJobRequest& request, StatusCompletion done) {
  const JobName job(request.job());
  ReadJob(job, [this, job, drop = request.drop_state(),
                done = std::move(done)](const Result<JobEntry>& entry) {
    if (!entry.ok()) return done(entry.status());
    if (!entry->record_status.ok()) return done(entry->record_status);
    if (entry->record.ended()) return done(Status::Ok());
    if (!drop && entry->record.committed_size() > 0) {
      return done(InvalidArgument("job " + store::QuoteName(job.value) +
                                  " has committed snapshots; add --drop-state to give them up"));
    }
    if (entry->leader.node.empty()) return EndUnledJob(job, entry->record_revision, done);
    replication::wire::Request message;
    // To a leader, ending a job and letting go of its state are one; without, it only lets trainers
    // leave.
    message.mutable_end_job()->set_drop(true);
    message.mutable_end_job()->set_token_digest(entry->token_digest);
    Send(entry->leader, job, std::move(message), kEndJobTimeout,
         [done](const Result<replication::wire::Reply>& reply) { done(reply.status()); });
  });
}

// No live node has anything of it, so nobody was elected: only its record is left to end.
void AdminQueries::EndUnledJob(const JobName& job, replication::Revision revision,
                               StatusCompletion done) {
  using replication::Compare;
  const std::string key = replication::JobRecordKey(job);
  auto read = [this, job, key, revision, done](const Result<RangeResult>& range) {
    if (!range.ok()) return done(range.status());
    const KeyValue* pair = FindPair(*range, key);
    replication::wire::JobRecord record;
    if (pair == nullptr || pair->mod_revision != revision || !record.ParseFromString(pair->value)) {
      return done(
          Stale("job " + store::QuoteName(job.value) + " has changed meanwhile; try again"));
    }
    Result<replication::wire::JobRecord> ended =
        replication::EndRecord(record, seams_.executor->clock().UnixMillis());
    if (!ended.ok()) return done(ended.status());
    replication::Transaction transaction;
    transaction.compares = {{key, Compare::Target::kModRevision, revision},
                            {replication::LeaderKey(job), Compare::Target::kCreateRevision, 0}};
    transaction.operations = {{replication::Operation::Kind::kPut, key, ended->SerializeAsString(),
                               replication::kNoLease}};
    auto written = [job, done](const Result<replication::TransactionResult>& result) {
      if (!result.ok()) return done(result.status());
      if (result->succeeded) return done(Status::Ok());
      done(Stale("job " + store::QuoteName(job.value) + " has changed meanwhile; try again"));
    };
    seams_.metadata->Commit(std::move(transaction), After(kEndJobTimeout),
                            lifetime_.Wrap(std::move(written)));
  };
  seams_.metadata->Range(key, After(kMetadataAnswerTimeout), lifetime_.Wrap(std::move(read)));
}

}  // namespace backstay::tools
