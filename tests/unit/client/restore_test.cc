#include <cstring>

#include "tests/unit/client/client_fixture.h"

namespace backstay::tests {
namespace {

using testing::HasSubstr;

constexpr size_t kCount = 10'000;  // 40,000 bytes: ten chunks, the last one short.

class RestoreTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    SaveAndCommit(3, kCount, 1);
  }
  Decision Decide() {
    DecideOptions options = Client::DefaultDecideOptions();
    options.uuid = "uuid";
    options.world_size = 1;
    options.timeout_ms = kLongMs;
    Result<Decision> decision = client_->Decide(options);
    EXPECT_TRUE(decision.ok()) << decision.status().ToString();
    return *decision;
  }
  Result<Shard> Fetch() { return client_->Fetch(Decide(), kLongMs); }
};

TEST_F(RestoreTest, ReadsBackWhatWasSaved) {
  Result<Shard> shard = Fetch();
  ASSERT_OK(shard.status());
  std::vector<float> read(kCount);
  ASSERT_OK(shard->WaitTensor("w", kLongMs));
  ASSERT_OK(shard->Read("w", MemoryOf<float>(read), {.thread_count = 3}));
  EXPECT_EQ(read, Numbers(kCount, 1));
  Result<ShardInfo> info = shard->Info();
  ASSERT_OK(info.status());
  EXPECT_EQ(info->step, 3u);
  EXPECT_EQ(info->chunk_count, 10u);
  EXPECT_EQ(info->ready_chunk_count, 10u);
}

TEST_F(RestoreTest, ReadsIntoStridedMemory) {
  Result<Shard> shard = Fetch();
  ASSERT_OK(shard.status());
  // Every second element of rows of 5 in a padded buffer.
  std::vector<float> buffer(2000 * 16, -1);
  Memory memory{.data = buffer.data(), .shape = {2000, 5}, .strides = {16, 2}};
  ASSERT_OK(shard->ReadRange("w", 0, kCount, memory, {.thread_count = 2}));
  for (size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(buffer[(i / 5) * 16 + (i % 5) * 2], static_cast<float>(i + 1));
  EXPECT_EQ(buffer[1], -1);
  EXPECT_EQ(buffer[15], -1);
  memory.strides = {1, 1};
  EXPECT_THAT(shard->ReadRange("w", 0, kCount, memory).message(), HasSubstr("overlap"));
}

TEST_F(RestoreTest, ABadChunkIsFetchedFromAnotherHolder) {
  for (const bool reopen : {false, true}) {
    SCOPED_TRACE(reopen);
    service_.DamageChunks({0, 4, 9}, reopen);
    Result<Shard> shard = Fetch();
    ASSERT_OK(shard.status());
    std::vector<float> read(kCount);
    ASSERT_OK(shard->Read("w", MemoryOf<float>(read), {.thread_count = 3}));
    EXPECT_EQ(read, Numbers(kCount, 1));
  }
  EXPECT_GE(service_.Received(ClientBody::kReportBadChunks).size(), 4u);
}

TEST_F(RestoreTest, AChunkThatIsBadEverywhereIsCorrupt) {
  service_.DamageChunks({4}, false, /*forever=*/true);
  Result<Shard> shard = Fetch();
  ASSERT_OK(shard.status());
  std::vector<float> read(kCount);
  const Status status = shard->Read("w", MemoryOf<float>(read), {.thread_count = 2});
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("chunk 4 of shard 0 of step 3"));
  // Others are fine.
  std::vector<float> part(100);
  ASSERT_OK(shard->ReadRange("w", 0, 100, MemoryOf<float>(part)));
  EXPECT_EQ(part, Numbers(100, 1));
}

TEST_F(RestoreTest, AReadOfAChunkThatDoesNotComeEndsAtItsDeadline) {
  service_.HoldChunks(true);
  Result<Shard> shard = Fetch();
  ASSERT_OK(shard.status());
  std::vector<float> read(kCount);
  EXPECT_CODE(shard->WaitTensor("w", 1), Code::kDeadline);
  EXPECT_CODE(shard->Read("w", MemoryOf<float>(read), {.thread_count = 2, .timeout_ms = 5}),
              Code::kDeadline);
  service_.HoldChunks(false);
  ASSERT_OK(shard->Read("w", MemoryOf<float>(read), {.thread_count = 2}));
  EXPECT_EQ(read, Numbers(kCount, 1));
}

TEST_F(RestoreTest, ARangePullsOnlyTheChunksItNeeds) {
  std::vector<float> read(2000);
  ASSERT_OK(client_->ReadRange({}, "0", "w", 3000, 2000, MemoryOf<float>(read)));
  EXPECT_EQ(read, Numbers(2000, 3001));
  const auto requests = service_.Received(ClientBody::kFetchChunks);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].fetch_chunks().first_chunk(), 12000u / FakeService::kChunkBytes);
  EXPECT_EQ(requests[0].fetch_chunks().chunk_count(), 3u);  // Bytes 12,000 to 20,000.
  ASSERT_TRUE(service_.WaitFor(ClientBody::kCloseShard, 1));
}

