#include "tools/service/service.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/socket.h"
#include "base/version.h"
#include "replication/metadata_grpc.h"
#include "replication/node_record.h"
#include "store/offload.h"

namespace backstay::tools {
namespace {

constexpr Duration kBindRetry = std::chrono::milliseconds(100);
constexpr Duration kBindTimeout = std::chrono::seconds(2);
constexpr Duration kMetricsInterval = std::chrono::seconds(1);
// Prefaulting and verification: enough to keep the memory busy, few enough to leave the trainers
// their cores.
constexpr size_t kWorkerThreads = 2 * store::SlotPool::kCreatingMax;
constexpr size_t kWorkerQueueMax = 4096;

// The kernel's name for this boot of this machine: services that share it share their fate.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

uint64_t HalfOfMemory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) / 2 *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What peers are told: `advertise_host` where one is set, else the host that is listened on.
std::string Advertised(const std::string& advertise_host, const std::string& listening, int port) {
  Result<HostPort> endpoint = HostPort::Parse(listening);  // Checked with the configuration.
  if (!endpoint.ok()) return listening;
  if (!advertise_host.empty()) endpoint->host = advertise_host;
  endpoint->port = static_cast<uint16_t>(port);
  return endpoint->ToString();
}

}  // namespace

Result<std::unique_ptr<Service>> Service::Open(EventLoop& loop, ServiceConfig config,
                                               std::function<void()> on_ready,
                                               StatusCompletion on_end) {
  if (config.memory_budget_bytes == 0) config.memory_budget_bytes = HalfOfMemory();
  std::unique_ptr<Service> service(
      new Service(loop, std::move(config), std::move(on_ready), std::move(on_end)));
  const ServiceConfig& c = service->config_;
  BACKSTAY_ASSIGN_OR_RETURN(service->credentials_,
                            LoadCredentials(c.tls_ca, c.tls_certificate, c.tls_key));
  BACKSTAY_RETURN_IF_ERROR(service->OpenMetadata());
  BACKSTAY_RETURN_IF_ERROR(service->OpenControl());
  if (!c.metrics_address.empty()) {
    BACKSTAY_ASSIGN_OR_RETURN(service->metrics_, Metrics::Listen(c.metrics_address, c.node_id));
  }
  loop.Post(service->lifetime_.Wrap([raw = service.get()] { raw->Bind(); }));
  return service;
}

Service::Service(EventLoop& loop, ServiceConfig config, std::function<void()> on_ready,
                 StatusCompletion on_end)
    : loop_(loop),
      config_(std::move(config)),
      on_ready_(std::move(on_ready)),
      on_end_(std::move(on_end)),
      budget_(config_.memory_budget_bytes),
      memory_(store::MakeMemfdSlotMemoryFactory()),
      workers_(std::make_unique<WorkerPool>("bsd-worker", kWorkerThreads, kWorkerQueueMax)) {}

Service::~Service() {
  CloseDoors();
  sessions_.reset();
  admin_service_.reset();
  node_.reset();
  messenger_.reset();
}

Status Service::OpenMetadata() {
  if (!config_.serve_metadata) {
    remote_metadata_ = std::make_unique<replication::GrpcMetadataStore>(
        &loop_, config_.metadata_address, credentials_.channel, StoreId());
    metadata_ = remote_metadata_.get();
    return Status::Ok();
  }
  std::error_code error;
  std::filesystem::create_directories(config_.data_dir, error);
  if (error) return InvalidArgument("--data-dir " + config_.data_dir + ": " + error.message());
  BACKSTAY_ASSIGN_OR_RETURN(embedded_, replication::OpenEmbeddedMetadataStore(
                                           {.directory = config_.data_dir}, &random_, &loop_));
  metadata_service_ = std::make_unique<replication::MetadataGrpcService>(&loop_, embedded_.get(),
                                                                         embedded_->store_id());
  metadata_ = embedded_.get();
  return Status::Ok();
}

