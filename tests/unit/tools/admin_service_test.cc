// The gRPC door, asked by the command's own client over loopback.

#include "tools/admin/admin_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

#include "base/event_loop.h"
#include "store/manifest.h"
#include "tests/support/memory_metadata_store.h"
#include "tests/unit/tools/admin_fixture.h"
#include "tools/cli/commands.h"

namespace backstay::tools {
namespace {

using ::testing::HasSubstr;

class AdminServiceTest : public ::testing::Test {
 protected:
  AdminServiceTest() : service_(std::make_unique<AdminService>(loop_)) {
    loop_.Start("admin-test");
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~AdminServiceTest() override {
    service_->FailPending();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    loop_.Stop();
    service_.reset();  // Its queries, before what they use.
  }

  void OnLoop(std::function<void()> task) {
    std::promise<void> done;
    loop_.Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  void Serve() {
    OnLoop([this] {
      metadata_ = std::make_unique<testing::MemoryMetadata>(&loop_, StoreId("store"));
      client_ = metadata_->NewClient(StoreId("store"));
      messenger_ = std::make_unique<ScriptedMessenger>(&loop_);
      AdminSeams seams;
      seams.executor = &loop_;
      seams.metadata = client_.get();
      seams.messenger = messenger_.get();
      seams.store = StoreId("store");
      seams.self = [] { return NodeInstance{NodeId("node-1"), Incarnation(1)}; };
      seams.members = [this]() -> const replication::MembershipView& { return view_; };
      seams.header = [](const JobName&) { return replication::wire::Header(); };
      seams.describe = [this] { return status_; };
      service_->Serve(std::move(seams));
    });
  }

  // A job of one rank, held by a node that answers when the test lets it.
  void AddJob() {
    OnLoop([this] {
      store::Manifest manifest;
      manifest.name = {JobName("job"), {Generation(1), Step(5)}, ShardId("0")};
      manifest.world_size = 1;
      manifest.size_bytes = 1;
      manifest.chunk_bytes = 4096;
      manifest.chunk_checksums = {Hash128{}};
      FakeNode node("node-1");
      node.Hold("job", 1, 5, 0, store::EncodeManifest(manifest).value(), true);
      node.status.mutable_jobs(0)->mutable_shards(0)->set_world_size(1);
      status_ = node.status;
      const auto record = replication::CreateRecord(JobName("job"), "digest", 1, 0, 1).value();
      replication::Transaction transaction;
      transaction.operations = {{replication::Operation::Kind::kPut,
                                 replication::JobRecordKey(JobName("job")),
                                 record.SerializeAsString(), replication::kNoLease}};
      client_->Commit(transaction, loop_.Now() + std::chrono::seconds(5),
                      [this](const auto&) { written_.set_value(); });
    });
    written_.get_future().wait();
  }

  // What `backstay ARGUMENTS` does.
  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--connect", address_});
    const CommandLine line = std::get<CommandLine>(ParseCommandLine(arguments, "").value());
    out_.str("");
    err_.str("");
    return RunCommand(line, {out_, err_});
  }

  EventLoop loop_;
  std::unique_ptr<AdminService> service_;
  std::unique_ptr<testing::MemoryMetadata> metadata_;
  std::unique_ptr<testing::MemoryMetadataClient> client_;
  std::unique_ptr<ScriptedMessenger> messenger_;
  replication::MembershipView view_;
  replication::wire::NodeStatusReply status_;
  std::promise<void> written_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(AdminServiceTest, BeforeItServesItIsStarting) {
  EXPECT_EQ(Run({"status"}), kExitUnreachable);
  EXPECT_THAT(err_.str(), HasSubstr("starting"));
  EXPECT_EQ(out_.str(), "");
  EXPECT_EQ(Run({"verify", "job", "5", "--json"}), kExitUnreachable);
  EXPECT_EQ(Json::parse(err_.str())["error"]["exit_code"], kExitUnreachable);
}

TEST_F(AdminServiceTest, CommandsGetTheirAnswers) {
  Serve();
  EXPECT_EQ(Run({"status", "--json"}), kExitFine);
  EXPECT_EQ(Json::parse(out_.str())["nodes"][0]["node"], "node-1");
  EXPECT_EQ(Run({"jobs"}), kExitFine);
  EXPECT_THAT(out_.str(), HasSubstr("no jobs"));
  EXPECT_EQ(Run({"why", "job"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("there is no job"));
  AddJob();
  EXPECT_EQ(Run({"why", "jop"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean"));
  EXPECT_EQ(Run({"jobs", "--names"}), kExitFine);
  EXPECT_EQ(out_.str(), "job\n");
  EXPECT_EQ(Run({"show", "job", "6"}), kExitUsage);
}

TEST_F(AdminServiceTest, VerifyStreamsEveryReplica) {
  Serve();
  AddJob();
  OnLoop([this] {
    messenger_->Answer("node-1", [](const replication::wire::Request&) {
      replication::wire::Reply reply;
      reply.mutable_verify_shard()->set_chunks(1);
      return reply;
    });
  });
  EXPECT_EQ(Run({"verify", "job", "5", "--json"}), kExitFine);
  EXPECT_EQ(Json::parse(out_.str())["replicas"].size(), 1u);
  OnLoop([this] {
    messenger_->Answer("node-1", [](const replication::wire::Request&) {
      replication::wire::Reply reply;
      reply.mutable_verify_shard()->add_bad_chunks(0);
      return reply;
    });
  });
  EXPECT_EQ(Run({"verify", "job", "5"}), kExitData);
  EXPECT_THAT(out_.str(), HasSubstr("1 bad chunk: 0"));
}

// Goal:   the server can shut down while a question waits.
// Method: a verification whose node never answers; FailPending() ends it.
TEST_F(AdminServiceTest, FailPendingEndsAWaitingVerification) {
  Serve();
  AddJob();
  std::promise<void> asked;
  OnLoop([&] {
    // Silent, but says that it was asked.
    messenger_->Answer("node-1", [&](const replication::wire::Request&) {
      asked.set_value();
      service_->FailPending();
      return replication::wire::Reply();
    });
  });
  std::thread command([&] { EXPECT_EQ(Run({"verify", "job", "5"}), kExitUnreachable); });
  asked.get_future().wait();
  command.join();
  EXPECT_THAT(err_.str(), HasSubstr("shutting down"));
  EXPECT_EQ(Run({"status"}), kExitUnreachable);
}

TEST_F(AdminServiceTest, ACallerThatGivesUpIsForgotten) {
  Serve();
  AddJob();  // node-1 has no script: it stays silent for minutes.
  EXPECT_EQ(Run({"verify", "job", "5", "--timeout", "0.3"}), kExitUnreachable);
  EXPECT_THAT(err_.str(), HasSubstr("in time"));
  EXPECT_EQ(Run({"status"}), kExitFine);
}

}  // namespace
}  // namespace backstay::tools
