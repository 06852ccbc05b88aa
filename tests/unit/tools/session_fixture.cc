#include "tests/unit/tools/session_fixture.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

namespace backstay::tools::testing {

using namespace replication;

// One connection, as the service's agents would see it.
class FakeTrainer : public Trainer {
 public:
  FakeTrainer(FakePort& port, size_t index) : port_(port), index_(index) {}
  ~FakeTrainer() override {
    const std::lock_guard lock(port_.mutex_);
    port_.trainers_[index_].connected = false;
    port_.trainers_[index_].listener = nullptr;
    port_.changed_.notify_all();
  }

  void Register(ShardClaim claim, Completion<ClaimReply> done) override {
    Note("register " + claim.job.value + "/" + claim.shard.value);
    ClaimReply reply;
    reply.chunk_bytes = 4096;
    reply.replica_nodes = {NodeId("n2")};
    Answer(std::move(done), Result<ClaimReply>(std::move(reply)));
  }
  void Resize(uint64_t size_bytes, StatusCompletion done) override {
    Note("resize " + std::to_string(size_bytes));
    Answer(std::move(done), NoSpace("no more memory"));
  }
  void Begin(Step step, Duration, Completion<BeginReply> done) override {
    Note("begin " + std::to_string(step.value));
    BeginReply reply;
    reply.save = SaveHandle(step.value);
    reply.memory = port_.slot_;
    reply.slot_id = 77;
    reply.epoch = step.value;
    Answer(std::move(done), Result<BeginReply>(std::move(reply)));
  }
  void StartCopy(SaveHandle save, uint64_t, std::string, StatusCompletion done) override {
    Note("start_copy " + std::to_string(save.value));
    Answer(std::move(done), Status::Ok());
  }
  void Seal(SaveHandle save, bool, Completion<std::string> done) override {
    Note("seal " + std::to_string(save.value));
    Answer(std::move(done), Result<std::string>("digest"));
  }
  void StepIsSound(Step, StatusCompletion done) override { Answer(std::move(done), Status::Ok()); }
  void Abandon(SaveHandle save, StatusCompletion done) override {
    Note("abandon " + std::to_string(save.value));
    Answer(std::move(done), save.value == 0 ? NotFound("no such save") : Status::Ok());
  }
  void SlotUnmapped(uint64_t slot_id, StatusCompletion done) override {
    Note("unmapped " + std::to_string(slot_id));
    Answer(std::move(done), Status::Ok());
  }
  void Fence(Generation generation, std::string reason, int64_t) override {
    Note("fence " + std::to_string(generation.value) + " " + reason);
  }
  void NewAttempt(Completion<AttemptUuid> done) override {
    port_.attempts_.push_back(std::move(done));
    Note("new_attempt");
  }
  void Reconfigure(ReconfigureRequest, Completion<DecisionReply> done) override {
    Answer(std::move(done), Result<DecisionReply>(DeadlineExceeded("rank 1 has not called")));
  }
  void Fetch(FetchRequest, Completion<FetchReply> done) override {
    FetchReply reply;
    reply.fetch = FetchHandle(5);
    reply.memory = port_.slot_;
    reply.manifest = "manifest";
    Answer(std::move(done), Result<FetchReply>(std::move(reply)));
  }
  void FetchChunks(FetchHandle, uint32_t, uint32_t, StatusCompletion done) override {
    Answer(std::move(done), Status::Ok());
  }
  void ReportBadChunks(FetchHandle, std::vector<uint32_t>, Completion<bool> done) override {
    Answer(std::move(done), Result<bool>(true));
  }
  void CloseShard(FetchHandle, StatusCompletion done) override {
    Answer(std::move(done), Status::Ok());
  }
  void FinishRestore(FinishRestoreRequest, Completion<FinishRestoreReply> done) override {
    Answer(std::move(done),
           Result<FinishRestoreReply>(FinishRestoreReply{.resumed = true, .next = {}}));
  }
  void SnapshotIndex(JobName, SnapshotId, Completion<SnapshotIndexReply> done) override {
    SnapshotIndexReply reply;
    reply.manifests.emplace_back(port_.manifest_bytes_, 'm');
    Answer(std::move(done), Result<SnapshotIndexReply>(std::move(reply)));
  }
  void NewestCommitted(Completion<SnapshotId> done) override {
    Answer(std::move(done), Result<SnapshotId>(NotFound("nothing is committed")));
  }
  void QuerySnapshot(SnapshotId, Completion<QuerySnapshotReply> done) override {
    Answer(std::move(done), Result<QuerySnapshotReply>(QuerySnapshotReply{}));
  }
  void Finish(bool, StatusCompletion done) override { Answer(std::move(done), Status::Ok()); }

 private:
  void Note(std::string call) { port_.Note(index_, std::move(call)); }
  template <typename Done, typename Value>
  void Answer(Done done, Value value) {
    port_.loop_.Post(
        [done = std::move(done), value = std::move(value)]() mutable { done(std::move(value)); });
  }

  FakePort& port_;
  const size_t index_;
};

FakePort::FakePort(EventLoop& loop) : loop_(loop) {
  Result<std::unique_ptr<store::SlotMemory>> slot = factory_->Create(
      {.size_bytes = store::kSlotBytesMultiple, .chunk_bytes = 4096}, store::kAnyNumaNode);
  EXPECT_TRUE(slot.ok()) << slot.status();
  slot_ = std::move(slot).value();
}

std::unique_ptr<Trainer> FakePort::Connect(ProcessId process, TrainerListener* listener) {
  const std::lock_guard lock(mutex_);
  trainers_.push_back({process, listener, true, {}});
  changed_.notify_all();
  return std::make_unique<FakeTrainer>(*this, trainers_.size() - 1);
}

void FakePort::ProcessExited(ProcessId process) {
  const std::lock_guard lock(mutex_);
  exited_.push_back(process);
  changed_.notify_all();
}

bool FakePort::WaitFor(const std::function<bool(const FakePort&)>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kWaitMax, [&] { return condition(*this); });
}

