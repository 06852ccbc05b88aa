#include "store/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/manifest.pb.h"

namespace backstay::store {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kChunk = 4 * kKiB;

TensorEntry Tensor(std::string name, Dtype dtype, std::vector<uint64_t> shape,
                   std::vector<uint64_t> global_shape, Slice slice, uint64_t offset_bytes,
                   uint64_t size_bytes) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = std::move(shape),
          .global_shape = std::move(global_shape),
          .slice = std::move(slice),
          .offset_bytes = offset_bytes,
          .size_bytes = size_bytes};
}

// One of everything that format version 1 can say.
Manifest Full() {
  Manifest manifest;
  manifest.name = {JobName("llama \xff\x01"), {Generation(2), Step(110)}, ShardId("3")};
  manifest.rank = Rank(3);
  manifest.world_size = 4;
  manifest.size_bytes = 2 * kChunk + 1;
  manifest.chunk_bytes = kChunk;
  manifest.chunk_checksums = {{1, 2}, {3, 4}, {UINT64_MAX, 5}};
  manifest.created_unix_ms = 1'700'000'000'123;
  ShardContents& contents = manifest.contents;
  contents.tensors = {
      Tensor("whole", Dtype::kBf16, {2, 3}, {2, 3}, WholeSlice{}, 0, 12),
      Tensor("box", Dtype::kFp32, {1, 4}, {8, 4}, BoxSlice{{{{5, 0}, {1, 4}}}}, 12, 16),
      Tensor("boxes", Dtype::kInt64, {3}, {8, 4},
             BoxSlice{{{{0, 0}, {1, 2}}, {{7, 3}, {1, 1}}, {{2, 2}, {0, 1}}}}, 32, 24),
      Tensor("flat", Dtype::kFp8E4m3, {12}, {10, 10}, FlatSlice{90, 10, 2}, 56, 12),
      Tensor("empty", Dtype::kFp64, {0}, {10, 10}, EmptySlice{}, 70, 0),
      Tensor("tied", Dtype::kBf16, {2, 3}, {2, 3}, AliasSlice{"whole"}, 0, 0),
      Tensor("scalar", Dtype::kBool, {}, {}, WholeSlice{}, 80, 1),
      Tensor("zero-sized", Dtype::kInt8, {3, 0}, {3, 0}, WholeSlice{}, 0, 0),
  };
  contents.blobs = {{"rng", 100, 50}, {"empty blob", 0, 0}};
  contents.tags = {{"samples", std::string("\0\1", 2)}, {"config", ""}};
  return manifest;
}

