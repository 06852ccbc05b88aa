// `fetch` as its own reader: several in-process exporters over real sockets, and the output file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/random.h"
#include "tests/support/manual_executor.h"
#include "tests/support/temporary_directory.h"
#include "tools/cli/output_file.h"
#include "tools/cli/shard_fetch.h"
#include "transport/tcp/tcp_exporter.h"
#include "transport/tcp/tcp_puller.h"

namespace backstay::tools {
namespace {

using ::testing::HasSubstr;
using transport::TcpExporter;
using transport::TcpPuller;

constexpr Duration kStuckTimeout = std::chrono::seconds(30);
constexpr uint32_t kChunkBytes = 64 * kKiB;
constexpr uint64_t kShardBytes = 40 * kMiB + 100;  // Several groups, and a short last chunk.
const NodeInstance kReader{NodeId("reader"), Incarnation(1)};
const StoreId kStore("store");

class ShardFetchTest : public ::testing::Test {
 protected:
  ShardFetchTest() : shard_(kShardBytes) {
    for (size_t i = 0; i < shard_.size(); ++i) shard_[i] = std::byte(i * 31 + i / 4096);
    spec_.manifest.size_bytes = kShardBytes;
    spec_.manifest.chunk_bytes = kChunkBytes;
    for (uint64_t begin = 0; begin < kShardBytes; begin += kChunkBytes) {
      spec_.manifest.chunk_checksums.push_back(HashBytes(
          std::span(shard_).subspan(begin, std::min<uint64_t>(kChunkBytes, kShardBytes - begin))));
    }
    spec_.end_bytes = kShardBytes;
    puller_ = std::make_unique<TcpPuller>(
        &executor_, transport::TcpPullerOptions{.store = kStore, .node = kReader});
  }
  ~ShardFetchTest() override {
    puller_.reset();
    exporters_.clear();
    executor_.RunUntilIdle();
  }

  // A holder of a copy of the shard, to be damaged at will.
  std::vector<std::byte>& AddHolder(const std::string& name) {
    copies_.push_back(std::make_unique<std::vector<std::byte>>(shard_));
    transport::TcpExporterOptions options;
    options.store = kStore;
    options.node = {NodeId(name), Incarnation(1)};
    exporters_.push_back(TcpExporter::Listen(&executor_, &random_, options).value());
    spec_.sources.push_back(
        exporters_.back()->Export({.bytes = *copies_.back()}, kNoDeadline, [] {}));
    return *copies_.back();
  }

  FetchOutcome Fetch() {
    got_.assign(spec_.end_bytes - spec_.begin_bytes, std::byte{0});
    FetchSpec spec = spec_;
    spec.write = [this](uint64_t offset, std::span<const std::byte> bytes) {
      if (offset + bytes.size() > got_.size()) return InvalidArgument("outside of the range");
      std::copy(bytes.begin(), bytes.end(), got_.begin() + static_cast<ptrdiff_t>(offset));
      written_ += bytes.size();
      return write_status_;
    };
    std::optional<FetchOutcome> outcome;
    ShardFetch fetch(&executor_, puller_.get(), spec,
                     [&](FetchOutcome result) { outcome = std::move(result); });
    fetch.Start();
    EXPECT_FALSE(outcome.has_value());  // Never inside of the call.
    EXPECT_TRUE(executor_.RunUntilPosted([&] { return outcome.has_value(); }, kStuckTimeout));
    return outcome.value_or(FetchOutcome{Unavailable("stuck"), {}});
  }

  bool GotRange() const {
    return std::equal(got_.begin(), got_.end(),
                      shard_.begin() + static_cast<ptrdiff_t>(spec_.begin_bytes));
  }

  testing::ManualExecutor executor_;
  uint64_t ServedBytes(size_t holder) const {
    uint64_t bytes = 0;
    for (const auto& [reader, served] : exporters_[holder]->Stats().bytes_served) bytes += served;
    return bytes;
  }

