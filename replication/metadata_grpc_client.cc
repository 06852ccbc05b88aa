#include <algorithm>
#include <memory>
#include <utility>

#include "replication/metadata_grpc.h"
#include "replication/metadata_wire.h"

namespace backstay::replication {
namespace {

// A service that has started again is found within half a second; the cost while it is away is one
// refused connection for each client and interval.
constexpr int kReconnectMinMs = 50;
constexpr int kReconnectMaxMs = 500;
// For one attempt to connect, its TLS handshake included.
constexpr int kConnectTimeoutMs = 2000;

// For the answer to a wait that lasted until its deadline to travel.
constexpr Duration kWaitAnswerSlack = std::chrono::seconds(1);

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMinMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMaxMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMetadataMessageBytesMax);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

Status Unreachable(const std::string& address, const std::string& why) {
  return Unavailable("the metadata store at " + address + " cannot be reached: " + why);
}

}  // namespace

struct GrpcMetadataStore::OneCall {
  grpc::ClientContext context;
  metadata_wire::Request request;
  metadata_wire::Reply reply;
};

GrpcMetadataStore::GrpcMetadataStore(Executor* executor, std::string address,
                                     std::shared_ptr<grpc::ChannelCredentials> credentials,
                                     StoreId store_id)
    : executor_(executor),
      address_(std::move(address)),
      store_id_(std::move(store_id)),
      channel_(MakeChannel(address_, credentials)),
      stub_(metadata_wire::Metadata::NewStub(channel_)),
      calls_(std::make_shared<GrpcCalls<OneCall>>()) {}

GrpcMetadataStore::~GrpcMetadataStore() { calls_->Close(); }

void GrpcMetadataStore::GetStoreId(Deadline deadline, Completion<StoreId> done) {
  metadata_wire::Request request;
  request.mutable_get_store_id();
  Call(Kind::kBind, std::move(request), deadline,
       [this, done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         if (!reply.ok()) return done(reply.status());
         const StoreId id(reply->store_id());
         if (id.empty()) return done(Corrupt("the metadata store at " + address_ + " has no id"));
         if (store_id_.empty()) store_id_ = id;
         done(id);
       });
}

void GrpcMetadataStore::Commit(Transaction transaction, Deadline deadline,
                               Completion<TransactionResult> done) {
  metadata_wire::Request request;
  *request.mutable_commit() = ToWire(transaction);
  Call(Kind::kChange, std::move(request), deadline,
       [done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         if (!reply.ok()) return done(reply.status());
         done(TransactionResult{.succeeded = reply->commit().succeeded(),
                                .revision = reply->commit().revision()});
       });
}

void GrpcMetadataStore::Range(std::string prefix, Deadline deadline, Completion<RangeResult> done) {
  metadata_wire::Request request;
  request.mutable_range()->set_prefix(std::move(prefix));
  Call(Kind::kRead, std::move(request), deadline,
       [done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         if (!reply.ok()) return done(reply.status());
         done(FromWire(reply->range()));
       });
}

void GrpcMetadataStore::WaitForChange(std::string prefix, Revision after, Deadline deadline,
                                      Completion<RangeResult> done) {
  metadata_wire::Request request;
  request.mutable_wait_for_change()->set_prefix(std::move(prefix));
  request.mutable_wait_for_change()->set_after(after);
  Call(Kind::kWait, std::move(request), deadline,
       [done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         if (!reply.ok()) return done(reply.status());
         done(FromWire(reply->range()));
       });
}

void GrpcMetadataStore::GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) {
  metadata_wire::Request request;
  // A negative ttl travels as a huge one, which the store refuses as well.
  request.mutable_grant_lease()->set_ttl_ns(static_cast<uint64_t>(ttl.count()));
  Call(Kind::kChange, std::move(request), deadline,
       [done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         if (!reply.ok()) return done(reply.status());
         done(LeaseId{reply->lease()});
       });
}

void GrpcMetadataStore::RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) {
  metadata_wire::Request request;
  request.mutable_renew_lease()->set_lease(lease);
  Call(Kind::kRead, std::move(request), deadline,
       [done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         done(reply.status());
       });
}

void GrpcMetadataStore::RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) {
  metadata_wire::Request request;
  request.mutable_revoke_lease()->set_lease(lease);
  Call(Kind::kChange, std::move(request), deadline,
       [done = std::move(done)](const Result<metadata_wire::Reply>& reply) {
         done(reply.status());
       });
}

void GrpcMetadataStore::Call(Kind kind, metadata_wire::Request request, Deadline deadline,
                             Answered answered) {
  const auto refuse = [this, &answered](Status status) {
    auto refused = [answered = std::move(answered), status = std::move(status)] {
      answered(status);
    };
    executor_->Post(lifetime_.Wrap(std::move(refused)));
  };
  if (store_id_.empty() && kind != Kind::kBind) {
    return refuse(Unreachable(address_, "its id is not known yet; ask for it first"));
  }
  if (deadline <= executor_->Now() && kind != Kind::kWait) {
    return refuse(DeadlineExceeded("the deadline of a metadata request had passed"));
  }
  if (kind != Kind::kChange || channel_->GetState(true) == GRPC_CHANNEL_READY) {
    return Send(kind, std::move(request), deadline, std::move(answered));
  }
  metadata_wire::Request probe;
  probe.mutable_get_store_id();
  auto probed = [this, request = std::move(request), deadline,
                 answered = std::move(answered)](const Result<metadata_wire::Reply>& reply) {
    if (reply.ok()) return Send(Kind::kChange, request, deadline, answered);
    const bool stale = reply.status().code() == StatusCode::kStale;
    answered(stale ? reply.status() : Unavailable(reply.status().message()));
  };
  Send(Kind::kBind, std::move(probe), deadline, std::move(probed));
}

void GrpcMetadataStore::Send(Kind kind, metadata_wire::Request request, Deadline deadline,
                             Answered answered) {
  OneCall* const call = calls_->Add(std::make_unique<OneCall>());
  call->request = std::move(request);
  call->request.set_store_id(store_id_.value);
  Duration left = kMetadataCallTimeMax;
  if (deadline != kNoDeadline) left = std::min(left, deadline - executor_->Now());
  // At least one nanosecond, since zero on the wire means "no limit of the caller's".
  left = std::max(left, Duration(1));
  call->request.set_timeout_ns(static_cast<uint64_t>(left.count()));
  const Duration patience = kind == Kind::kWait ? left + kWaitAnswerSlack : left;
  call->context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::duration_cast<std::chrono::system_clock::duration>(patience));

  auto finish =
      lifetime_.Wrap([this, kind, answered = std::move(answered)](
                         const std::unique_ptr<OneCall>& ended, const grpc::Status& status) {
        if (status.ok()) {
          if (ended->reply.code() == 0) return answered(std::move(ended->reply));
          return answered(Status(StatusCodeFromNumber(static_cast<int>(ended->reply.code())),
                                 ended->reply.message()));
        }
        const std::string what =
            "the metadata store at " + address_ + ": " + status.error_message();
        if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
          return answered(DeadlineExceeded(what));
        }
        answered(kind == Kind::kChange ? UnknownOutcome(what)
                                       : Unreachable(address_, status.error_message()));
      });
  stub_->async()->Call(&call->context, &call->request, &call->reply,
                       [calls = calls_, executor = executor_, call,
                        finish = std::move(finish)](const grpc::Status& status) {
                         calls->End(
                             call, *executor,
                             [finish, status](const std::unique_ptr<OneCall>& ended) mutable {
                               finish(ended, status);
                             });
                       });
}

}  // namespace backstay::replication