Status Service::OpenControl() {
  peer_service_ = std::make_unique<replication::PeerGrpcService>(
      loop_, [this](const replication::wire::Request& request, replication::ReplyFunction reply) {
        if (node_) return node_->router().OnRequest(request, std::move(reply));
        reply(Unavailable("the service of " + config_.node_id +
                          " is starting: it waits for the metadata store"));
      });
  admin_service_ = std::make_unique<AdminService>(loop_);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(config_.control_address, credentials_.server, &port);
  builder.SetMaxReceiveMessageSize(replication::kPeerMessageBytesMax);
  builder.SetMaxSendMessageSize(replication::kPeerMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(peer_service_.get());
  builder.RegisterService(admin_service_.get());
  if (metadata_service_) builder.RegisterService(metadata_service_.get());
  control_server_ = builder.BuildAndStart();
  if (!control_server_ || port == 0) {
    return Unavailable("cannot listen on --control-address " + config_.control_address +
                       "; is the port in use?");
  }
  control_address_ = Advertised(config_.advertise_host, config_.control_address, port);
  return Status::Ok();
}

void Service::Bind() {
  metadata_->GetStoreId(loop_.Now() + kBindTimeout,
                        lifetime_.Wrap([this](const Result<StoreId>& id) { OnStoreId(id); }));
}

void Service::OnStoreId(const Result<StoreId>& id) {
  if (!id.ok()) {
    if (!waiting_said_) {
      Log(LogLevel::kWarning, "waiting for the metadata store",
          {{"address", config_.metadata_address}, {"error", id.status().ToString()}});
      waiting_said_ = true;
    }
    loop_.RunAfter(kBindRetry, lifetime_.Wrap([this] { Bind(); }));
    return;
  }
  store_ = *id;
  NodeConfig config;
  config.record.instance.node = NodeId(config_.node_id);
  config.record.control_address = control_address_;
  config.record.domains = config_.domains;
  config.record.boot_id = BootId();
  config.record.memory_budget_bytes = config_.memory_budget_bytes;
  config.record.hosts_simulated = config_.hosts_simulated;
  config.record.version = kVersion;
  if (config.record.domains.empty()) config.record.domains = {config.record.boot_id};
  if (const Status fits = replication::CheckNodeRecord(config.record); !fits.ok()) {
    return on_end_(fits);
  }
  config.store = store_;
  config.chunk_bytes = static_cast<uint32_t>(config_.chunk_bytes);
  config.repair_reserve_bytes = config_.repair_reserve_bytes;
  config.scrub_bytes_per_second = config_.scrub_bytes_per_second;
  config.serves_metadata = config_.serve_metadata;
  config.lease_ttl = config_.lease_ttl;
  config.leader.save_deadline = config_.save_deadline;

  messenger_ = std::make_unique<replication::GrpcMessenger>(
      loop_,
      [this](const NodeId& node) { return node_ ? node_->ControlAddress(node) : std::nullopt; },
      credentials_.channel);
  NodeSeams seams;
  seams.executor = &loop_;
  seams.random = &random_;
  seams.metadata = metadata_;
  seams.messenger = messenger_.get();
  seams.memory = memory_.get();
  seams.budget = &budget_;
  seams.offload = store::OffloadTo(*workers_, loop_);
  seams.data_plane = [this](const NodeInstance& self) { return MakeDataPlane(self); };
  seams.traffic = [this] { return Traffic(); };
  node_ = std::make_unique<Node>(std::move(config), std::move(seams));
  admin_service_->Serve(*node_, *metadata_, *messenger_, store_);
  node_->Start(lifetime_.Wrap([this](const Status& joined) { OnJoined(joined); }),
               lifetime_.Wrap([this](const Status& why) { on_end_(why); }));
  UpdateMetrics();
}

void Service::OnJoined(const Status& joined) {
  if (!joined.ok()) return on_end_(joined);
  SessionServer::Options options;
  options.socket_path = config_.socket_path;
  options.chunk_bytes = static_cast<uint32_t>(config_.chunk_bytes);
  options.version = kVersion;
  options.self = [this] { return node_->self(); };
  Result<std::unique_ptr<SessionServer>> sessions =
      SessionServer::Listen(loop_, *node_, std::move(options));
  if (!sessions.ok()) return on_end_(sessions.status());
  sessions_ = std::move(*sessions);
  Log(LogLevel::kInfo, "ready",
      {{"node", ToString(node_->self())},
       {"control", control_address_},
       {"socket", config_.socket_path},
       {"store", store_.value}});
  on_ready_();
}

Result<DataPlane> Service::MakeDataPlane(const NodeInstance& self) {
  transport::TcpExporterOptions exporting;
  exporting.store = store_;
  exporting.node = self;
  exporting.listen_address = config_.data_address;
  exporting.advertised_host = config_.advertise_host;
  BACKSTAY_ASSIGN_OR_RETURN(std::unique_ptr<transport::TcpExporter> exporter,
                            transport::TcpExporter::Listen(&loop_, &random_, exporting));
  transport::TcpPullerOptions pulling;
  pulling.store = store_;
  pulling.node = self;
  pulling.lane_count = config_.lanes;
  auto puller = std::make_unique<transport::TcpPuller>(&loop_, pulling);
  exporter_ = exporter.get();
  puller_ = puller.get();
  DataPlane plane;
  plane.address = exporter->address();
  plane.exporter = std::move(exporter);
  plane.puller = std::move(puller);
  return plane;
}

std::vector<replication::wire::PeerTraffic> Service::Traffic() const {
  std::vector<replication::wire::PeerTraffic> traffic;
  if (exporter_ == nullptr || puller_ == nullptr) return traffic;
  const transport::TcpExporterStats served = exporter_->Stats();
  const transport::TcpPullerStats read = puller_->Stats();
  std::set<NodeId> peers;
  for (const auto& [node, bytes] : served.bytes_served) peers.insert(node);
  for (const auto& [node, counts] : read.peers) peers.insert(node);
  for (const NodeId& peer : peers) {
    replication::wire::PeerTraffic& entry = traffic.emplace_back();
    entry.set_node_id(peer.value);
    entry.set_transport("tcp");
    if (const auto found = served.bytes_served.find(peer); found != served.bytes_served.end()) {
      entry.set_bytes_served(found->second);
    }
    if (const auto found = read.peers.find(peer); found != read.peers.end()) {
      entry.set_bytes_read(found->second.bytes_read);
      entry.set_lanes(static_cast<uint32_t>(found->second.lanes_open));
      entry.set_failures(found->second.failures());
    }
  }
  return traffic;
}

void Service::UpdateMetrics() {
  if (!metrics_) return;
  metrics_->Update(node_->Describe());
  metrics_timer_ = loop_.RunAfter(kMetricsInterval, lifetime_.Wrap([this] { UpdateMetrics(); }));
}

void Service::Shutdown(std::function<void()> done) {
  sessions_.reset();
  loop_.CancelTimer(metrics_timer_);
  if (!node_) return done();
  // Whichever comes first ends it; the loop stops with the round it is in, so the second finds
  // nothing to do.
  loop_.RunAfter(kLeaveTimeout, done);
  node_->Stop([done](const Status& left) {
    if (!left.ok()) {
      Log(LogLevel::kWarning, "left without saying so; the lease ends by itself",
          {{"error", left.ToString()}});
    }
    done();
  });
}

// After this no thread of gRPC or of the metrics server calls in.
void Service::CloseDoors() {
  metrics_.reset();
  if (peer_service_) peer_service_->FailPending();
  if (admin_service_) admin_service_->FailPending();
  if (metadata_service_) metadata_service_->Stop();
  if (control_server_) {
    control_server_->Shutdown(std::chrono::system_clock::now());
    control_server_->Wait();
  }
}

}  // namespace backstay::tools