  SeededRandom random_{1};
  std::vector<std::byte> shard_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> copies_;
  std::vector<std::unique_ptr<TcpExporter>> exporters_;
  std::unique_ptr<TcpPuller> puller_;
  FetchSpec spec_;
  std::vector<std::byte> got_;
  uint64_t written_ = 0;
  Status write_status_;
};

TEST_F(ShardFetchTest, ReadsFromAllHolders) {
  AddHolder("node-1");
  AddHolder("node-2");
  const FetchOutcome outcome = Fetch();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(outcome.problems.empty());
  EXPECT_TRUE(GotRange());
  EXPECT_EQ(written_, kShardBytes);
  EXPECT_GT(ServedBytes(0), 0u);
  EXPECT_GT(ServedBytes(1), 0u);
}

TEST_F(ShardFetchTest, ReadsARangeThatStartsAndEndsInsideChunks) {
  AddHolder("node-1");
  spec_.begin_bytes = kChunkBytes + 17;
  spec_.end_bytes = 5 * kChunkBytes - 3;
  EXPECT_TRUE(Fetch().status.ok());
  EXPECT_TRUE(GotRange());
  EXPECT_LE(ServedBytes(0), uint64_t{4 * kChunkBytes});
}

TEST_F(ShardFetchTest, AnEmptyTensorNeedsNoBytes) {
  AddHolder("node-1");
  spec_.begin_bytes = spec_.end_bytes = 8;
  EXPECT_TRUE(Fetch().status.ok());
  EXPECT_EQ(written_, 0u);
}

TEST_F(ShardFetchTest, AnotherHolderTakesOverBadChunks) {
  AddHolder("node-1")[3 * kChunkBytes] ^= std::byte{1};
  AddHolder("node-2")[20 * kMiB] ^= std::byte{1};
  const FetchOutcome outcome = Fetch();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(GotRange());
  EXPECT_EQ(written_, kShardBytes);
}

TEST_F(ShardFetchTest, AnotherHolderTakesOverFromADeadOne) {
  AddHolder("node-1");
  AddHolder("node-2");
  exporters_[0].reset();
  const FetchOutcome outcome = Fetch();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_TRUE(GotRange());
  ASSERT_EQ(outcome.problems.size(), 1u);
  EXPECT_THAT(outcome.problems[0], HasSubstr("node-1"));
}

TEST_F(ShardFetchTest, AChunkThatIsBadEverywhereIsAnErrorThatNamesIt) {
  AddHolder("node-1")[7 * kChunkBytes] ^= std::byte{1};
  AddHolder("node-2")[7 * kChunkBytes + 5] ^= std::byte{1};
  const FetchOutcome outcome = Fetch();
  EXPECT_EQ(outcome.status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(outcome.status.message(), HasSubstr("chunk 7 "));
  EXPECT_EQ(outcome.problems.size(), 2u);
}

TEST_F(ShardFetchTest, NobodyLeftIsUnavailable) {
  AddHolder("node-1");
  exporters_[0].reset();
  EXPECT_EQ(Fetch().status.code(), StatusCode::kUnavailable);
}

TEST_F(ShardFetchTest, EndsWhenItsTimeIsOver) {
  AddHolder("node-1");
  spec_.timeout = Duration::zero();
  const FetchOutcome outcome = Fetch();
  EXPECT_EQ(outcome.status.code(), StatusCode::kDeadline);
  EXPECT_THAT(outcome.status.message(), HasSubstr("0 B of 40"));
}

TEST_F(ShardFetchTest, AFullDiskEndsIt) {
  AddHolder("node-1");
  write_status_ = NoSpace("disk full");
  EXPECT_EQ(Fetch().status.code(), StatusCode::kNoSpace);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class OutputFileTest : public ::testing::Test {
 protected:
  Status Put(const std::string& text, bool replace) {
    BACKSTAY_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(path_, text.size(), replace));
    BACKSTAY_RETURN_IF_ERROR(file->Write(0, std::as_bytes(std::span(text))));
    return file->Publish();
  }
  bool PartExists() const {
    return std::ranges::any_of(
        std::filesystem::directory_iterator(directory_.path()),
        [](const auto& entry) { return entry.path().filename().string().starts_with("out.part"); });
  }

  testing::TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/out";
};

TEST_F(OutputFileTest, ReplacesOnlyWhenTold) {
  EXPECT_TRUE(Put("one", false).ok());
  EXPECT_EQ(Put("two", false).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Contents(path_), "one");
  EXPECT_TRUE(Put("three", true).ok());
  EXPECT_EQ(Contents(path_), "three");
  EXPECT_FALSE(PartExists());
}

TEST_F(OutputFileTest, WhatIsNotPublishedLeavesNothing) {
  {
    const auto file = OutputFile::Create(path_, 10, false).value();
    EXPECT_TRUE(PartExists());
  }
  EXPECT_FALSE(PartExists());
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_F(OutputFileTest, AFileThatAppearedMeanwhileIsNotReplaced) {
  const auto file = OutputFile::Create(path_, 3, false).value();
  std::ofstream(path_) << "theirs";
  EXPECT_FALSE(file->Publish().ok());
  EXPECT_EQ(Contents(path_), "theirs");
}

TEST_F(OutputFileTest, TwoThatWriteToOnePlaceDoNotMix) {
  const auto first = OutputFile::Create(path_, 3, true).value();
  const auto second = OutputFile::Create(path_, 3, true).value();
  ASSERT_TRUE(first->Write(0, std::as_bytes(std::span("111").first(3))).ok());
  ASSERT_TRUE(second->Write(0, std::as_bytes(std::span("222").first(3))).ok());
  ASSERT_TRUE(first->Publish().ok());
  EXPECT_EQ(Contents(path_), "111");
  ASSERT_TRUE(second->Publish().ok());
  EXPECT_EQ(Contents(path_), "222");
}

TEST_F(OutputFileTest, AFolderThatIsNotThereIsNamed) {
  const Status status = OutputFile::Create(directory_.path() + "/none/out", 1, false).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/none/out.part"));
}

}  // namespace
}  // namespace backstay::tools
