#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "base/executor.h"
#include "replication/grpc_calls.h"
#include "replication/metadata.grpc.pb.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// A metadata store that another service hosts, over gRPC.
//
// Thread:  as every MetadataStore; gRPC's own threads only post to the executor.
// Memory:  owns each request until its call has ended. The destructor cancels every call and waits
//          for gRPC to let go of them.
// Failure: reconnects by itself. A change is only sent over a connection that was up; before that a
//          harmless question goes ahead, and its failure is kUnavailable: nothing was sent. Once a
//          change was sent, everything but an answer is kUnknownOutcome or kDeadline.
class GrpcMetadataStore : public MetadataStore {
 public:
  // `store_id` is the store that is meant. Empty: the one that answers the first GetStoreId();
  // until then every other call answers kUnavailable.
  GrpcMetadataStore(Executor* executor, std::string address,
                    std::shared_ptr<grpc::ChannelCredentials> credentials, StoreId store_id);
  ~GrpcMetadataStore() override;
  GrpcMetadataStore(const GrpcMetadataStore&) = delete;
  GrpcMetadataStore& operator=(const GrpcMetadataStore&) = delete;

  void GetStoreId(Deadline deadline, Completion<StoreId> done) override;
  void Commit(Transaction transaction, Deadline deadline,
              Completion<TransactionResult> done) override;
  void Range(std::string prefix, Deadline deadline, Completion<RangeResult> done) override;
  void WaitForChange(std::string prefix, Revision after, Deadline deadline,
                     Completion<RangeResult> done) override;
  void GrantLease(Duration ttl, Deadline deadline, Completion<LeaseId> done) override;
  void RenewLease(LeaseId lease, Deadline deadline, StatusCompletion done) override;
  void RevokeLease(LeaseId lease, Deadline deadline, StatusCompletion done) override;

 private:
  // What is known of a call that gets no answer.
  enum class Kind {
    kBind,    // GetStoreId(): may go out without the store's id.
    kRead,    // Nothing happened.
    kWait,    // As kRead; answered at its deadline, which must reach us.
    kChange,  // May have happened.
  };
  struct OneCall;
  using Answered = std::function<void(Result<metadata_wire::Reply>)>;

  void Call(Kind kind, metadata_wire::Request request, Deadline deadline, Answered answered);
  void Send(Kind kind, metadata_wire::Request request, Deadline deadline, Answered answered);

  Executor* const executor_;
  const std::string address_;
  StoreId store_id_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<metadata_wire::Metadata::Stub> stub_;
  const std::shared_ptr<GrpcCalls<OneCall>> calls_;  // In flight; shared with gRPC's threads.
  Lifetime lifetime_;
};

// Serves a store of this process to the other services, beside whatever else the server hosts.
//
// Thread:  gRPC calls it from its own threads; the store is only used on the executor. Stop() from
//          any.
// Memory:  the executor and the store outlive Stop(); the service outlives its grpc::Server.
// Failure: a caller that went away leaves its wait behind until it ends by its time.
class MetadataGrpcService : public metadata_wire::Metadata::CallbackService {
 public:
  MetadataGrpcService(Executor* executor, MetadataStore* store, StoreId store_id);

  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context,
                                 const metadata_wire::Request* request,
                                 metadata_wire::Reply* reply) override;

  // Ends every call that waits for an answer, and refuses later ones. Call it before the server's
  // Shutdown(), which waits for them.
  void Stop();

 private:
  struct Pending;  // Calls that wait for an answer; shared with the store's completions.

  void Dispatch(const metadata_wire::Request& request,
                std::function<void(metadata_wire::Reply)> reply);

  Executor* const executor_;
  MetadataStore* const store_;
  const StoreId store_id_;
  const std::shared_ptr<Pending> pending_;
};

// The largest answer: a range at its limit, with room for each pair's numbers.
inline constexpr int kMetadataMessageBytesMax = 64 * 1024 * 1024;
static_assert(kMetadataMessageBytesMax > kMetadataRangeBytesMax);

// A call ends after this at the latest; a wait then answers with the unchanged state.
inline constexpr Duration kMetadataCallTimeMax = std::chrono::seconds(30);

}  // namespace backstay::replication
