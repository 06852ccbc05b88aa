#pragma once

#include <grpcpp/security/credentials.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "tools/admin/admin.grpc.pb.h"

namespace backstay::tools {

// Asks one service, and waits for the answer. Thread: one.
//
// Failure: kUnavailable names the address when nobody answers there; refusals are as the service
//          said them.
class AdminClient {
 public:
  // `timeout` is for all calls together, from now on.
  AdminClient(const std::string& address,
              const std::shared_ptr<grpc::ChannelCredentials>& credentials, Duration timeout);

  // Not negative.
  Duration TimeLeft() const;

  Result<wire::ClusterReply> Cluster();
  Result<wire::JobsReply> Jobs();
  Result<wire::JobReply> Job(const wire::JobRequest& request);
  Result<wire::SnapshotReply> Snapshot(const wire::SnapshotRequest& request);
  Result<wire::OpenShardReply> OpenShard(const wire::OpenShardRequest& request);
  Status EndJob(const wire::EndJobRequest& request);
  // Runs `on_progress` for each answer.
  Status Verify(const wire::VerifyRequest& request,
                const std::function<void(const wire::VerifyProgress&)>& on_progress);

 private:
  template <typename Reply, typename Method, typename Request>
  Result<Reply> Call(Method method, const Request& request);
  void SetDeadline(grpc::ClientContext& context) const;
  Status Explain(const grpc::Status& status) const;

  const std::string address_;
  const std::chrono::steady_clock::time_point deadline_;
  std::unique_ptr<wire::Admin::Stub> stub_;
};

}  // namespace backstay::tools
