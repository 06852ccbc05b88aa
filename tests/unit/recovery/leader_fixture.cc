#include "tests/unit/recovery/leader_fixture.h"

#include <gtest/gtest.h>

#include <utility>

namespace backstay::testing {

using replication::Membership;
using replication::NodeRecord;

LeaderFixture::LeaderFixture(const std::vector<std::string>& nodes) {
  for (const std::string& name : nodes) Join(name);
  EXPECT_TRUE(RunUntil(
      [&] { return node(nodes.front()).membership->view().members.size() == nodes.size(); }));
  jobs_ = std::make_unique<replication::JobStore>(node("a").metadata.get(), &executor_, &random_);
  router_ = std::make_unique<replication::PeerRouter>(StoreId("store"));
  router_->SetSelf(node("a").self);
}

LeaderFixture::~LeaderFixture() { leadership_.reset(); }

void LeaderFixture::Join(const std::string& name) {
  FakeNode& node = nodes_[NodeId(name)];
  node.metadata = service_.NewClient();
  NodeRecord record;
  record.instance.node = NodeId(name);
  record.control_address = "127.0.0.1:1";
  record.data_address = "127.0.0.1:2";
  record.domains = {"host-" + name};
  record.boot_id = "boot-" + name;
  node.membership = std::make_unique<Membership>(node.metadata.get(), &executor_, &random_, record);
  node.membership->Start();
  EXPECT_TRUE(RunUntil([&] { return node.membership->in(); }));
  node.self = node.membership->self();
  node.answers = true;
}

void LeaderFixture::Kill(const std::string& name) {
  node(name).answers = false;
  node(name).trainers.clear();
  node(name).membership.reset();
  EXPECT_TRUE(RunUntil([&] { return node("a").membership->view().Find(NodeId(name)) == nullptr; }));
  leadership_->OnMembershipChanged();
}

void LeaderFixture::Revive(const std::string& name) {
  node(name).held.clear();
  Join(name);
  EXPECT_TRUE(
      RunUntil([&] { return node("a").membership->view().Find(node(name).self) != nullptr; }));
  leadership_->OnMembershipChanged();
}

void LeaderFixture::Elect() {
  leadership_.reset();
  deposed_.reset();
  const std::string key = replication::LeaderKey(JobName("job"));
  std::optional<uint64_t> term;
  replication::Transaction remove;
  remove.operations.push_back({replication::Operation::Kind::kDelete, key, "", 0});
  metadata().Commit(remove, kNoDeadline, [](const Result<replication::TransactionResult>&) {});
  replication::Transaction put;
  put.operations.push_back({replication::Operation::Kind::kPut, key, "a", 0});
  metadata().Commit(put, kNoDeadline, [&](const Result<replication::TransactionResult>& result) {
    term = result->revision;
  });
  EXPECT_TRUE(RunUntil([&] { return term.has_value(); }));
  replication::LeaderSeams seams;
  seams.executor = &executor_;
  seams.random = &random_;
  seams.membership = node("a").membership.get();
  seams.metadata = &metadata();
  seams.jobs = jobs_.get();
  seams.messenger = &messenger_;
  seams.router = router_.get();
  leadership_ = std::make_unique<recovery::JobLeadership>(
      JobName("job"), Term(*term), seams, config_, [this](const Status& why) { deposed_ = why; });
  executor_.RunUntilIdle();
}

void LeaderFixture::DeposeSilently() {
  const std::string key = replication::LeaderKey(JobName("job"));
  bool done = false;
  replication::Transaction remove;
  remove.operations.push_back({replication::Operation::Kind::kDelete, key, "", 0});
  metadata().Commit(remove, kNoDeadline, [](const Result<replication::TransactionResult>&) {});
  replication::Transaction put;
  put.operations.push_back({replication::Operation::Kind::kPut, key, "b", 0});
  metadata().Commit(put, kNoDeadline,
                    [&](const Result<replication::TransactionResult>&) { done = true; });
  EXPECT_TRUE(RunUntil([&] { return done; }));
}

wire::Header LeaderFixture::HeaderFrom(const std::string& name) const {
  const FakeNode& from = nodes_.at(NodeId(name));
  wire::Header header;
  header.set_store_id("store");
  header.set_job("job");
  header.mutable_from()->set_node_id(from.self.node.value);
  header.mutable_from()->set_incarnation(from.self.incarnation.value);
  return header;
}

LeaderFixture::Answer LeaderFixture::Ask(const std::string& from, wire::Request request) {
  const uint64_t leader_term = request.header().leader_term();
  *request.mutable_header() = HeaderFrom(from);
  request.mutable_header()->set_leader_term(leader_term);
  auto answer = std::make_shared<std::optional<Result<wire::Reply>>>();
  leadership_->OnRequest(request, [answer](Result<wire::Reply> reply) {
    EXPECT_FALSE(answer->has_value()) << "answered twice";
    *answer = std::move(reply);
  });
  return answer;
}

Result<wire::Reply> LeaderFixture::Wait(const Answer& answer, Duration limit) {
  if (!RunUntil([&] { return answer->has_value(); }, limit)) {
    return DeadlineExceeded("the test's leader did not answer");
  }
  return **answer;
}

bool LeaderFixture::RunUntil(const std::function<bool()>& predicate, Duration limit) {
  return executor_.RunUntil(predicate, limit);
}

void LeaderFixture::FakeMessenger::Send(const NodeId& to, wire::Request request, Deadline deadline,
                                        Completion<wire::Reply> done) {
  LeaderFixture& fixture = *fixture_;
  const auto it = fixture.nodes_.find(to);
  if (it == fixture.nodes_.end() || !it->second.answers) {
    fixture.executor_.RunAt(std::min(deadline, fixture.executor_.Now() + std::chrono::seconds(1)),
                            [done] { done(Unavailable("the node does not answer")); });
    return;
  }
  fixture.executor_.RunAfter(std::chrono::microseconds(100), [&fixture, to, request, done] {
    done(fixture.Serve(fixture.nodes_.at(to), request));
  });
}

Result<wire::Reply> LeaderFixture::Serve(FakeNode& node, const wire::Request& request) {
  const wire::Header& header = request.header();
  if (header.to().incarnation() != node.self.incarnation.value) return Stale("another start");
  if (header.job() == "job") {
    if (header.term() < node.seen_term) return Stale("a deposed leader");
    node.seen_term = std::max(node.seen_term, header.term());
    node.seen_generation = std::max(node.seen_generation, header.generation());
  }
  wire::Reply reply;
  reply.mutable_header()->set_job(header.job());
  reply.mutable_header()->set_generation(node.seen_generation);
  reply.mutable_header()->set_term(node.seen_term);
  switch (request.body_case()) {
    case wire::Request::kReserve:
      if (!node.has_memory || request.reserve().size_bytes() > node.room_bytes) {
        return NoSpace("no memory on " + node.self.node.value);
      }
      if (request.reserve().versions() == 0) {
        node.reserved.erase(request.reserve().shard_id());
      } else {
        node.reserved[request.reserve().shard_id()] = request.reserve().size_bytes();
      }
      break;
    case wire::Request::kJobState:
      if (!node.state || node.state->revision() <= request.job_state().revision()) {
        node.state = request.job_state();
        node.state_generation = header.generation();
      }
      for (const wire::LiveTrainer& trainer : node.trainers) {
        *reply.mutable_job_state()->add_trainers() = trainer;
      }
      reply.mutable_job_state();
      break;
    case wire::Request::kInventory:
      if (!request.inventory().closing_uuid().empty()) {
        node.closing_uuids.insert(request.inventory().closing_uuid());
      }
      reply.mutable_inventory();
      for (const wire::HeldShard& held : node.held) {
        if (held.shard().job().empty() || held.shard().job() == header.job()) {
          *reply.mutable_inventory()->add_shards() = held;
        }
      }
      break;
    case wire::Request::kReplicate:
      *reply.mutable_replicate() = Replicate(node, request.replicate());
      break;
    default:
      return InvalidArgument("not for a node");
  }
  return reply;
}

wire::ReplicateReply LeaderFixture::Replicate(FakeNode& node, const wire::Replicate& order) {
  wire::ReplicateReply reply;
  if (order.shard().shard_id() == "0") node.ordered = {order.nodes().begin(), order.nodes().end()};
  for (const wire::HeldShard& held : std::vector<wire::HeldShard>(node.held)) {
    if (held.shard().shard_id() != order.shard().shard_id() ||
        held.shard().snapshot().step() != order.shard().snapshot().step()) {
      continue;
    }
    wire::ShardReport report = MakeReport(held.shard().snapshot().generation(),
                                          held.shard().snapshot().step(), held.rank());
    AddHolder(report, node.self.node.value);
    for (const std::string& target : order.nodes()) {
      FakeNode& to = this->node(target);
      if (!to.answers || to.slow) continue;
      if (to.full) {
        reply.add_refused_nodes(target);
        continue;
      }
      to.held.push_back(held);
      AddHolder(report, target);
    }
    Report(node.self.node.value, report);
  }
  return reply;
}

wire::Request LeaderFixture::MakeAdmission(uint32_t rank, uint64_t trainer) const {
  wire::Request request;
  wire::AdmitShard* admit = request.mutable_admit_shard();
  admit->set_shard_id(std::to_string(rank));
  admit->set_rank(rank);
  admit->set_world_size(ranks);
  admit->set_size_bytes(1000);
  admit->set_replicas(replicas);
  admit->set_versions(versions);
  admit->set_token_digest(std::string(32, 't'));
  admit->mutable_trainer()->set_trainer(trainer == 0 ? 100 + rank : trainer);
  admit->mutable_trainer()->set_rank(rank);
  admit->mutable_trainer()->set_shard_id(std::to_string(rank));
  return request;
}

LeaderFixture::Answer LeaderFixture::Admit(uint32_t rank, const std::string& name, uint64_t trainer,
                                           bool repeated) {
  wire::Request request = MakeAdmission(rank, trainer);
  request.mutable_admit_shard()->set_repeated(repeated);
  FakeNode& host = node(name);
  std::erase_if(host.trainers, [&](const wire::LiveTrainer& t) { return t.rank() == rank; });
  host.trainers.push_back(request.admit_shard().trainer());
  return Ask(name, std::move(request));
}

LeaderFixture::Answer LeaderFixture::Resize(uint32_t rank, const std::string& name,
                                            uint64_t size_bytes) {
  wire::Request request = MakeAdmission(rank, 0);
  request.mutable_admit_shard()->set_resize(true);
  request.mutable_admit_shard()->set_size_bytes(size_bytes);
  return Ask(name, std::move(request));
}

void LeaderFixture::AdmitAll() {
  const Answer first = Admit(0, "a");
  const Answer second = Admit(1, "b");
  EXPECT_TRUE(Wait(first).ok());
  EXPECT_TRUE(Wait(second).ok());
}

LeaderFixture::Answer LeaderFixture::Call(const std::string& uuid, uint32_t rank,
                                          const std::string& name, uint64_t old_generation,
                                          uint32_t timeout_ms, uint64_t trainer) {
  return Ask(name, MakeCall(uuid, rank, name, old_generation, timeout_ms, trainer));
}

wire::Request LeaderFixture::MakeCall(const std::string& uuid, uint32_t rank,
                                      const std::string& name, uint64_t old_generation,
                                      uint32_t timeout_ms, uint64_t trainer) {
  wire::Request request;
  wire::Reconfigure* call = request.mutable_reconfigure();
  call->set_uuid(uuid);
  call->set_rank(rank);
  call->set_world_size(ranks);
  call->set_shard_id(std::to_string(rank));
  call->set_timeout_ms(timeout_ms);
  call->set_old_generation(old_generation);
  call->set_trainer(trainer == 0 ? 100 + rank : trainer);
  call->set_call(++last_call_);
  for (wire::LiveTrainer& live : node(name).trainers) {
    if (live.trainer() != call->trainer()) continue;
    live.set_restoring_uuid(uuid);
    live.set_restoring_rank(rank);
    live.set_last_call(last_call_);
  }
  return request;
}

void LeaderFixture::Verify(const wire::Decision& decision, uint32_t rank, const std::string& name) {
  wire::Request request;
  wire::ReportVerified* report = request.mutable_report_verified();
  report->set_uuid(decision.uuid());
  report->set_attempt(decision.attempt());
  wire::RankRestore* restore = report->add_ranks();
  restore->set_rank(rank);
  restore->set_ok(true);
  restore->set_shard_id(std::to_string(rank));
  Ask(name, std::move(request));
}

wire::Decision LeaderFixture::ReconfigureAll(const std::string& uuid, uint64_t old_generation) {
  const Answer first = Call(uuid, 0, "a", old_generation);
  const Answer second = Call(uuid, 1, "b", old_generation);
  const Result<wire::Reply> reply = Wait(first);
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(Wait(second).ok());
  if (!reply.ok()) return {};
  const wire::Decision decision = reply->reconfigure();
  Verify(decision, 0, "a");
  Verify(decision, 1, "b");
  EXPECT_TRUE(RunUntil([&] { return ReadRecord().decision().resumed(); }));
  for (auto& [id, node] : nodes_) {
    for (wire::LiveTrainer& trainer : node.trainers) trainer.set_generation(decision.generation());
  }
  return decision;
}

wire::ShardReport LeaderFixture::MakeReport(uint64_t generation, uint64_t step, uint32_t rank) {
  wire::ShardReport report;
  report.mutable_shard()->mutable_snapshot()->set_generation(generation);
  report.mutable_shard()->mutable_snapshot()->set_step(step);
  report.mutable_shard()->set_shard_id(std::to_string(rank));
  report.set_rank(rank);
  report.set_world_size(ranks);
  std::string digest =
      std::to_string(generation) + "/" + std::to_string(step) + "/" + std::to_string(rank);
  digest.resize(16, '.');
  report.set_digest(digest);
  report.set_size_bytes(1000);
  report.set_progress(wire::ShardReport::SEALED);
  return report;
}

void LeaderFixture::AddHolder(wire::ShardReport& report, const std::string& name) {
  wire::Instance* holder = report.add_holders();
  holder->set_node_id(name);
  holder->set_incarnation(node(name).self.incarnation.value);
}

void LeaderFixture::Report(const std::string& from, const wire::ShardReport& report) {
  wire::Request request;
  *request.mutable_report_shards()->add_shards() = report;
  for (const wire::LiveTrainer& trainer : node(from).trainers) {
    *request.mutable_report_shards()->add_trainers() = trainer;
  }
  Ask(from, std::move(request));
}

void LeaderFixture::Protect(uint64_t generation, uint64_t step) {
  HoldAll(generation, step);
  for (const uint32_t rank : {0u, 1u}) {
    wire::ShardReport report = MakeReport(generation, step, rank);
    AddHolder(report, "a");
    AddHolder(report, "b");
    Report(rank == 0 ? "a" : "b", report);
  }
}

wire::HeldShard& LeaderFixture::Hold(const std::string& name, uint64_t generation, uint64_t step,
                                     uint32_t rank) {
  const wire::ShardReport report = MakeReport(generation, step, rank);
  wire::HeldShard& held = node(name).held.emplace_back();
  *held.mutable_shard() = report.shard();
  held.set_rank(rank);
  held.set_world_size(ranks);
  held.set_digest(report.digest());
  held.set_size_bytes(report.size_bytes());
  return held;
}

void LeaderFixture::HoldAll(uint64_t generation, uint64_t step) {
  for (const char* name : {"a", "b"}) {
    for (const uint32_t rank : {0u, 1u}) Hold(name, generation, step, rank);
  }
}

wire::JobRecord LeaderFixture::ReadRecord() {
  wire::JobRecord record;
  for (const replication::KeyValue& pair : service_.disk().pairs) {
    if (pair.key == replication::JobRecordKey(JobName("job"))) {
      EXPECT_TRUE(record.ParseFromString(pair.value));
    }
  }
  return record;
}

void LeaderFixture::WriteRecord(const wire::JobRecord& record) {
  std::optional<Status> written;
  jobs_->Write(JobName(record.job()), record.SerializeAsString(), 0, {},
               executor_.Now() + std::chrono::seconds(1),
               [&](const Result<replication::Revision>& revision) { written = revision.status(); });
  EXPECT_TRUE(RunUntil([&] { return written.has_value(); }) && written->ok());
}

bool LeaderFixture::CommitIsRecorded(uint64_t step) {
  const wire::JobRecord record = ReadRecord();
  for (const wire::RecordedSnapshot& committed : record.committed()) {
    if (committed.step() == step) return true;
  }
  return false;
}

wire::LeaderStatusReply LeaderFixture::ReadStatus() {
  wire::Request request;
  request.mutable_leader_status();
  const Result<wire::Reply> reply = Wait(Ask("c", std::move(request)));
  return reply.ok() ? reply->leader_status() : wire::LeaderStatusReply();
}

bool LeaderFixture::Happened(std::string_view what) {
  const wire::LeaderStatusReply shown = ReadStatus();
  for (const wire::TimelineEvent& event : shown.timeline()) {
    if (event.what() == what) return true;
  }
  return false;
}

}  // namespace backstay::testing