size_t FakePort::ConnectedCount() const {
  return static_cast<size_t>(
      std::ranges::count_if(trainers_, [](const TrainerRecord& t) { return t.connected; }));
}

bool FakePort::HasCall(size_t trainer, const std::string& call) const {
  return trainer < trainers_.size() &&
         std::ranges::find(trainers_[trainer].calls, call) != trainers_[trainer].calls.end();
}

void FakePort::AnswerAttempts() {
  loop_.Post([this] {
    for (const Completion<AttemptUuid>& done : std::exchange(attempts_, {})) {
      done(AttemptUuid("uuid"));
    }
  });
}

void FakePort::EmitEvent(size_t trainer, const TrainerEvent& event) {
  loop_.Post([this, trainer, event] {
    TrainerListener* listener = nullptr;
    {
      const std::lock_guard lock(mutex_);
      listener = trainers_.at(trainer).listener;
    }
    if (listener != nullptr) listener->OnEvent(event);
  });
}

void FakePort::Note(size_t trainer, std::string call) {
  const std::lock_guard lock(mutex_);
  trainers_[trainer].calls.push_back(std::move(call));
  changed_.notify_all();
}

RawClient::RawClient(const std::string& socket_path) {
  Result<UniqueFd> fd = ConnectUnix(socket_path);
  EXPECT_TRUE(fd.ok()) << fd.status();
  if (fd.ok()) fd_ = std::move(fd).value();
}

std::string RawClient::Encode(const wire::ClientFrame& frame) {
  const std::string body = frame.SerializeAsString();
  const uint32_t length = static_cast<uint32_t>(body.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + body;
}

wire::ClientFrame RawClient::Hello(uint32_t version) {
  wire::ClientFrame frame;
  frame.set_request(1);
  frame.mutable_hello()->set_protocol_version(version);
  return frame;
}

void RawClient::SendBytes(std::string_view bytes) {
  while (!bytes.empty()) {
    const Result<Sent> sent = SendWithFds(fd_.get(), std::as_bytes(std::span(bytes)), {});
    if (!sent.ok()) return;
    bytes.remove_prefix(sent->size_bytes);
  }
}

bool RawClient::Fill() {
  pollfd waits{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waits, 1, kWaitMaxMs) != 1) {
    ADD_FAILURE() << "the service sends nothing";
    return false;
  }
  std::array<std::byte, 65536> buffer;
  Result<Received> got = ReceiveWithFds(fd_.get(), buffer);
  if (!got.ok() || got->state != IoState::kBytes) return false;
  received_.append(reinterpret_cast<const char*>(buffer.data()), got->size_bytes);
  std::ranges::move(got->fds, std::back_inserter(fds_));
  return true;
}

std::optional<Answer> RawClient::Receive() {
  while (true) {
    uint32_t length = 0;
    if (received_.size() >= sizeof length) {
      std::memcpy(&length, received_.data(), sizeof length);
      if (received_.size() >= sizeof length + length) break;
    }
    if (!Fill()) return std::nullopt;
  }
  uint32_t length = 0;
  std::memcpy(&length, received_.data(), sizeof length);
  Answer answer;
  EXPECT_TRUE(
      answer.frame.ParseFromArray(received_.data() + sizeof length, static_cast<int>(length)));
  received_.erase(0, sizeof length + length);
  answer.fds = std::exchange(fds_, {});
  return answer;
}

void RawClient::Greet() {
  Send(Hello());
  const std::optional<Answer> welcome = Receive();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->code(), StatusCode::kOk) << welcome->frame.DebugString();
  EXPECT_EQ(welcome->frame.hello().node_id(), "n1");
}

wire::ClientFrame RawClient::Register(uint64_t request) {
  wire::ClientFrame frame;
  frame.set_request(request);
  frame.mutable_register_()->set_job("j");
  frame.mutable_register_()->set_shard_id("0");
  return frame;
}

void RawClient::Claim() {
  Send(Register(1));
  const std::optional<Answer> claimed = Receive();
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(claimed->code(), StatusCode::kOk) << claimed->frame.DebugString();
}

SessionTest::SessionTest(Duration hello_timeout) {
  std::string pattern = std::filesystem::temp_directory_path() / "backstay-session-XXXXXX";
  directory_ = ::mkdtemp(pattern.data());
  socket_path_ = directory_ + "/socket";
  SessionServer::Options options;
  options.socket_path = socket_path_;
  options.chunk_bytes = 4096;
  options.version = "test";
  options.hello_timeout = hello_timeout;
  options.self = [] { return NodeInstance{NodeId("n1"), Incarnation(3)}; };
  Result<std::unique_ptr<SessionServer>> server = SessionServer::Listen(loop_, port_, options);
  EXPECT_TRUE(server.ok()) << server.status();
  if (server.ok()) server_ = std::move(server).value();
  loop_.Start("sessions");
}

SessionTest::~SessionTest() {
  loop_.Stop();
  server_.reset();
  std::filesystem::remove_all(directory_);
}

RawClient SessionTest::Greeted() {
  RawClient client = Connected();
  client.Greet();
  return client;
}

RawClient SessionTest::Claimed() {
  RawClient client = Greeted();
  client.Claim();
  return client;
}

}  // namespace backstay::tools::testing
