#include "replication/snapshot_reader.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

std::string DescribeCommitted(const wire::LeaderStatusReply& status) {
  std::ostringstream text;
  const char* separator = "";
  for (const wire::SnapshotStatus& snapshot : status.snapshots()) {
    if (snapshot.state() != wire::SnapshotStatus::COMMITTED) continue;
    text << separator << FromWire(snapshot.snapshot());
    separator = ", ";
  }
  return text.str().empty() ? "nothing is committed" : "committed: " + text.str();
}

// The wanted snapshot in the leader's list; null: it is not there.
const wire::SnapshotStatus* Pick(const wire::LeaderStatusReply& status, SnapshotId wanted) {
  const bool newest = wanted == SnapshotId();
  const wire::SnapshotStatus* picked = nullptr;
  for (const wire::SnapshotStatus& snapshot : status.snapshots()) {
    const SnapshotId id = FromWire(snapshot.snapshot());
    if (!newest) {
      if (id == wanted) picked = &snapshot;
      continue;
    }
    // What is committed beyond the last commit is off the lineage: the job went on from before it.
    const bool counts = snapshot.state() == wire::SnapshotStatus::COMMITTED &&
                        id.step.value <= status.state().last_committed_step();
    if (counts && (picked == nullptr || id > FromWire(picked->snapshot()))) picked = &snapshot;
  }
  return picked;
}

}  // namespace

void SnapshotReader::Locate(LeaderLink& leader, const JobName& job, SnapshotId snapshot,
                            Completion<SnapshotWhereabouts> done) {
  wire::Request request;
  request.mutable_leader_status();
  leader.Call(std::move(request), executor_.Now() + kTimeout,
              lifetime_.Wrap([job, snapshot, done](const Result<wire::Reply>& reply) {
                if (!reply.ok()) return done(reply.status());
                const wire::LeaderStatusReply& status = reply->leader_status();
                const wire::SnapshotStatus* picked = Pick(status, snapshot);
                if (picked == nullptr) {
                  const std::string what =
                      snapshot == SnapshotId() ? "a committed snapshot" : ToString(snapshot);
                  return done(NotFound("job " + job.value + " has not got " + what + "; " +
                                       DescribeCommitted(status)));
                }
                SnapshotWhereabouts where;
                where.snapshot = FromWire(picked->snapshot());
                for (const wire::ShardSource& source : picked->shards()) {
                  ShardWhereabouts& shard = where.shards.emplace_back();
                  shard.name = {job, where.snapshot, ShardId(source.shard_id())};
                  shard.rank = Rank(source.rank());
                  const Result<Hash128> digest = DigestFromWire(source.digest());
                  if (!digest.ok()) return done(digest.status());
                  shard.digest = *digest;
                  for (const wire::Instance& holder : source.holders()) {
                    shard.holders.push_back(FromWire(holder));
                  }
                }
                std::sort(where.shards.begin(), where.shards.end(),
                          [](const auto& a, const auto& b) { return a.rank < b.rank; });
                done(std::move(where));
              }));
}

void SnapshotReader::LocateShard(LeaderLink& leader, const ShardName& name,
                                 Completion<ShardWhereabouts> done) {
  Locate(leader, name.job, name.snapshot, [name, done](const Result<SnapshotWhereabouts>& where) {
    if (!where.ok()) return done(where.status());
    std::string present;
    for (const ShardWhereabouts& shard : where->shards) {
      if (shard.name.shard == name.shard) return done(shard);
      present += (present.empty() ? "" : ", ") + shard.name.shard.value;
    }
    done(NotFound(ToString(name) + " does not exist; the snapshot has shards " + present));
  });
}

void SnapshotReader::Index(LeaderLink& leader, const JobName& job, SnapshotId snapshot,
                           Completion<SnapshotIndexReply> done) {
  Locate(leader, job, snapshot, lifetime_.Wrap([this, done](Result<SnapshotWhereabouts> where) {
    if (!where.ok()) return done(where.status());
    const uint64_t id = ++last_run_;
    IndexRun& run = runs_[id];
    run.where = std::move(where).value();
    run.manifests.resize(run.where.shards.size());
    run.next_holder.resize(run.where.shards.size());
    run.done = done;
    StepIndex(id);
  }));
}

void SnapshotReader::StepIndex(uint64_t id) {
  IndexRun& run = runs_.at(id);
  if (run.done_count == run.where.shards.size()) {
    return FinishIndex(id, SnapshotIndexReply{run.where.snapshot, run.manifests});
  }
  while (run.next_shard < run.where.shards.size() && run.asked_count < kAskedAtOnceMax) {
    const size_t shard = run.next_shard++;
    ++run.asked_count;
    // Posted, so that local answers do not recurse.
    executor_.Post(lifetime_.Wrap([this, id, shard] {
      if (runs_.contains(id)) AskManifest(id, shard);
    }));
  }
}

void SnapshotReader::AskManifest(uint64_t id, size_t index) {
  IndexRun& run = runs_.at(id);
  const ShardWhereabouts& shard = run.where.shards[index];
  const store::Shard* local = table_.Find(shard.name);
  if (local != nullptr && local->sealed() && local->digest == shard.digest) {
    run.manifests[index] = local->manifest_bytes;
    --run.asked_count;
    ++run.done_count;
    return StepIndex(id);
  }
  if (run.next_holder[index] >= shard.holders.size()) {
    return FinishIndex(id, Unavailable("the manifest of " + ToString(shard.name) +
                                       " cannot be had from any of its " +
                                       std::to_string(shard.holders.size()) + " holders now"));
  }
  const NodeInstance holder = shard.holders[run.next_holder[index]++];
  wire::Request request;
  wire::OpenShard& open = *request.mutable_open_shard();
  *open.mutable_shard() = ToWire(shard.name);
  open.set_digest(shard.digest.ToByteString());
  open.set_manifest_only(true);
  peers_.Send(
      shard.name.job, holder, std::move(request), executor_.Now() + kOpenTimeout,
      lifetime_.Wrap([this, id, index](const Result<wire::Reply>& reply) {
        const auto found = runs_.find(id);
        if (found == runs_.end()) return;
        IndexRun& asked = found->second;
        const Hash128& digest = asked.where.shards[index].digest;
        if (!reply.ok() || store::ManifestDigest(reply->open_shard().manifest()) != digest) {
          return AskManifest(id, index);
        }
        asked.manifests[index] = reply->open_shard().manifest();
        --asked.asked_count;
        ++asked.done_count;
        StepIndex(id);
      }));
}

void SnapshotReader::FinishIndex(uint64_t id, Result<SnapshotIndexReply> result) {
  const Completion<SnapshotIndexReply> done = std::move(runs_.at(id).done);
  runs_.erase(id);
  done(std::move(result));
}

}  // namespace backstay::replication
