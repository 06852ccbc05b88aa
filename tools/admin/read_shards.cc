// Manifests of a snapshot's shards, and grants to read one of them.

#include <algorithm>
#include <utility>

#include "replication/wire_convert.h"
#include "store/manifest.h"
#include "tools/admin/admin_queries.h"
#include "tools/admin/fan_out.h"

namespace backstay::tools {
namespace {

replication::wire::Request OpenRequest(const JobName& job, const SnapshotId& snapshot,
                                       const FoundShard& shard, bool manifest_only) {
  replication::wire::Request request;
  replication::wire::OpenShard& open = *request.mutable_open_shard();
  *open.mutable_shard() = replication::ToWire(ShardName{job, snapshot, shard.id});
  open.set_digest(shard.digest);
  open.set_manifest_only(manifest_only);
  return request;
}

// Ok: the answer has the very manifest that the digest names.
Status CheckOpened(const Result<replication::wire::Reply>& reply, const FoundShard& shard) {
  if (!reply.ok()) return reply.status();
  const std::string& manifest = reply->open_shard().manifest();
  if (manifest.empty()) return Unavailable("answered without a manifest");
  if (store::ManifestDigest(manifest).ToByteString() == shard.digest) return Status::Ok();
  return Corrupt("its manifest does not match the shard's digest");
}

void Add(const NodeInstance& node, const Status& why, wire::SilentNode& silent) {
  silent.set_node_id(node.node.value);
  silent.set_error(why.ToString());
}

}  // namespace

void AdminQueries::Snapshot(const wire::SnapshotRequest& request,
                            Completion<wire::SnapshotReply> done) {
  const JobName job(request.job());
  auto found = [this, job, request, done = std::move(done)](Result<FoundSnapshot> result) {
    if (!result.ok()) return done(result.status());
    auto snapshot = std::make_shared<FoundSnapshot>(std::move(*result));
    if (request.has_rank()) {
      if (request.rank() >= snapshot->world_size) {
        return done(NotFound("there is no rank " + std::to_string(request.rank()) + " in " +
                             ToString(snapshot->snapshot) + " of job " +
                             store::QuoteName(job.value) + "; it has ranks 0 to " +
                             std::to_string(std::max(1U, snapshot->world_size) - 1)));
      }
      std::erase_if(snapshot->shards,
                    [&](const FoundShard& shard) { return shard.rank != request.rank(); });
    }
    auto reply = std::make_shared<wire::SnapshotReply>();
    *reply->mutable_snapshot() = replication::ToWire(snapshot->snapshot);
    reply->set_committed(snapshot->committed);
    reply->set_world_size(snapshot->world_size);
    reply->set_wanted_replicas(snapshot->wanted_replicas);
    for (const wire::SilentNode& node : snapshot->silent) *reply->add_silent() = node;
    for (const FoundShard& shard : snapshot->shards) {
      wire::ShardReplicas& replicas = *reply->add_shards();
      replicas.set_shard_id(shard.id.value);
      replicas.set_rank(shard.rank);
      replicas.set_digest(shard.digest);
      replicas.set_size_bytes(shard.size_bytes);
      for (const NodeInstance& holder : shard.holders) {
        *replicas.add_holders() = replication::ToWire(holder);
      }
    }
    const size_t count = request.with_manifests() ? snapshot->shards.size() : 0;
    auto read = [this, job, snapshot, reply](size_t index, FanOut::Done read_one) {
      ReadManifest(job, *snapshot, index, 0, reply, std::move(read_one));
    };
    FanOut::Run(count, kManifestsAskedAtOnceMax, std::move(read),
                [reply, done] { done(std::move(*reply)); });
  };
  FindSnapshot(job, request.step(), request.generation(), std::move(found));
}

// From the holder of that index, or from the next one.
void AdminQueries::ReadManifest(const JobName& job, const FoundSnapshot& found, size_t shard,
                                size_t holder, std::shared_ptr<wire::SnapshotReply> reply,
                                std::function<void()> done) {
  const FoundShard& wanted = found.shards[shard];
  if (holder == wanted.holders.size()) return done();
  auto opened = [this, job, &found, shard, holder, reply,
                 done = std::move(done)](Result<replication::wire::Reply> answer) {
    wire::ShardReplicas& replicas = *reply->mutable_shards(static_cast<int>(shard));
    const FoundShard& asked = found.shards[shard];
    const Status status = CheckOpened(answer, asked);
    if (!status.ok()) {
      replicas.set_error(replicas.error() + (replicas.error().empty() ? "" : "; ") +
                         asked.holders[holder].node.value + ": " + status.ToString());
      return ReadManifest(job, found, shard, holder + 1, reply, done);
    }
    std::string& manifest = *answer->mutable_open_shard()->mutable_manifest();
    if (reply->ByteSizeLong() + manifest.size() > kManifestsBytesMax) {
      replicas.set_error("left out of this answer, which would be too large; ask for rank " +
                         std::to_string(asked.rank) + " alone");
    } else {
      replicas.set_manifest(std::move(manifest));
      replicas.clear_error();
    }
    done();
  };
  Send(wanted.holders[holder], job, OpenRequest(job, found.snapshot, wanted, true),
       kOpenShardTimeout, std::move(opened));
}

void AdminQueries::OpenShard(const wire::OpenShardRequest& request,
                             Completion<wire::OpenShardReply> done) {
  const JobName job(request.job());
  const ShardId id(request.shard_id());
  auto found = [this, job, id, done = std::move(done)](const Result<FoundSnapshot>& result) {
    if (!result.ok()) return done(result.status());
    auto shard = std::make_shared<FoundShard>();
    std::vector<std::string> names;
    for (const FoundShard& candidate : result->shards) {
      names.push_back(candidate.id.value);
      if (candidate.id == id && shard->holders.empty()) *shard = candidate;
    }
    const std::string what = "shard " + store::QuoteName(id.value) + " in " +
                             ToString(result->snapshot) + " of job " + store::QuoteName(job.value);
    if (shard->holders.empty()) {
      const std::string missing = "there is no " + what + NearestHint(id.value, names);
      const bool whole = result->silent.empty() && names.size() >= result->world_size;
      return done(whole ? NotFound(missing)
                        : Unavailable(missing + "; not every node that may hold it answered"));
    }
    auto reply = std::make_shared<wire::OpenShardReply>();
    reply->set_store_id(seams_.store.value);
    reply->set_digest(shard->digest);
    *reply->mutable_reader() = replication::ToWire(seams_.self());
    *reply->mutable_snapshot() = replication::ToWire(result->snapshot);
    auto open = [this, job, shard, reply, snapshot = result->snapshot](size_t index,
                                                                       FanOut::Done opened) {
      Send(shard->holders[index], job, OpenRequest(job, snapshot, *shard, false), kOpenShardTimeout,
           [shard, reply, index, opened](Result<replication::wire::Reply> answer) {
             const Status status = CheckOpened(answer, *shard);
             if (status.ok()) {
               reply->set_manifest(answer->open_shard().manifest());
               *reply->add_grants() = std::move(*answer->mutable_open_shard()->mutable_grant());
             } else {
               Add(shard->holders[index], status, *reply->add_failed());
             }
             opened();
           });
    };
    FanOut::Run(shard->holders.size(), kManifestsAskedAtOnceMax, std::move(open),
                [reply, what, done] {
                  if (reply->grants_size() > 0) return done(std::move(*reply));
                  done(Unavailable("no holder of " + what + " lets it be read: " +
                                   reply->failed(0).node_id() + ": " + reply->failed(0).error()));
                });
  };
  FindSnapshot(job, request.step(), request.generation(), std::move(found));
}

}  // namespace backstay::tools