TEST_F(RestoreTest, ReadsRawBytesAndBlobs) {
  const std::string blob(9000, 'b');
  Result<Save> save = client_->Begin(4, kLongMs);
  ASSERT_OK(save.status());
  const std::vector<float> data = Numbers(1500);
  ASSERT_OK(save->AddTensor(Contiguous("w", data)));
  ASSERT_OK(save->AddBlob("loader", std::as_bytes(std::span(blob))));
  ASSERT_OK(save->AddBlob("empty", {}));
  ASSERT_OK(save->AddBlobOf("cursor", uint64_t{77}));
  ASSERT_OK(save->StartCopy(2));
  ASSERT_OK(save->WaitCommitted(kLongMs));
  Result<Shard> shard = client_->OpenShard({});
  ASSERT_OK(shard.status());
  std::vector<std::byte> bytes(7);
  ASSERT_OK(shard->ReadBytes("w", 4090, bytes));
  EXPECT_EQ(std::memcmp(bytes.data(), reinterpret_cast<const char*>(data.data()) + 4090, 7), 0);
  EXPECT_CODE(shard->ReadBytes("w", 5995, bytes), Code::kInvalidArgument);
  Result<std::vector<std::byte>> loader = shard->ReadBlob("loader");
  ASSERT_OK(loader.status());
  EXPECT_EQ(std::string(reinterpret_cast<char*>(loader->data()), loader->size()), blob);
  EXPECT_TRUE(shard->ReadBlob("empty")->empty());
  uint64_t cursor = 0;
  ASSERT_OK(shard->ReadBlobInto("cursor", cursor));
  EXPECT_EQ(cursor, 77u);
  uint32_t narrow = 0;
  EXPECT_CODE(shard->ReadBlobInto("cursor", narrow), Code::kInvalidArgument);
  EXPECT_THAT(shard->ReadBlob("loadr").status().message(), HasSubstr("loader"));
  EXPECT_THAT(shard->BlobNames(), testing::ElementsAre("loader", "empty", "cursor"));
}

TEST_F(RestoreTest, WrongDtypeShapeAndNameAreNamed) {
  Result<Shard> shard = Fetch();
  ASSERT_OK(shard.status());
  std::vector<float> read(kCount);
  EXPECT_CODE(shard->Read("v", MemoryOf<float>(read)), Code::kNotFound);
  EXPECT_THAT(shard->Read("v", MemoryOf<float>(read)).message(), HasSubstr("nearest name is w"));
  std::vector<int32_t> ints(kCount);
  EXPECT_THAT(shard->Read("w", MemoryOf<int32_t>(ints)).message(),
              HasSubstr("stored as fp32 [10000], read into int32 [10000]"));
  EXPECT_THAT(shard->Read("w", {.data = read.data(), .shape = {100, 100}}).message(),
              HasSubstr("read into [100, 100]"));
  EXPECT_CODE(shard->ReadRange("w", 9999, 2, {.data = read.data(), .shape = {2}}),
              Code::kInvalidArgument);
  EXPECT_CODE(shard->ReadRange("w", 0, 2, {.data = read.data(), .shape = {3}}),
              Code::kInvalidArgument);
  EXPECT_CODE(shard->Read("w", MemoryOf<float>(read), {.thread_count = 65}),
              Code::kInvalidArgument);
  EXPECT_CODE(client_->OpenShard({.generation = 1, .step = 99}).status(), Code::kNotFound);
}

TEST_F(RestoreTest, TheIndexFindsTensorsByName) {
  Result<Index> index = client_->SnapshotIndex();
  ASSERT_OK(index.status());
  EXPECT_EQ(index->snapshot().step, 3u);
  ASSERT_EQ(index->size(), 1u);
  Result<std::vector<TensorInfo>> parts = index->Find("w");
  ASSERT_OK(parts.status());
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ((*parts)[0].shard_id, "0");
  EXPECT_EQ((*parts)[0].tensor.shape, std::vector<uint64_t>{kCount});
  EXPECT_CODE(index->Find("ww").status(), Code::kNotFound);
}

TEST_F(RestoreTest, MemoryWithoutDescriptorsIsAnErrorAndTheConnectionLives) {
  service_.Play(ClientBody::kFetch, Trick::kNoDescriptors);
  EXPECT_CODE(Fetch().status(), Code::kUnavailable);
  ASSERT_OK(Fetch().status());
}

}  // namespace
}  // namespace backstay::tests
