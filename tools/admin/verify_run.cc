#include "tools/admin/verify_run.h"

#include <set>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::tools {

std::shared_ptr<VerifyRun> AdminQueries::Verify(const wire::VerifyRequest& request,
                                                OnProgress on_progress, StatusCompletion done) {
  const JobName job(request.job());
  auto run = std::make_shared<VerifyRun>(*this, job, std::move(on_progress), std::move(done));
  FindSnapshot(job, request.step(), request.generation(),
               [weak = std::weak_ptr<VerifyRun>(run)](const Result<FoundSnapshot>& found) {
                 if (const std::shared_ptr<VerifyRun> alive = weak.lock()) alive->Start(found);
               });
  return run;
}

VerifyRun::VerifyRun(AdminQueries& queries, JobName job, AdminQueries::OnProgress on_progress,
                     StatusCompletion done)
    : queries_(queries),
      job_(std::move(job)),
      on_progress_(std::move(on_progress)),
      done_(std::move(done)) {}

void VerifyRun::Start(const Result<FoundSnapshot>& found) {
  if (!found.ok()) return done_(found.status());
  found_ = *found;
  for (const FoundShard& shard : found_.shards) {
    for (const NodeInstance& holder : shard.holders) {
      waiting_[holder.node].push_back({&shard, holder});
      ++replicas_total_;
    }
  }
  ReportMissing();
  if (replicas_total_ == 0) return done_(Status::Ok());
  for (const auto& [node, replicas] : waiting_) idle_.push_back(node);
  const std::shared_ptr<VerifyRun> self = shared_from_this();
  for (size_t i = 0; i < kNodesVerifyingAtOnceMax && !idle_.empty(); ++i) {
    const NodeId node = idle_.front();
    idle_.pop_front();
    Step(node);
  }
}

void VerifyRun::ReportMissing() {
  std::set<uint32_t> present;
  for (const FoundShard& shard : found_.shards) present.insert(shard.rank);
  for (uint32_t rank = 0; rank < found_.world_size; ++rank) {
    if (present.contains(rank)) continue;
    wire::VerifyProgress progress;
    progress.set_rank(rank);
    progress.set_no_holder(true);
    progress.set_error("no node that answered holds this rank's shard");
    Report(std::move(progress));
  }
  for (const wire::SilentNode& silent : found_.silent) {
    wire::VerifyProgress progress;
    progress.set_node_id(silent.node_id());
    progress.set_error("did not say what it holds: " + silent.error());
    Report(std::move(progress));
  }
}

void VerifyRun::Step(const NodeId& node) {
  std::deque<Replica>& replicas = waiting_[node];
  if (replicas.empty()) {
    if (idle_.empty()) return;
    const NodeId next = idle_.front();
    idle_.pop_front();
    return Step(next);
  }
  const Replica replica = replicas.front();
  replicas.pop_front();
  replication::wire::Request request;
  replication::wire::VerifyShard& verify = *request.mutable_verify_shard();
  *verify.mutable_shard() =
      replication::ToWire(ShardName{job_, found_.snapshot, replica.shard->id});
  verify.set_digest(replica.shard->digest);
  queries_.Send(replica.holder, job_, std::move(request), kVerifyReplicaTimeout,
                lifetime_.Wrap([this, replica](const Result<replication::wire::Reply>& reply) {
                  OnVerified(replica, reply);
                }));
}

void VerifyRun::OnVerified(const Replica& replica, const Result<replication::wire::Reply>& reply) {
  const std::shared_ptr<VerifyRun> self = shared_from_this();  // A listener may drop the run.
  ++replicas_done_;
  wire::VerifyProgress progress;
  progress.set_shard_id(replica.shard->id.value);
  progress.set_rank(replica.shard->rank);
  progress.set_node_id(replica.holder.node.value);
  progress.set_bytes(replica.shard->size_bytes);
  if (reply.ok()) {
    progress.set_chunks(reply->verify_shard().chunks());
    *progress.mutable_bad_chunks() = reply->verify_shard().bad_chunks();
  } else {
    progress.set_error(reply.status().ToString());
  }
  Report(std::move(progress));
  if (replicas_done_ == replicas_total_) return done_(Status::Ok());
  Step(replica.holder.node);
}

void VerifyRun::Report(wire::VerifyProgress progress) {
  progress.set_replicas_done(replicas_done_);
  progress.set_replicas_total(replicas_total_);
  progress.set_wanted_replicas(found_.wanted_replicas);
  progress.set_generation(found_.snapshot.generation.value);
  on_progress_(std::move(progress));
}

}  // namespace backstay::tools
