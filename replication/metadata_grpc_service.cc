#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "replication/metadata_grpc.h"
#include "replication/metadata_wire.h"

namespace backstay::replication {
namespace {

metadata_wire::Reply Refusal(const Status& status) {
  metadata_wire::Reply reply;
  reply.set_code(static_cast<uint32_t>(status.code()));
  reply.set_message(status.message());
  return reply;
}

Deadline DeadlineOf(const metadata_wire::Request& request, Instant now) {
  const auto limit_ns = static_cast<uint64_t>(kMetadataCallTimeMax.count());
  const uint64_t asked_ns = request.timeout_ns() == 0 ? limit_ns : request.timeout_ns();
  return now + Duration(static_cast<int64_t>(std::min(asked_ns, limit_ns)));
}

// A ttl from the wire; one that does not fit is refused by the store like any that is too long.
Duration TtlOf(const metadata_wire::GrantLease& request) {
  constexpr auto kLargest = static_cast<uint64_t>(Duration::max().count());
  return Duration(static_cast<int64_t>(std::min(request.ttl_ns(), kLargest)));
}

StatusCompletion ReplyStatus(std::function<void(metadata_wire::Reply)> reply) {
  return [reply = std::move(reply)](const Status& status) { reply(Refusal(status)); };
}

Completion<RangeResult> ReplyRange(std::function<void(metadata_wire::Reply)> reply) {
  return [reply = std::move(reply)](const Result<RangeResult>& range) {
    if (!range.ok()) return reply(Refusal(range.status()));
    metadata_wire::Reply message;
    *message.mutable_range() = ToWire(*range);
    reply(std::move(message));
  };
}

}  // namespace

// A reactor is finished by whoever takes it out of the set, so exactly once.
struct MetadataGrpcService::Pending {
  std::mutex mutex;
  std::set<grpc::ServerUnaryReactor*> waiting;  // Guarded by mutex.
  bool stopped = false;                         // Guarded by mutex.
};

MetadataGrpcService::MetadataGrpcService(Executor* executor, MetadataStore* store, StoreId store_id)
    : executor_(executor),
      store_(store),
      store_id_(std::move(store_id)),
      pending_(std::make_shared<Pending>()) {}

grpc::ServerUnaryReactor* MetadataGrpcService::Call(grpc::CallbackServerContext* context,
                                                    const metadata_wire::Request* request,
                                                    metadata_wire::Reply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  {
    const std::lock_guard lock(pending_->mutex);
    if (pending_->stopped) {
      reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service is stopping"));
      return reactor;
    }
    pending_->waiting.insert(reactor);
  }
  // Runs under the lock, so that Stop() cannot take the reply's memory away meanwhile.
  auto finish = [pending = pending_, reactor, reply](metadata_wire::Reply answer) {
    const std::lock_guard lock(pending->mutex);
    if (pending->waiting.erase(reactor) == 0) return;
    *reply = std::move(answer);
    reactor->Finish(grpc::Status::OK);
  };
  // The request is copied: Stop() may end the call, and with it gRPC's buffers, before it is read.
  executor_->Post(
      [this, pending = pending_, reactor, copy = *request, finish = std::move(finish)]() mutable {
        {
          const std::lock_guard lock(pending->mutex);
          if (!pending->waiting.contains(reactor)) return;
        }
        Dispatch(copy, std::move(finish));
      });
  return reactor;
}

void MetadataGrpcService::Dispatch(const metadata_wire::Request& request,
                                   std::function<void(metadata_wire::Reply)> reply) {
  const bool unbound = request.store_id().empty() && request.has_get_store_id();
  if (!unbound && request.store_id() != store_id_.value) {
    return reply(Refusal(
        Stale("the metadata store here is " + store_id_.value + ", not " + request.store_id())));
  }
  const Deadline deadline = DeadlineOf(request, executor_->Now());
  switch (request.body_case()) {
    case metadata_wire::Request::kGetStoreId:
      return store_->GetStoreId(deadline, [reply = std::move(reply)](const Result<StoreId>& id) {
        if (!id.ok()) return reply(Refusal(id.status()));
        metadata_wire::Reply message;
        message.set_store_id(id->value);
        reply(std::move(message));
      });
    case metadata_wire::Request::kCommit: {
      Result<Transaction> transaction = FromWire(request.commit());
      if (!transaction.ok()) return reply(Refusal(transaction.status()));
      auto done = [reply = std::move(reply)](const Result<TransactionResult>& result) {
        if (!result.ok()) return reply(Refusal(result.status()));
        metadata_wire::Reply message;
        message.mutable_commit()->set_succeeded(result->succeeded);
        message.mutable_commit()->set_revision(result->revision);
        reply(std::move(message));
      };
      return store_->Commit(*std::move(transaction), deadline, std::move(done));
    }
    case metadata_wire::Request::kRange:
      return store_->Range(request.range().prefix(), deadline, ReplyRange(std::move(reply)));
    case metadata_wire::Request::kWaitForChange:
      return store_->WaitForChange(request.wait_for_change().prefix(),
                                   request.wait_for_change().after(), deadline,
                                   ReplyRange(std::move(reply)));
    case metadata_wire::Request::kGrantLease:
      return store_->GrantLease(TtlOf(request.grant_lease()), deadline,
                                [reply = std::move(reply)](const Result<LeaseId>& lease) {
                                  if (!lease.ok()) return reply(Refusal(lease.status()));
                                  metadata_wire::Reply message;
                                  message.set_lease(*lease);
                                  reply(std::move(message));
                                });
    case metadata_wire::Request::kRenewLease:
      return store_->RenewLease(request.renew_lease().lease(), deadline,
                                ReplyStatus(std::move(reply)));
    case metadata_wire::Request::kRevokeLease:
      return store_->RevokeLease(request.revoke_lease().lease(), deadline,
                                 ReplyStatus(std::move(reply)));
    case metadata_wire::Request::BODY_NOT_SET:
      break;
  }
  reply(Refusal(InvalidArgument("a metadata request of a kind that this service does not know")));
}

void MetadataGrpcService::Stop() {
  const std::lock_guard lock(pending_->mutex);
  pending_->stopped = true;
  for (grpc::ServerUnaryReactor* reactor : pending_->waiting) {
    reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service is stopping"));
  }
  pending_->waiting.clear();
}

}  // namespace backstay::replication
