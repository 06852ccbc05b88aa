// What the client over gRPC says of calls that get no answer, and how both sides end.

#include "replication/metadata_grpc.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/manual_executor.h"

namespace backstay::replication {
namespace {

using namespace std::chrono_literals;
using backstay::testing::ManualExecutor;

// Tells its id, and never answers anything else.
class SilentStore : public MetadataStore {
 public:
  explicit SilentStore(Executor* executor) : executor_(executor) {}

  void GetStoreId(Deadline, Completion<StoreId> done) override {
    executor_->Post([done = std::move(done)] { done(StoreId("silent")); });
  }
  void Commit(Transaction, Deadline, Completion<TransactionResult> done) override { Keep(done); }
  void Range(std::string, Deadline, Completion<RangeResult> done) override { Keep(done); }
  void WaitForChange(std::string, Revision, Deadline, Completion<RangeResult> done) override {
    Keep(done);
  }
  void GrantLease(Duration, Deadline, Completion<LeaseId> done) override { Keep(done); }
  void RenewLease(LeaseId, Deadline, StatusCompletion done) override { Keep(done); }
  void RevokeLease(LeaseId, Deadline, StatusCompletion done) override { Keep(done); }

  size_t asked() const { return late_.size(); }
  // Answers what was asked, too late.
  void AnswerAll() {
    for (const StatusCompletion& late : late_) late(Unavailable("late"));
  }

 private:
  template <typename Done>
  void Keep(Done done) {
    late_.push_back([done = std::move(done)](Status status) { done(std::move(status)); });
  }

  Executor* const executor_;
  std::vector<StatusCompletion> late_;
};

class MetadataGrpcTest : public ::testing::Test {
 protected:
  static constexpr Duration kRealTimeMax = 30s;

  ~MetadataGrpcTest() override {
    client_.reset();
    StopServer();
  }

