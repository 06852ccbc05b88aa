#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "replication/metadata_grpc.h"
#include "replication/metadata_sqlite.h"
#include "tests/contract/metadata/metadata_backend.h"
#include "tests/support/temporary_directory.h"

namespace backstay::testing {
namespace {

using namespace std::chrono_literals;
using replication::EmbeddedMetadataStore;
using replication::GrpcMetadataStore;
using replication::MetadataGrpcService;

// An embedded store, a server on loopback that hosts it, and two clients that are bound to it.
class GrpcBackend : public MetadataBackend {
 public:
  GrpcBackend() {
    directory_.emplace();
    StartServer();
    for (std::unique_ptr<GrpcMetadataStore>& client : clients_) {
      client = std::make_unique<GrpcMetadataStore>(&executor_, Address(),
                                                   grpc::InsecureChannelCredentials(), StoreId());
    }
    AwaitAnswer(StatusCode::kOk);
  }

  ~GrpcBackend() override {
    for (std::unique_ptr<GrpcMetadataStore>& client : clients_) client.reset();
    StopServer();
  }

  replication::MetadataStore& client(int index) override { return *clients_[index]; }

  void Restart() override {
    StopServer();
    StartServer();
    AwaitAnswer(StatusCode::kOk);
  }

  bool Replace() override {
    StopServer();
    directory_.emplace();
    StartServer();
    AwaitAnswer(StatusCode::kStale);
    return true;
  }

 private:
  std::string Address() const { return "127.0.0.1:" + std::to_string(port_); }

  void StartServer() {
    store_ = replication::OpenEmbeddedMetadataStore({.directory = directory_->path()}, &random_,
                                                    &executor_)
                 .value();
    service_ = std::make_unique<MetadataGrpcService>(&executor_, store_.get(), store_->store_id());
    grpc::ServerBuilder builder;
    builder.AddListeningPort(Address(), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    BACKSTAY_CHECK(server_ != nullptr, "the test's server cannot listen");
  }

  void StopServer() {
    service_->Stop();
    server_->Shutdown();
    server_.reset();
    service_.reset();
    store_.reset();
  }

  // Until both clients have connected (again).
  void AwaitAnswer(StatusCode code) {
    constexpr int kTriesMax = 200;
    for (const std::unique_ptr<GrpcMetadataStore>& client : clients_) {
      std::optional<StatusCode> answer;
      for (int i = 0; i < kTriesMax && answer != code; ++i) {
        answer.reset();
        client->GetStoreId(executor_.Now() + 5s, [&answer](const Result<StoreId>& id) {
          answer = id.ok() ? StatusCode::kOk : id.status().code();
        });
        BACKSTAY_CHECK(executor_.RunUntilPosted([&answer] { return answer.has_value(); }, 30s),
                       "a call got no answer");
      }
      BACKSTAY_CHECK(answer == code, "the client did not find the server again");
    }
  }

  int port_ = 0;
  SeededRandom random_{1};
  std::optional<TemporaryDirectory> directory_;
  std::unique_ptr<EmbeddedMetadataStore> store_;
  std::unique_ptr<MetadataGrpcService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcMetadataStore> clients_[2];
};

}  // namespace

std::unique_ptr<MetadataBackend> MakeGrpcBackend() { return std::make_unique<GrpcBackend>(); }

}  // namespace backstay::testing
