#include "replication/peer_grpc.h"

#include <chrono>
#include <condition_variable>
#include <set>
#include <utility>

#include "base/units.h"

namespace backstay::replication {
namespace {

// A replacement must be found within tens of milliseconds of its start, so reconnects are tried
// often; the cost is one refused connect per peer and interval.
constexpr int kReconnectBackoffMinMs = 50;
constexpr int kReconnectBackoffMaxMs = 500;
// gRPC takes its least backoff for the time that one connection attempt may last, a TLS handshake
// under load included.
constexpr int kConnectTimeoutMs = 2000;

// Messages without a deadline of their own still end.
constexpr std::chrono::minutes kCallTimeoutMax(10);

std::chrono::system_clock::time_point SystemDeadline(const Executor& executor, Deadline deadline) {
  const auto now = std::chrono::system_clock::now();
  if (deadline == kNoDeadline) return now + kCallTimeoutMax;
  const Duration left = deadline - executor.Now();
  return now + std::chrono::duration_cast<std::chrono::system_clock::duration>(
                   std::min<Duration>(left, kCallTimeoutMax));
}

Status FromGrpc(const NodeId& to, const std::string& address, const grpc::Status& status) {
  const std::string text =
      "message to " + to.value + " (" + address + "): " + status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return DeadlineExceeded(text);
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return PermissionDenied(text);
    default:
      return Unavailable(text);
  }
}

}  // namespace

grpc::ChannelArguments PeerChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectBackoffMinMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectBackoffMaxMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kPeerMessageBytesMax);
  arguments.SetMaxSendMessageSize(kPeerMessageBytesMax);
  return arguments;
}

// One call in flight: what gRPC reads and writes until it has run the callback.
struct GrpcMessenger::CallState {
  grpc::ClientContext context;
  wire::Request request;
  wire::Reply reply;
};

namespace {

constexpr size_t kChannelsMax = 4096;  // Of addresses ever spoken to.

}  // namespace

GrpcMessenger::GrpcMessenger(Executor& executor, Resolver resolver,
                             std::shared_ptr<grpc::ChannelCredentials> credentials)
    : executor_(executor),
      resolver_(std::move(resolver)),
      credentials_(std::move(credentials)),
      calls_(std::make_shared<GrpcCalls<CallState>>()) {}

GrpcMessenger::~GrpcMessenger() { calls_->Close(); }

wire::Peer::Stub& GrpcMessenger::StubFor(const std::string& address) {
  // A call under way holds its channel itself.
  if (!stubs_.contains(address) && stubs_.size() >= kChannelsMax) stubs_.clear();
  std::unique_ptr<wire::Peer::Stub>& stub = stubs_[address];
  if (!stub) {
    stub = wire::Peer::NewStub(
        grpc::CreateCustomChannel(address, credentials_, PeerChannelArguments()));
  }
  return *stub;
}

void GrpcMessenger::Send(const NodeId& to, wire::Request request, Deadline deadline,
                         Completion<wire::Reply> done) {
  const std::optional<std::string> address = resolver_(to);
  if (!address) {
    executor_.Post([calls = calls_, done = std::move(done), to] {
      if (calls->IsClosed()) return;
      done(Unavailable("message to " + to.value + ": it is not a member of the cluster now"));
    });
    return;
  }
  if (request.ByteSizeLong() > kPeerMessageBytesMax) {
    executor_.Post([calls = calls_, done = std::move(done), to, bytes = request.ByteSizeLong()] {
      if (calls->IsClosed()) return;
      done(NoSpace("message to " + to.value + ": its " + FormatBytes(bytes) +
                   " are more than the " + FormatBytes(kPeerMessageBytesMax) +
                   " that one may have"));
    });
    return;
  }
  CallState* const call = calls_->Add(std::make_unique<CallState>());
  call->request = std::move(request);
  call->context.set_deadline(SystemDeadline(executor_, deadline));
  const auto answer = [to, address = *address, done = std::move(done)](
                          const std::unique_ptr<CallState>& ended, const grpc::Status& status) {
    if (!status.ok()) return done(FromGrpc(to, address, status));
    const wire::StatusMessage& said = ended->reply.status();
    if (said.code() != 0) {
      return done(Status(StatusCodeFromNumber(static_cast<int>(said.code())), said.message()));
    }
    done(std::move(ended->reply));
  };
  StubFor(*address).async()->Call(
      &call->context, &call->request, &call->reply,
      [calls = calls_, &executor = executor_, call, answer](const grpc::Status& status) {
        calls->End(call, executor, [answer, status](const std::unique_ptr<CallState>& ended) {
          answer(ended, status);
        });
      });
}

// Calls that wait for an answer. A reactor is finished by whoever takes it out of the set, so
// exactly once.
struct PeerGrpcService::Pending {
  std::mutex mutex;
  std::set<grpc::ServerUnaryReactor*> waiting;  // Guarded by mutex.
  bool closed = false;                          // Guarded by mutex.

  bool Add(grpc::ServerUnaryReactor* reactor) {
    std::lock_guard lock(mutex);
    if (!closed) waiting.insert(reactor);
    return !closed;
  }
  // Runs `finish` when the call still waits; under the lock, so that its buffers are alive.
  void Take(grpc::ServerUnaryReactor* reactor, const std::function<void()>& finish) {
    std::lock_guard lock(mutex);
    if (waiting.erase(reactor) == 1) finish();
  }
  bool Waits(grpc::ServerUnaryReactor* reactor) {
    std::lock_guard lock(mutex);
    return waiting.contains(reactor);
  }
};

PeerGrpcService::PeerGrpcService(Executor& executor, Handler handler)
    : executor_(executor), handler_(std::move(handler)), pending_(std::make_shared<Pending>()) {}

grpc::ServerUnaryReactor* PeerGrpcService::Call(grpc::CallbackServerContext* context,
                                                const wire::Request* request, wire::Reply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!pending_->Add(reactor)) {
    reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service is shutting down"));
    return reactor;
  }
  // The request is copied: FailPending() may end the call, and with it gRPC's buffers, while the
  // handler reads it.
  auto owned = std::make_shared<wire::Request>(*request);
  executor_.Post([this, pending = pending_, owned, reply, reactor] {
    if (!pending->Waits(reactor)) return;
    handler_(*owned, [pending, owned, reply, reactor](Result<wire::Reply> answer) {
      pending->Take(reactor, [&] {
        if (answer.ok()) {
          *reply = std::move(answer).value();
        } else {
          reply->mutable_status()->set_code(static_cast<uint32_t>(answer.status().code()));
          reply->mutable_status()->set_message(answer.status().message());
        }
        reactor->Finish(grpc::Status::OK);
      });
    });
  });
  return reactor;
}

void PeerGrpcService::FailPending() {
  std::lock_guard lock(pending_->mutex);
  pending_->closed = true;
  for (grpc::ServerUnaryReactor* reactor : pending_->waiting) {
    reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service is shutting down"));
  }
  pending_->waiting.clear();
}

}  // namespace backstay::replication