TEST(Manifest, EverySliceComesBack) {
  const Manifest manifest = Full();
  const Result<std::string> bytes = EncodeManifest(manifest);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const Result<Manifest> decoded = DecodeManifest(*bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_EQ(*EncodeManifest(*decoded), *bytes);
}

// The schema's own decoder reads the same.
TEST(Manifest, GeneratedCodeAgrees) {
  wire::Manifest message;
  ASSERT_TRUE(message.ParseFromString(*EncodeManifest(Full())));
  EXPECT_EQ(message.format_version(), 1u);
  EXPECT_EQ(message.chunk_checksums().size(), 48u);
  EXPECT_EQ(message.contents().tensors(3).flat().start(), 90u);
  EXPECT_EQ(message.contents().tensors(2).boxes().boxes(1).offsets(0), 7u);
  EXPECT_EQ(message.contents().tensors(5).alias_of(), "whole");
}

TEST(Manifest, EmptyShardIsLegal) {
  Manifest manifest = Full();
  manifest.size_bytes = 0;
  manifest.chunk_checksums.clear();
  manifest.contents = {};
  EXPECT_EQ(*DecodeManifest(*EncodeManifest(manifest)), manifest);
}

TEST(Manifest, NewerFormatIsNamedEvenIfUnreadable) {
  wire::Manifest message;
  ASSERT_TRUE(message.ParseFromString(*EncodeManifest(Full())));
  message.set_format_version(2);
  message.set_chunk_bytes(3);
  const Status status = DecodeManifest(message.SerializeAsString()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("format version 2, this program reads version 1"));
}

TEST(Manifest, DamagedBytesAreAnErrorWherever) {
  const std::string bytes = *EncodeManifest(Full());
  EXPECT_FALSE(DecodeManifest("").ok());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    // Between two fields a cut leaves a manifest of less; SealManifest() and digests find those.
    const Result<Manifest> decoded = DecodeManifest(std::string_view(bytes).substr(0, cut));
    EXPECT_FALSE(decoded.ok() && *decoded == Full()) << cut;
  }
  EXPECT_EQ(DecodeManifest(bytes.substr(0, 40)).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(DecodeManifest(std::string(kManifestBytesMax + 1, 'x')).status().code(),
            StatusCode::kInvalidArgument);
}

// Two bytes per entry: refused before memory for 32 million tensors is spent.
TEST(Manifest, FloodsOfEntriesAreRefusedEarly) {
  std::string blobs;
  for (uint64_t i = 0; i <= kManifestBlobsMax; ++i) blobs += std::string("\x12\x00", 2);
  EXPECT_THAT(DecodeContents(blobs, 0).status().message(), HasSubstr("more than 100000 blobs"));
  wire::TensorEntry tensor;
  for (size_t i = 0; i <= kTensorBoxesMax; ++i) tensor.mutable_boxes()->add_boxes();
  wire::ShardContents contents;
  *contents.add_tensors() = tensor;
  EXPECT_THAT(DecodeContents(contents.SerializeAsString(), 0).status().message(),
              HasSubstr("boxes"));
  contents.Clear();
  contents.add_tensors();
  for (size_t i = 0; i <= kTensorDimensionsMax; ++i) contents.mutable_tensors(0)->add_shape(0);
  EXPECT_THAT(DecodeContents(contents.SerializeAsString(), 0).status().message(),
              HasSubstr("dimensions"));
}

struct Broken {
  const char* what;
  void (*breaks)(Manifest&);
  const char* message;
};

class BrokenManifest : public ::testing::TestWithParam<Broken> {};

// Refused when made, and when it comes in as bytes that somebody else made.
TEST_P(BrokenManifest, IsRefused) {
  Manifest manifest = Full();
  GetParam().breaks(manifest);
  const Result<std::string> bytes = EncodeManifest(manifest);
  ASSERT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(bytes.status().message(), HasSubstr(GetParam().message));

  wire::Manifest message;  // EncodeContents() does not check: made for exactly this.
  ASSERT_TRUE(message.ParseFromString(*EncodeManifest(Full())));
  ASSERT_TRUE(message.mutable_contents()->ParseFromString(EncodeContents(manifest.contents)));
  message.set_job(manifest.name.job.value);
  message.set_shard_id(manifest.name.shard.value);
  message.set_rank(static_cast<uint32_t>(manifest.rank.value));
  message.set_world_size(manifest.world_size);
  message.set_size_bytes(manifest.size_bytes);
  message.set_chunk_bytes(manifest.chunk_bytes);
  message.clear_chunk_checksums();
  for (const Hash128& hash : manifest.chunk_checksums) {
    message.mutable_chunk_checksums()->append(hash.ToByteString());
  }
  EXPECT_THAT(DecodeManifest(message.SerializeAsString()).status().message(),
              HasSubstr(GetParam().message));
}

TensorEntry& Entry(Manifest& manifest, std::string_view name) {
  for (TensorEntry& entry : manifest.contents.tensors) {
    if (entry.name == name) return entry;
  }
  ADD_FAILURE() << "no tensor " << name;
  return manifest.contents.tensors.front();
}

constexpr uint64_t kHuge = uint64_t{1} << 40;

const Broken kBroken[] = {
    {"no_job", [](Manifest& m) { m.name.job = JobName(); }, "name is empty"},
    {"long_job", [](Manifest& m) { m.name.job.value.assign(257, 'x'); }, "257 bytes"},
    {"nul", [](Manifest& m) { m.name.shard.value = std::string("a\0b", 3); }, "NUL"},
    {"rank", [](Manifest& m) { m.rank = Rank(4); }, "rank 4 of world size 4"},
    {"world", [](Manifest& m) { m.world_size = 0; }, "world size 0"},
    {"chunk_size", [](Manifest& m) { m.chunk_bytes = 0; }, "chunk size of 0"},
    {"odd_chunk_size", [](Manifest& m) { m.chunk_bytes = 5000; }, "chunk size of 5000"},
    {"too_large", [](Manifest& m) { m.size_bytes = kShardBytesMax + 1; }, "limit"},
    {"too_many_chunks", [](Manifest& m) { m.size_bytes = kHuge; }, "more than"},
    {"few_checksums", [](Manifest& m) { m.chunk_checksums.pop_back(); }, "2 checksums for 3"},
    {"many_checksums", [](Manifest& m) { m.chunk_checksums.push_back({}); }, "4 checksums for 3"},
    {"no_name", [](Manifest& m) { Entry(m, "flat").name = ""; }, "name is empty"},
    {"twice", [](Manifest& m) { Entry(m, "flat").name = "box"; }, "\"box\": is there twice"},
    {"size", [](Manifest& m) { Entry(m, "flat").size_bytes = 11; }, "has 11 bytes, but 12"},
    {"dtype", [](Manifest& m) { Entry(m, "flat").dtype = Dtype::kFp16; }, "elements of fp16"},
    {"end", [](Manifest& m) { Entry(m, "flat").offset_bytes = 2 * kChunk; }, "ends beyond"},
    {"wrap", [](Manifest& m) { Entry(m, "flat").offset_bytes = UINT64_MAX; }, "ends beyond"},
    {"overlap", [](Manifest& m) { Entry(m, "flat").offset_bytes = 50; }, "overlap in the shard"},
    {"blob_overlap", [](Manifest& m) { m.contents.blobs[0].offset_bytes = 60; }, "overlap in the"},
    {"overflow",
     [](Manifest& m) {
       Entry(m, "flat").global_shape = {kHuge, kHuge};
     },
     "too many elements"},
    {"byte_overflow",
     [](Manifest& m) {
       TensorEntry& entry = Entry(m, "zero-sized");
       entry.dtype = Dtype::kFp64;
       entry.shape = entry.global_shape = {uint64_t{1} << 61};
     },
     "has 0 bytes"},
    {"dimensions", [](Manifest& m) { Entry(m, "empty").global_shape.assign(17, 1); }, "dimensions"},
    {"whole",
     [](Manifest& m) {
       Entry(m, "whole").global_shape = {3, 2};
     },
     "is whole"},
    {"empty", [](Manifest& m) { Entry(m, "empty").shape = {1}; }, "empty slice"},
    {"flat_end",
     [](Manifest& m) {
       Entry(m, "flat").slice = FlatSlice{91, 10, 2};
     },
     "flat range of 10"},
    {"flat_wrap",
     [](Manifest& m) {
       Entry(m, "flat").slice = FlatSlice{UINT64_MAX, 10, 2};
     },
     "flat range of 10"},
    {"flat_padding",
     [](Manifest& m) {
       Entry(m, "flat").slice = FlatSlice{90, 10, UINT64_MAX};
     },
     "length plus its padding"},
    {"no_box", [](Manifest& m) { Entry(m, "box").slice = BoxSlice{}; }, "0 boxes"},
    {"box_rank",
     [](Manifest& m) {
       Entry(m, "box").slice = BoxSlice{{{{5}, {4}}}};
     },
     "other dimensions"},
    {"box_end",
     [](Manifest& m) {
       Entry(m, "box").slice = BoxSlice{{{{5, 1}, {1, 4}}}};
     },
     "beyond its global shape in dimension 1"},
    {"box_wrap",
     [](Manifest& m) {
       Entry(m, "box").slice = BoxSlice{{{{UINT64_MAX, 0}, {1, 4}}}};
     },
     "beyond its global shape in dimension 0"},
    {"box_shape",
     [](Manifest& m) {
       Entry(m, "box").shape = {4, 1};
     },
     "stored shape"},
    {"boxes_overlap",
     [](Manifest& m) {
       Entry(m, "boxes").slice = BoxSlice{{{{0, 0}, {1, 2}}, {{0, 1}, {1, 1}}}};
     },
     "boxes overlap"},
    {"boxes_exceed",
     [](Manifest& m) {
       Entry(m, "boxes").slice = BoxSlice{{{{0, 0}, {8, 4}}, {{0, 0}, {8, 4}}}};
     },
     "boxes overlap"},
    {"alias_gone", [](Manifest& m) { Entry(m, "tied").slice = AliasSlice{"gone"}; }, "\"gone\""},
    {"alias_self", [](Manifest& m) { Entry(m, "tied").slice = AliasSlice{"tied"}; }, "itself"},
    {"alias_other", [](Manifest& m) { Entry(m, "tied").slice = AliasSlice{"box"}; },
     "another dtype or shape"},
    {"alias_bytes", [](Manifest& m) { Entry(m, "tied").size_bytes = 12; }, "bytes of its own"},
    {"blob_twice", [](Manifest& m) { m.contents.blobs[1].name = "rng"; },
     "\"rng\": is there twice"},
    {"blob_end", [](Manifest& m) { m.contents.blobs[0].size_bytes = kHuge; }, "ends beyond"},
    {"tag_twice", [](Manifest& m) { m.contents.tags[1].name = "samples"; }, "is there twice"},
    {"tag_size", [](Manifest& m) { m.contents.tags[0].value.assign(kTagValueBytesMax + 1, 'x'); },
     "at most 64.0 KiB"},
};

INSTANTIATE_TEST_SUITE_P(, BrokenManifest, ::testing::ValuesIn(kBroken),
                         [](const auto& param) { return std::string(param.param.what); });

TEST(Manifest, UnknownDtypeAndMissingSliceAreRefused) {
  wire::ShardContents contents;
  wire::TensorEntry* tensor = contents.add_tensors();
  tensor->set_name("w");
  tensor->mutable_whole();
  EXPECT_THAT(DecodeContents(contents.SerializeAsString(), 0).status().message(),
              HasSubstr("\"w\": dtype number 0"));
  tensor->set_dtype(static_cast<wire::Dtype>(13));
  EXPECT_THAT(DecodeContents(contents.SerializeAsString(), 0).status().message(),
              HasSubstr("dtype number 13"));
  tensor->set_dtype(wire::DTYPE_BF16);
  tensor->clear_slice();
  EXPECT_THAT(DecodeContents(contents.SerializeAsString(), 0).status().message(),
              HasSubstr("which slice"));
}

TEST(SealedManifest, OpensToTheSameBytes) {
  const std::string bytes = *EncodeManifest(Full());
  const std::string sealed = SealManifest(bytes);
  const Result<std::string_view> opened = OpenManifest(sealed);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(*opened, bytes);
  EXPECT_EQ(*OpenManifest(SealManifest("")), "");
}

TEST(SealedManifest, EveryDamageIsFound) {
  const std::string sealed = SealManifest(*EncodeManifest(Full()));
  for (size_t at = 0; at < sealed.size(); ++at) {
    std::string damaged = sealed;
    damaged[at] ^= 0x10;
    EXPECT_FALSE(OpenManifest(damaged).ok()) << "byte " << at;
    EXPECT_FALSE(OpenManifest(sealed.substr(0, at)).ok()) << "cut at " << at;
  }
  EXPECT_EQ(OpenManifest(sealed + "x").status().code(), StatusCode::kCorrupt);
  std::string newer = sealed;
  newer[8] = 2;
  EXPECT_THAT(OpenManifest(newer).status().message(), HasSubstr("frame version 2"));
}

TEST(SnapshotRoot, DependsOnEveryDigestAndTheirOrder) {
  const Hash128 a{1, 2};
  const Hash128 b{3, 4};
  const Hash128 root = SnapshotRoot(std::vector{a, b});
  EXPECT_EQ(root, SnapshotRoot(std::vector{a, b}));
  EXPECT_NE(root, SnapshotRoot(std::vector{b, a}));
  EXPECT_NE(root, SnapshotRoot(std::vector{a}));
  EXPECT_NE(root, SnapshotRoot(std::vector{a, b, b}));
  EXPECT_NE(SnapshotRoot({}), SnapshotRoot(std::vector{Hash128{}}));
}

TEST(QuoteName, ShowsWhatCannotBePrinted) {
  EXPECT_EQ(QuoteName("w.0"), "\"w.0\"");
  EXPECT_EQ(QuoteName("a\n\"\xff"), "\"a\\x0a\\x22\\xff\"");
  EXPECT_EQ(QuoteName(std::string(100, 'x')), "\"" + std::string(80, 'x') + "\"...");
}

}  // namespace
}  // namespace backstay::store
