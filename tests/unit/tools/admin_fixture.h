#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "replication/job_record.h"
#include "replication/metadata_keys.h"
#include "replication/metadata_records.pb.h"
#include "replication/wire_convert.h"
#include "tools/admin/admin_queries.h"

namespace backstay::tools {

// Peers that answer as scripted, or never (until the deadline).
class ScriptedMessenger : public replication::Messenger {
 public:
  using Script =
      std::function<Result<replication::wire::Reply>(const replication::wire::Request& request)>;

  explicit ScriptedMessenger(Executor* executor) : executor_(executor) {}

  // A node without a script is silent.
  void Answer(const std::string& node, Script script) { scripts_[node] = std::move(script); }

  void Send(const NodeId& to, replication::wire::Request request, Deadline deadline,
            Completion<replication::wire::Reply> done) override {
    sent.emplace_back(to.value, request);
    const auto script = scripts_.find(to.value);
    if (script == scripts_.end()) {
      executor_->RunAt(deadline, [done = std::move(done)] { done(DeadlineExceeded("no answer")); });
      return;
    }
    executor_->Post([done = std::move(done), script = script->second,
                     request = std::move(request)] { done(script(request)); });
  }

  std::vector<std::pair<std::string, replication::wire::Request>> sent;

 private:
  Executor* const executor_;
  std::map<std::string, Script> scripts_;
};

// What one node holds and answers.
struct FakeNode {
  explicit FakeNode(std::string node) : name(std::move(node)) {}

  void Hold(const std::string& job, uint64_t generation, uint64_t step, uint32_t rank,
            const std::string& manifest, bool primary) {
    const std::string digest = store::ManifestDigest(manifest).ToByteString();
    manifests[digest] = manifest;
    replication::wire::NodeJob* entry = nullptr;
    for (auto& known : *status.mutable_jobs()) entry = known.job() == job ? &known : entry;
    if (entry == nullptr) entry = status.add_jobs();
    entry->set_job(job);
    replication::wire::HeldShard& held = *entry->add_shards();
    held.mutable_shard()->mutable_snapshot()->set_generation(generation);
    held.mutable_shard()->mutable_snapshot()->set_step(step);
    held.mutable_shard()->set_shard_id(std::to_string(rank));
    held.set_rank(rank);
    held.set_world_size(2);
    held.set_digest(digest);
    held.set_size_bytes(100);
    held.set_primary(primary);
  }

  Result<replication::wire::Reply> Answer(const replication::wire::Request& request) {
    using replication::wire::Request;
    replication::wire::Reply reply;
    switch (request.body_case()) {
      case Request::kNodeStatus:
        *reply.mutable_node_status() = status;
        return reply;
      case Request::kLeaderStatus:
        if (!leader.has_value()) return Unavailable("does not lead it");
        *reply.mutable_leader_status() = *leader;
        return reply;
      case Request::kOpenShard: {
        const auto found = manifests.find(request.open_shard().digest());
        if (found == manifests.end() || !open_status.ok()) {
          return open_status.ok() ? NotFound("no such shard") : open_status;
        }
        reply.mutable_open_shard()->set_manifest(found->second);
        reply.mutable_open_shard()->set_digest(found->first);
        if (!request.open_shard().manifest_only()) {
          reply.mutable_open_shard()->mutable_grant()->set_id(1);
          reply.mutable_open_shard()->mutable_grant()->mutable_owner()->set_node_id(name);
        }
        return reply;
      }
      case Request::kVerifyShard:
        reply.mutable_verify_shard()->set_chunks(4);
        for (const uint32_t chunk : bad_chunks) reply.mutable_verify_shard()->add_bad_chunks(chunk);
        return reply;
      case Request::kEndJob:
        return reply;
      default:
        return InvalidArgument("not a question of this test");
    }
  }

  const std::string name;
  replication::wire::NodeStatusReply status;
  std::optional<replication::wire::LeaderStatusReply> leader;
  std::map<std::string, std::string> manifests;  // By digest.
  Status open_status;
  std::vector<uint32_t> bad_chunks;
};

}  // namespace backstay::tools
