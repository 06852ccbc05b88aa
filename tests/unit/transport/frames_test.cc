#include "transport/tcp/frames.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace backstay::transport {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Encoded(const Frame& frame) {
  std::string bytes;
  EncodeFrame(frame, &bytes);
  return bytes;
}

// One of each type, with every field set, and the longest names.
std::vector<Frame> Examples() {
  HelloFrame hello;
  hello.reader_nonce.fill(std::byte{0xA1});
  hello.store = StoreId(std::string(kNameBytesMax, 's'));
  hello.reader = {NodeId(std::string(kNameBytesMax, 'r')), Incarnation(UINT64_MAX)};
  hello.owner = {NodeId(std::string(kNameBytesMax, 'o')), Incarnation(1)};
  HelloReplyFrame reply;
  reply.status = StatusCode::kPermission;
  reply.owner_nonce.fill(std::byte{0xB2});
  reply.owner = hello.owner;
  reply.refusal = std::string(kRefusalBytesMax, 'w');
  OpenGrantFrame open{.grant = 0x0102030405060708, .proof = {}};
  open.proof.fill(std::byte{0xC3});
  GrantOpenedFrame opened{.grant = 9, .status = StatusCode::kStale, .proof = open.proof};
  return {hello,
          reply,
          open,
          opened,
          ReadFrame{.read = 1, .grant = 2, .offset_bytes = UINT64_MAX, .size_bytes = 4096},
          DataFrame{.read = 1, .size_bytes = kReadBytesMax},
          ReadEndFrame{.read = 1, .valid_bytes = 77, .status = StatusCode::kStale},
          ReleaseFrame{.grant = 3}};
}

TEST(Frames, EveryTypeComesBackAsItWas) {
  for (const Frame& frame : Examples()) {
    const std::string bytes = Encoded(frame) + "rest";
    const auto decoded = DecodeFrame(BytesOf(bytes));
    ASSERT_TRUE(decoded.ok() && decoded->has_value()) << "type " << frame.index() + 1;
    EXPECT_EQ((*decoded)->frame, frame) << "type " << frame.index() + 1;
    EXPECT_EQ((*decoded)->frame_bytes, bytes.size() - 4);
  }
}

TEST(Frames, EveryPartOfAFrameNeedsMore) {
  for (const Frame& frame : Examples()) {
    const std::string bytes = Encoded(frame);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = DecodeFrame(BytesOf(bytes).first(size));
      ASSERT_TRUE(decoded.ok()) << size << " bytes of type " << frame.index() + 1;
      EXPECT_FALSE(decoded->has_value()) << size << " bytes of type " << frame.index() + 1;
    }
  }
}

// The bytes of docs/formats/data_plane.md; a change of them is a new version.
TEST(Frames, ReadHasTheDocumentedBytes) {
  const std::string bytes =
      Encoded(ReadFrame{.read = 0x11, .grant = 0x22, .offset_bytes = 0x1000, .size_bytes = 0x2000});
  const std::string expected(
      "BKST\x05\x00\x1c\x00"
      "\x11\0\0\0\0\0\0\0\x22\0\0\0\0\0\0\0\x00\x10\0\0\0\0\0\0\x00\x20\0\0",
      kFrameHeaderBytes + 28);
  EXPECT_EQ(bytes, expected);
}

TEST(Frames, RefusesWhatIsNoFrame) {
  const std::string good = Encoded(ReadFrame{.read = 1, .grant = 2, .size_bytes = 3});
  const auto refused = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return !DecodeFrame(BytesOf(bytes)).ok();
  };
  EXPECT_TRUE(refused(0, 'X')) << "magic";
  EXPECT_TRUE(refused(4, 0)) << "type";
  EXPECT_TRUE(refused(4, 9)) << "type";
  EXPECT_TRUE(refused(5, 1)) << "reserved";
  EXPECT_TRUE(refused(6, 0x1B)) << "a body that is too short for its type";
  EXPECT_TRUE(refused(7, 0x7F)) << "a body beyond the limit";
  EXPECT_TRUE(refused(35, 0x7F)) << "a read beyond the limit";
  EXPECT_FALSE(DecodeFrame(BytesOf("GET /")).ok());
  EXPECT_FALSE(DecodeFrame(BytesOf("G")).ok()) << "told apart by its first byte";
}

TEST(Frames, RefusesABodyWithBytesLeftOver) {
  std::string bytes = Encoded(ReleaseFrame{.grant = 1});
  bytes[6] = static_cast<char>(bytes[6] + 1);
  EXPECT_FALSE(DecodeFrame(BytesOf(bytes + '\0')).ok());
}

TEST(Frames, RefusesAReadOfNothing) {
  EXPECT_FALSE(DecodeFrame(BytesOf(Encoded(ReadFrame{.read = 1, .grant = 2}))).ok());
}

}  // namespace
}  // namespace backstay::transport