  void StartServer() {
    service_ = std::make_unique<MetadataGrpcService>(&executor_, &store_, StoreId("silent"));
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServer() {
    if (server_ == nullptr) return;
    service_->Stop();
    server_->Shutdown();
    server_.reset();
    service_.reset();
  }
  void MakeClient(const std::string& store_id) {
    client_ =
        std::make_unique<GrpcMetadataStore>(&executor_, "127.0.0.1:" + std::to_string(port_),
                                            grpc::InsecureChannelCredentials(), StoreId(store_id));
  }
  StatusCode GetStoreId() {
    std::optional<StatusCode> code;
    client_->GetStoreId(executor_.Now() + 5s, [&](const auto& id) { code = id.status().code(); });
    EXPECT_TRUE(executor_.RunUntilPosted([&] { return code.has_value(); }, kRealTimeMax));
    return *code;
  }

  struct Codes {
    std::optional<StatusCode> commit, grant, revoke, range, wait, renew;
    bool complete() const { return commit && grant && revoke && range && wait && renew; }
  };
  void AskEverything(Codes* codes, Duration patience) {
    const Deadline deadline = executor_.Now() + patience;
    Transaction put;
    put.operations = {{Operation::Kind::kPut, "a", "", kNoLease}};
    const auto note = [](std::optional<StatusCode>* code) {
      return [code](const auto& result) {
        EXPECT_FALSE(code->has_value());
        if constexpr (std::is_same_v<std::decay_t<decltype(result)>, Status>) {
          *code = result.code();
        } else {
          *code = result.status().code();
        }
      };
    };
    client_->Commit(put, deadline, note(&codes->commit));
    client_->GrantLease(3s, deadline, note(&codes->grant));
    client_->RevokeLease(1, deadline, note(&codes->revoke));
    client_->Range("", deadline, note(&codes->range));
    client_->WaitForChange("", 0, deadline, note(&codes->wait));
    client_->RenewLease(1, deadline, note(&codes->renew));
    EXPECT_FALSE(codes->commit || codes->grant || codes->revoke);
    EXPECT_FALSE(codes->range || codes->wait || codes->renew);
  }
  void Await(const Codes& codes) {
    ASSERT_TRUE(executor_.RunUntilPosted([&] { return codes.complete(); }, kRealTimeMax));
  }

  ManualExecutor executor_;
  SilentStore store_{&executor_};
  int port_ = 0;
  std::unique_ptr<MetadataGrpcService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcMetadataStore> client_;
};

TEST_F(MetadataGrpcTest, WithoutAServerNothingWasSent) {
  StartServer();  // For a port that nobody listens on afterwards.
  StopServer();
  MakeClient("silent");
  Codes codes;
  AskEverything(&codes, 5s);
  ASSERT_NO_FATAL_FAILURE(Await(codes));
  for (const auto& code :
       {codes.commit, codes.grant, codes.revoke, codes.range, codes.wait, codes.renew}) {
    EXPECT_EQ(code, StatusCode::kUnavailable);
  }
}

TEST_F(MetadataGrpcTest, ServerThatDiesLeavesTheOutcomeOfChangesUnknown) {
  StartServer();
  MakeClient("silent");
  ASSERT_EQ(GetStoreId(), StatusCode::kOk);
  Codes codes;
  AskEverything(&codes, 20s);
  ASSERT_TRUE(executor_.RunUntilPosted([&] { return store_.asked() == 6; }, kRealTimeMax));
  StopServer();
  ASSERT_NO_FATAL_FAILURE(Await(codes));
  EXPECT_EQ(codes.commit, StatusCode::kUnknownOutcome);
  EXPECT_EQ(codes.grant, StatusCode::kUnknownOutcome);
  EXPECT_EQ(codes.revoke, StatusCode::kUnknownOutcome);
  EXPECT_EQ(codes.range, StatusCode::kUnavailable);
  EXPECT_EQ(codes.wait, StatusCode::kUnavailable);
  EXPECT_EQ(codes.renew, StatusCode::kUnavailable);
  store_.AnswerAll();  // Must be ignored: the calls have ended.
}

TEST_F(MetadataGrpcTest, SilentServerMeetsTheDeadline) {
  StartServer();
  MakeClient("silent");
  ASSERT_EQ(GetStoreId(), StatusCode::kOk);
  Codes codes;
  AskEverything(&codes, 200ms);
  ASSERT_NO_FATAL_FAILURE(Await(codes));
  for (const auto& code :
       {codes.commit, codes.grant, codes.revoke, codes.range, codes.wait, codes.renew}) {
    EXPECT_EQ(code, StatusCode::kDeadline);
  }
}

TEST_F(MetadataGrpcTest, ClientThatKnowsNoStoreAsksForItFirst) {
  StartServer();
  MakeClient("");
  Codes codes;
  AskEverything(&codes, 5s);
  ASSERT_NO_FATAL_FAILURE(Await(codes));
  EXPECT_EQ(codes.commit, StatusCode::kUnavailable);
  EXPECT_EQ(codes.range, StatusCode::kUnavailable);
  EXPECT_EQ(store_.asked(), 0u);
  ASSERT_EQ(GetStoreId(), StatusCode::kOk);
  codes = {};
  AskEverything(&codes, 200ms);
  ASSERT_NO_FATAL_FAILURE(Await(codes));
  EXPECT_EQ(codes.commit, StatusCode::kDeadline);
  EXPECT_EQ(store_.asked(), 6u);
}

TEST_F(MetadataGrpcTest, ClientOfAnotherStoreIsRefusedEverything) {
  StartServer();
  MakeClient("another");
  EXPECT_EQ(GetStoreId(), StatusCode::kStale);
  Codes codes;
  AskEverything(&codes, 5s);
  ASSERT_NO_FATAL_FAILURE(Await(codes));
  for (const auto& code :
       {codes.commit, codes.grant, codes.revoke, codes.range, codes.wait, codes.renew}) {
    EXPECT_EQ(code, StatusCode::kStale);
  }
  EXPECT_EQ(store_.asked(), 0u);
}

TEST_F(MetadataGrpcTest, ClientEndsWithCallsUnderWay) {
  StartServer();
  MakeClient("silent");
  ASSERT_EQ(GetStoreId(), StatusCode::kOk);
  Codes codes;
  AskEverything(&codes, 20s);
  client_.reset();
  executor_.RunUntilIdle();
  EXPECT_FALSE(codes.commit || codes.grant || codes.revoke);
  EXPECT_FALSE(codes.range || codes.wait || codes.renew);
}

// Bytes from the wire are refused, not believed.
TEST_F(MetadataGrpcTest, MalformedRequestsAreRefused) {
  StartServer();
  const auto stub = metadata_wire::Metadata::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials()));
  const auto code = [&](const metadata_wire::Request& request) {
    grpc::ClientContext context;
    metadata_wire::Reply reply;
    std::optional<grpc::Status> status;
    stub->async()->Call(&context, &request, &reply, [&](const grpc::Status& got) {
      executor_.Post([&, got] { status = got; });
    });
    EXPECT_TRUE(executor_.RunUntilPosted([&] { return status.has_value(); }, kRealTimeMax));
    EXPECT_TRUE(status->ok());
    return static_cast<StatusCode>(reply.code());
  };
  metadata_wire::Request request;
  EXPECT_EQ(code(request), StatusCode::kStale);
  request.set_store_id("silent");
  EXPECT_EQ(code(request), StatusCode::kInvalidArgument);
  request.mutable_commit()->add_operations()->set_key("a");
  EXPECT_EQ(code(request), StatusCode::kInvalidArgument);
  request.mutable_commit()->clear_operations();
  request.mutable_commit()->add_compares()->set_target(
      static_cast<metadata_wire::Compare::Target>(77));
  EXPECT_EQ(code(request), StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.asked(), 0u);
}

}  // namespace
}  // namespace backstay::replication
