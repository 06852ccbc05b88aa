#include "tools/cli/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "tools/admin/admin_status.h"

namespace backstay::tools {
namespace {

// As replication/peer_grpc.h: the largest control message.
constexpr int kMessageBytesMax = 80 * 1024 * 1024;

}  // namespace

AdminClient::AdminClient(const std::string& address,
                         const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                         Duration timeout)
    : address_(address), deadline_(std::chrono::steady_clock::now() + timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  stub_ = wire::Admin::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

Duration AdminClient::TimeLeft() const {
  return std::max<Duration>(Duration::zero(), deadline_ - std::chrono::steady_clock::now());
}

void AdminClient::SetDeadline(grpc::ClientContext& context) const {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(TimeLeft()));
}

Status AdminClient::Explain(const grpc::Status& status) const {
  const Status ours = FromGrpc(status);
  if (ours.ok() || !status.error_details().empty()) return ours;
  return Status(ours.code(),
                "the service at " + address_ + " cannot be reached: " + ours.message());
}

template <typename Reply, typename Method, typename Request>
Result<Reply> AdminClient::Call(Method method, const Request& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  Reply reply;
  const Status status = Explain((stub_.get()->*method)(&context, request, &reply));
  if (!status.ok()) return status;
  return reply;
}

Result<wire::ClusterReply> AdminClient::Cluster() {
  return Call<wire::ClusterReply>(&wire::Admin::Stub::Cluster, wire::ClusterRequest());
}
Result<wire::JobsReply> AdminClient::Jobs() {
  return Call<wire::JobsReply>(&wire::Admin::Stub::Jobs, wire::JobsRequest());
}
Result<wire::JobReply> AdminClient::Job(const wire::JobRequest& request) {
  return Call<wire::JobReply>(&wire::Admin::Stub::Job, request);
}
Result<wire::SnapshotReply> AdminClient::Snapshot(const wire::SnapshotRequest& request) {
  return Call<wire::SnapshotReply>(&wire::Admin::Stub::Snapshot, request);
}
Result<wire::OpenShardReply> AdminClient::OpenShard(const wire::OpenShardRequest& request) {
  return Call<wire::OpenShardReply>(&wire::Admin::Stub::OpenShard, request);
}
Status AdminClient::EndJob(const wire::EndJobRequest& request) {
  return Call<wire::EndJobReply>(&wire::Admin::Stub::EndJob, request).status();
}

Status AdminClient::Verify(const wire::VerifyRequest& request,
                           const std::function<void(const wire::VerifyProgress&)>& on_progress) {
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Verify(&context, request);
  wire::VerifyProgress progress;
  while (reader->Read(&progress)) on_progress(progress);
  return Explain(reader->Finish());
}

}  // namespace backstay::tools
