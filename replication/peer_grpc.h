#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/executor.h"
#include "replication/grpc_calls.h"
#include "replication/messenger.h"
#include "replication/peer_service.grpc.pb.h"

namespace backstay::replication {

// The largest control message that is sent or accepted: a manifest at its limit and its envelope.
inline constexpr int kPeerMessageBytesMax = 80 * 1024 * 1024;

// The Messenger over gRPC: one channel for each peer address, made when first needed.
//
// Thread:  Send() and completions on the executor; gRPC's own threads only post to it.
// Memory:  owns each request until its call has ended.
// Failure: gRPC cannot tell whether a message whose connection broke was delivered; such a call
//          ends in kUnavailable, and its sender repeats it. The destructor cancels every call and
//          waits for gRPC to let go of them; completions that have not run by then never run.
class GrpcMessenger : public Messenger {
 public:
  // The control address of a node, or nothing when the membership does not have it. Called on the
  // executor.
  using Resolver = std::function<std::optional<std::string>(const NodeId&)>;

  GrpcMessenger(Executor& executor, Resolver resolver,
                std::shared_ptr<grpc::ChannelCredentials> credentials);
  ~GrpcMessenger() override;

  void Send(const NodeId& to, wire::Request request, Deadline deadline,
            Completion<wire::Reply> done) override;

 private:
  struct CallState;

  wire::Peer::Stub& StubFor(const std::string& address);

  Executor& executor_;
  const Resolver resolver_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::map<std::string, std::unique_ptr<wire::Peer::Stub>> stubs_;
  std::shared_ptr<GrpcCalls<CallState>> calls_;  // In flight; shared with gRPC's threads.
};

// The server side: hands each message to the router on the executor, and sends what the router
// answers.
//
// Thread:  gRPC calls it from its own threads; FailPending() from any.
// Failure: an answer that comes after FailPending() is dropped.
class PeerGrpcService : public wire::Peer::CallbackService {
 public:
  using Handler = std::function<void(const wire::Request& request, ReplyFunction reply)>;

  PeerGrpcService(Executor& executor, Handler handler);

  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const wire::Request* request,
                                 wire::Reply* reply) override;

  // Ends every call that waits for an answer, and refuses later ones; then the server can shut down
  // and the router can go.
  void FailPending();

 private:
  struct Pending;

  Executor& executor_;
  const Handler handler_;
  std::shared_ptr<Pending> pending_;
};

// Channel arguments shared by every channel between services: quick reconnects, bounded messages.
grpc::ChannelArguments PeerChannelArguments();

}  // namespace backstay::replication
