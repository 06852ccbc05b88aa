#include "client/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "client/local.pb.h"

namespace backstay::client {
namespace {

template <typename Body>
wire::ClientFrame Parsed(uint64_t request, const Body& body) {
  const std::string frame = local::EncodeFrame(request, body);
  uint32_t size = 0;
  std::memcpy(&size, frame.data(), sizeof size);
  EXPECT_EQ(size + sizeof size, frame.size());
  wire::ClientFrame parsed;
  EXPECT_TRUE(parsed.ParseFromString(frame.substr(sizeof size)));
  EXPECT_EQ(parsed.request(), request);
  // Nothing was left over, and the generated code writes the same bytes.
  EXPECT_EQ(parsed.SerializeAsString(), frame.substr(sizeof size));
  return parsed;
}

TEST(Wire, GeneratedCodeReadsWhatWeWrite) {
  const auto hello = Parsed(1, local::Hello{.pid = 42, .client_version = "v"}).hello();
  EXPECT_EQ(hello.protocol_version(), kLocalProtocolVersion);
  EXPECT_EQ(hello.pid(), 42u);
  EXPECT_EQ(hello.client_version(), "v");

  const auto registered = Parsed(2, local::Register{.job = "j\xff",
                                                    .token = "t",
                                                    .shard_id = "s",
                                                    .rank = 3,
                                                    .world_size = 4,
                                                    .replicas = 2,
                                                    .versions = 5,
                                                    .size_bytes = 1ull << 40,
                                                    .numa_node = -1,
                                                    .wait_for_slot = true,
                                                    .generation = 6})
                              .register_();
  EXPECT_EQ(registered.job(), "j\xff");
  EXPECT_EQ(registered.numa_node(), -1);
  EXPECT_EQ(registered.size_bytes(), 1ull << 40);
  EXPECT_TRUE(registered.wait_for_slot());
  EXPECT_EQ(registered.generation(), 6u);

  EXPECT_EQ(Parsed(3, local::Resize{.size_bytes = 9}).resize().size_bytes(), 9u);
  EXPECT_EQ(Parsed(4, local::Begin{.step = 7, .timeout_ms = 8}).begin().timeout_ms(), 8u);
  const auto start =
      Parsed(5, local::StartCopy{.slot_id = 1, .used_bytes = 2, .contents = "c", .epoch = 3})
          .start_copy();
  EXPECT_EQ(start.epoch(), 3u);
  EXPECT_EQ(start.contents(), "c");
  const auto seal = Parsed(6, local::Seal{.slot_id = 1, .sound = true, .epoch = 4}).seal();
  EXPECT_TRUE(seal.sound());
  EXPECT_EQ(seal.epoch(), 4u);
  EXPECT_EQ(Parsed(7, local::StepIsSound{.step = 3}).step_is_sound().step(), 3u);
  const auto abandon = Parsed(8, local::Abandon{.slot_id = 3, .epoch = 5}).abandon();
  EXPECT_EQ(abandon.slot_id(), 3u);
  EXPECT_EQ(abandon.epoch(), 5u);
  EXPECT_EQ(
      Parsed(0, local::Fence{.generation = 1, .reason = "r", .unix_ms = -5}).fence().unix_ms(), -5);
  EXPECT_EQ(Parsed(9, local::NewAttempt{}).body_case(), wire::ClientFrame::kNewAttempt);
  EXPECT_EQ(Parsed(9, local::NewestCommitted{}).body_case(), wire::ClientFrame::kNewestCommitted);
  const auto reconfigure = Parsed(10, local::Reconfigure{.uuid = "u",
                                                         .rank = 1,
                                                         .world_size = 2,
                                                         .shard_id = "s",
                                                         .mode = 3,
                                                         .exact_step = 4,
                                                         .drop_state = true,
                                                         .fork_job = "f",
                                                         .timeout_ms = 5,
                                                         .has_old_rank = true,
                                                         .old_rank = 6,
                                                         .old_generation = 7})
                               .reconfigure();
  EXPECT_EQ(reconfigure.mode(), wire::RESUME_FORK);
  EXPECT_EQ(reconfigure.old_generation(), 7u);
  EXPECT_EQ(reconfigure.old_rank(), 6u);
  const auto fetch =
      Parsed(
          11,
          local::Fetch{
              .shard_id = "s", .snapshot = {1, 2}, .job = "j", .whole = true, .for_restore = true})
          .fetch();
  EXPECT_EQ(fetch.snapshot().step(), 2u);
  EXPECT_TRUE(fetch.for_restore());
  EXPECT_EQ(Parsed(12, local::FetchChunks{.handle = 1, .first_chunk = 2, .chunk_count = 3})
                .fetch_chunks()
                .chunk_count(),
            3u);
  EXPECT_EQ(Parsed(13, local::ReportBadChunks{.handle = 1, .chunks = {5, 700}})
                .report_bad_chunks()
                .chunks(1),
            700u);
  EXPECT_EQ(Parsed(14, local::CloseShard{.handle = 8}).close_shard().handle(), 8u);
  EXPECT_EQ(
      Parsed(15,
             local::FinishRestore{
                 .uuid = "u", .attempt = 2, .ok = false, .error = "e", .bytes = 3, .timeout_ms = 4})
          .finish_restore()
          .error(),
      "e");
  EXPECT_EQ(Parsed(16, local::SnapshotIndex{.snapshot = {3, 4}, .job = "j"})
                .snapshot_index()
                .snapshot()
                .generation(),
            3u);
  EXPECT_EQ(Parsed(17, local::QuerySnapshot{.snapshot = {3, 4}}).query_snapshot().snapshot().step(),
            4u);
  EXPECT_TRUE(Parsed(18, local::Finish{.drop_state = true}).finish().drop_state());
}

local::ServiceFrame Decoded(const wire::ServiceFrame& frame) {
  Result<local::ServiceFrame> decoded = local::DecodeServiceFrame(frame.SerializeAsString());
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return *decoded;
}

TEST(Wire, WeReadWhatGeneratedCodeWrites) {
  wire::ServiceFrame frame;
  frame.set_request(77);
  frame.mutable_status()->set_code(4);
  frame.mutable_status()->set_message("stale");
  EXPECT_EQ(Decoded(frame).request, 77u);
  EXPECT_EQ(Decoded(frame).status, Stale("stale"));
  frame.mutable_status()->set_code(4711);
  EXPECT_EQ(Decoded(frame).status.code(), StatusCode::kUnavailable);

  frame.Clear();
  auto* decision = frame.mutable_decision();
  decision->set_uuid("u");
  decision->set_generation(2);
  decision->set_attempt(3);
  decision->mutable_base()->set_step(100);
  decision->set_base_root(std::string(16, '\x01'));
  decision->set_why("because");
  decision->set_shard_id("7");
  decision->set_base_committed(true);
  decision->set_base_job("other");
  const auto read = std::get<local::Decision>(Decoded(frame).body);
  EXPECT_EQ(read.attempt, 3u);
  EXPECT_EQ(read.base.step, 100u);
  EXPECT_EQ(read.base_root.low, 0x0101010101010101u);
  EXPECT_EQ(read.why, "because");
  EXPECT_TRUE(read.base_committed);
  EXPECT_EQ(read.base_job, "other");
  decision->set_base_root("short");
  EXPECT_EQ(local::DecodeServiceFrame(frame.SerializeAsString()).status().code(),
            StatusCode::kCorrupt);

  frame.Clear();
  auto* begin = frame.mutable_begin();
  begin->set_slot_id(1);
  begin->set_size_bytes(1ull << 41);
  begin->set_control_bytes(3);
  begin->set_has_fds(true);
  begin->set_generation(4);
  begin->set_epoch(5);
  const auto begun = std::get<local::BeginReply>(Decoded(frame).body);
  EXPECT_EQ(begun.size_bytes, 1ull << 41);
  EXPECT_TRUE(begun.has_fds);
  EXPECT_EQ(begun.epoch, 5u);

  frame.Clear();
  auto* event = frame.mutable_event();
  event->set_kind(wire::Event::SLOT_CLOSED);
  event->set_slot_id(12);
  event->mutable_status()->set_message("without a code is ok");
  EXPECT_EQ(std::get<local::Event>(Decoded(frame).body).slot_id, 12u);
  EXPECT_TRUE(std::get<local::Event>(Decoded(frame).body).status.ok());

  frame.Clear();
  frame.mutable_finish_restore()->mutable_next()->set_attempt(9);
  EXPECT_EQ(std::get<local::FinishRestoreReply>(Decoded(frame).body).next.attempt, 9u);
  frame.mutable_bad_chunks()->set_reopened(true);
  EXPECT_TRUE(std::get<local::BadChunksReply>(Decoded(frame).body).reopened);
  frame.mutable_seal()->set_digest(std::string(16, 'd'));
  EXPECT_EQ(std::get<local::SealReply>(Decoded(frame).body).digest.ToByteString(),
            std::string(16, 'd'));
}

TEST(Wire, TooManyOrTooLongIsRefusedByName) {
  wire::ServiceFrame frame;
  for (int i = 0; i < 4; ++i) frame.mutable_register_()->add_replica_nodes("n");
  const Status many = local::DecodeServiceFrame(frame.SerializeAsString()).status();
  EXPECT_EQ(many.code(), StatusCode::kCorrupt);
  EXPECT_NE(many.message().find("register.replica_nodes"), std::string::npos);
  frame.mutable_new_attempt()->set_uuid(std::string(64, 'u'));
  EXPECT_FALSE(local::DecodeServiceFrame(frame.SerializeAsString()).ok());
}

// Cut or flipped frames give an error or another frame, never more.
TEST(Wire, DamagedFramesAreSafe) {
  wire::ServiceFrame frame;
  frame.set_request(5);
  frame.mutable_snapshot_index()->mutable_snapshot()->set_step(3);
  frame.mutable_snapshot_index()->add_manifests("manifest");
  const std::string bytes = frame.SerializeAsString();
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = bytes.substr(0, random() % (bytes.size() + 1));
    if (!damaged.empty()) damaged[random() % damaged.size()] ^= static_cast<char>(random());
    refused += local::DecodeServiceFrame(damaged).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace backstay::client
