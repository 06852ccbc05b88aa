#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "base/random.h"
#include "base/worker_pool.h"
#include "replication/metadata_grpc.h"
#include "replication/metadata_sqlite.h"
#include "replication/metadata_store.h"
#include "replication/peer_grpc.h"
#include "store/memory_budget.h"
#include "store/slot_memory.h"
#include "tools/admin/admin_service.h"
#include "tools/node/node.h"
#include "tools/service/config.h"
#include "tools/service/credentials.h"
#include "tools/service/metrics.h"
#include "tools/service/session_server.h"
#include "transport/tcp/tcp_exporter.h"
#include "transport/tcp/tcp_puller.h"

namespace backstay::tools {

// backstayd without its process: a Node over real sockets, memory files and a metadata store, with
// its doors for peers (gRPC), trainers (unix socket), the command (gRPC) and Prometheus (HTTP).
//
// Thread:  the event loop's; Open() on the owner's before the loop runs, the destructor after it
//          has ended.
// Failure: what keeps it from ever serving (an address in use, a damaged metadata store) fails
//          Open(). A metadata store that cannot be reached is waited for. `on_end` runs once when
//          the service cannot go on.
class Service {
 public:
  static Result<std::unique_ptr<Service>> Open(EventLoop& loop, ServiceConfig config,
                                               std::function<void()> on_ready,
                                               StatusCompletion on_end);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Leaves the cluster and closes the doors; `done` runs when the loop may stop, within
  // kLeaveTimeout.
  void Shutdown(std::function<void()> done);

  static constexpr Duration kLeaveTimeout = std::chrono::seconds(3);

 private:
  Service(EventLoop& loop, ServiceConfig config, std::function<void()> on_ready,
          StatusCompletion on_end);

  Status OpenMetadata();
  Status OpenControl();
  // Asks the metadata store for its id until it answers, then makes the node.
  void Bind();
  void OnStoreId(const Result<StoreId>& id);
  void OnJoined(const Status& joined);
  Result<DataPlane> MakeDataPlane(const NodeInstance& self);
  std::vector<replication::wire::PeerTraffic> Traffic() const;
  void UpdateMetrics();
  void CloseDoors();

  EventLoop& loop_;
  const ServiceConfig config_;
  const std::function<void()> on_ready_;
  const StatusCompletion on_end_;

  SystemRandom random_;
  Credentials credentials_;
  store::SystemMemoryBudget budget_;
  std::unique_ptr<store::SlotMemoryFactory> memory_;
  std::unique_ptr<WorkerPool> workers_;

  std::unique_ptr<replication::EmbeddedMetadataStore> embedded_;  // On the node that serves it.
  std::unique_ptr<replication::MetadataGrpcService> metadata_service_;
  std::unique_ptr<replication::MetadataStore> remote_metadata_;  // On the others.
  replication::MetadataStore* metadata_ = nullptr;               // Whichever there is.

  std::unique_ptr<replication::PeerGrpcService> peer_service_;
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<grpc::Server> control_server_;
  std::string control_address_;
  std::unique_ptr<Metrics> metrics_;
  TimerId metrics_timer_ = kNoTimer;

  std::unique_ptr<replication::GrpcMessenger> messenger_;
  transport::TcpExporter* exporter_ = nullptr;  // The node's present ones, for Traffic().
  transport::TcpPuller* puller_ = nullptr;
  StoreId store_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<SessionServer> sessions_;
  bool waiting_said_ = false;
  Lifetime lifetime_;
};

}  // namespace backstay::tools
