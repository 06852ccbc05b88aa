#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "base/executor.h"
#include "base/ids.h"
#include "tools/admin/admin.grpc.pb.h"
#include "tools/admin/admin_queries.h"

namespace backstay::tools {

class Node;

// The door for the command `backstay`: hands each call to AdminQueries on the executor, and sends
// what they answer. A refusal is a gRPC status whose details hold a Refusal.
//
// Thread:  gRPC calls it from its own threads; FailPending() from any; Serve() and destruction on
//          the executor, or when it no longer runs.
// Memory:  owns a call's request until the call has ended. FailPending() comes before destruction.
// Failure: before Serve(): kUnavailable, "starting". An answer that comes after FailPending() is
//          dropped. A caller that goes away ends its Verify after the replicas under way.
class AdminService : public wire::Admin::CallbackService {
 public:
  explicit AdminService(Executor& executor);
  ~AdminService() override;

  // From now on calls are answered. The arguments outlive the service.
  void Serve(Node& node, replication::MetadataStore& metadata, replication::Messenger& messenger,
             const StoreId& store);
  void Serve(AdminSeams seams);

  // Ends every call that waits for an answer, and refuses later ones; then the server can shut
  // down.
  void FailPending();

  grpc::ServerUnaryReactor* Cluster(grpc::CallbackServerContext* context,
                                    const wire::ClusterRequest* request,
                                    wire::ClusterReply* reply) override;
  grpc::ServerUnaryReactor* Jobs(grpc::CallbackServerContext* context,
                                 const wire::JobsRequest* request, wire::JobsReply* reply) override;
  grpc::ServerUnaryReactor* Job(grpc::CallbackServerContext* context,
                                const wire::JobRequest* request, wire::JobReply* reply) override;
  grpc::ServerUnaryReactor* Snapshot(grpc::CallbackServerContext* context,
                                     const wire::SnapshotRequest* request,
                                     wire::SnapshotReply* reply) override;
  grpc::ServerWriteReactor<wire::VerifyProgress>* Verify(
      grpc::CallbackServerContext* context, const wire::VerifyRequest* request) override;
  grpc::ServerUnaryReactor* OpenShard(grpc::CallbackServerContext* context,
                                      const wire::OpenShardRequest* request,
                                      wire::OpenShardReply* reply) override;
  grpc::ServerUnaryReactor* EndJob(grpc::CallbackServerContext* context,
                                   const wire::EndJobRequest* request,
                                   wire::EndJobReply* reply) override;

 private:
  struct Pending;
  class VerifyStream;

  // Copies the request, and runs `ask` on the executor: it answers with a Result<Reply>.
  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* Handle(
      grpc::CallbackServerContext* context, const Request* request, Reply* reply,
      std::function<void(AdminQueries&, const Request&, Completion<Reply>)> ask);

  Executor& executor_;
  std::shared_ptr<Pending> pending_;
  std::unique_ptr<AdminQueries> queries_;  // Of the executor.
};

}  // namespace backstay::tools
