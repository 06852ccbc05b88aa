#include "replication/metadata_keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace backstay::replication {
namespace {

TEST(MetadataKeys, EscapingIsReversibleForAllBytes) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const std::string escaped = EscapeName(all);
  EXPECT_EQ(escaped.find('/'), std::string::npos);
  EXPECT_EQ(UnescapeName(escaped).value(), all);
  EXPECT_EQ(EscapeName("run-1_a.B"), "run-1_a.B");
  EXPECT_EQ(EscapeName("a/b c%\xff"), "a%2Fb%20c%25%FF");
}

TEST(MetadataKeys, OnlyWhatEscapingMakesIsTakenBack) {
  for (const char* text : {"a/b", "%", "%2", "a%2", "%2f", "%41", "%GG", " ", "a%2F%"}) {
    EXPECT_EQ(UnescapeName(text).status().code(), StatusCode::kCorrupt) << text;
  }
}

TEST(MetadataKeys, NoNameReachesIntoAnotherOnesKeys) {
  const std::set<std::string> keys = {
      LeaderKey(JobName("a")),          JobRecordKey(JobName("a")),
      LeaderKey(JobName("a/leader")),   JobRecordKey(JobName("a/record")),
      LeaderKey(JobName("a%2Fleader")), NodeKey(NodeId("a")),
      NodeStartsKey(NodeId("a"))};
  EXPECT_EQ(keys.size(), 7u);
  EXPECT_EQ(ParseNodeKey(NodeKey(NodeId("n/1\xff"))).value(), NodeId("n/1\xff"));
  EXPECT_EQ(ParseJobRecordKey(JobRecordKey(JobName("a/record"))).value(), JobName("a/record"));
  EXPECT_EQ(ParseJobRecordKey(LeaderKey(JobName("a"))).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ParseJobRecordKey("jobs//record").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ParseJobRecordKey("jobs/record").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ParseNodeKey("nodes/").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ParseNodeKey("jobs/a").status().code(), StatusCode::kCorrupt);
}

TEST(MetadataKeys, LongestNamesFit) {
  const std::string name(kNameBytesMax, '/');
  EXPECT_TRUE(CheckName("job", name).ok());
  EXPECT_LE(JobRecordKey(JobName(name)).size(), kMetadataKeyBytesMax);
  EXPECT_LE(NodeStartsKey(NodeId(name)).size(), kMetadataKeyBytesMax);
  EXPECT_EQ(CheckName("job", name + "/").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckName("job", "").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckName("job", std::string("a\0", 2)).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace backstay::replication
