#include "transport/tcp/frames.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace backstay::transport {

namespace {

enum class FrameType : uint8_t {
  kHello = 1,
  kHelloReply = 2,
  kOpenGrant = 3,
  kGrantOpened = 4,
  kRead = 5,
  kData = 6,
  kReadEnd = 7,
  kRelease = 8,
};

// Appends little-endian fields to a string.
class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}

  template <typename Number>
  void Put(Number number) {
    for (size_t i = 0; i < sizeof(Number); ++i) {
      out_->push_back(static_cast<char>(static_cast<uint64_t>(number) >> (8 * i)));
    }
  }
  void PutStatus(StatusCode code) { Put<uint16_t>(static_cast<uint16_t>(code)); }
  template <size_t kBytes>
  void PutArray(const std::array<std::byte, kBytes>& bytes) {
    out_->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void PutText(const std::string& text, size_t bytes_max) {
    BACKSTAY_CHECK(text.size() <= bytes_max, "a name on the wire has a limit");
    Put<uint16_t>(static_cast<uint16_t>(text.size()));
    out_->append(text);
  }

 private:
  std::string* const out_;
};

// Takes fields from a body; remembers the first that did not fit and reads zeros from there on.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> body) : body_(body) {}

  template <typename Number>
  Number Take() {
    if (!Has(sizeof(Number))) return 0;
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) number |= uint64_t{Byte(i)} << (8 * i);
    body_ = body_.subspan(sizeof(Number));
    return static_cast<Number>(number);
  }
  // Only codes that this version knows: others would not encode back to themselves.
  StatusCode TakeStatus() {
    const auto number = Take<uint16_t>();
    if (number > static_cast<uint16_t>(StatusCode::kPermission)) ok_ = false;
    return ok_ ? static_cast<StatusCode>(number) : StatusCode::kUnavailable;
  }
  template <size_t kBytes>
  std::array<std::byte, kBytes> TakeArray() {
    std::array<std::byte, kBytes> bytes{};
    if (!Has(kBytes)) return bytes;
    std::copy_n(body_.begin(), kBytes, bytes.begin());
    body_ = body_.subspan(kBytes);
    return bytes;
  }
  std::string TakeText(size_t bytes_max) {
    const auto size = Take<uint16_t>();
    if (size > bytes_max) ok_ = false;
    if (!Has(size)) return {};
    std::string text(reinterpret_cast<const char*>(body_.data()), size);
    body_ = body_.subspan(size);
    return text;
  }
  void Refuse() { ok_ = false; }
  bool Finished() const { return ok_ && body_.empty(); }

 private:
  uint8_t Byte(size_t index) const { return static_cast<uint8_t>(body_[index]); }
  bool Has(size_t bytes) {
    ok_ = ok_ && body_.size() >= bytes;
    return ok_;
  }

  std::span<const std::byte> body_;
  bool ok_ = true;
};

FrameType TypeOf(const Frame& frame) { return static_cast<FrameType>(frame.index() + 1); }

static_assert(std::variant_size_v<Frame> == static_cast<size_t>(FrameType::kRelease),
              "the variant's order is the order of the types");

void Put(Writer* out, const HelloFrame& frame) {
  out->Put<uint16_t>(frame.version);
  out->Put<uint16_t>(0);
  out->PutArray(frame.reader_nonce);
  out->Put<uint64_t>(frame.reader.incarnation.value);
  out->Put<uint64_t>(frame.owner.incarnation.value);
  out->PutText(frame.store.value, kNameBytesMax);
  out->PutText(frame.reader.node.value, kNameBytesMax);
  out->PutText(frame.owner.node.value, kNameBytesMax);
}

void Put(Writer* out, const HelloReplyFrame& frame) {
  out->Put<uint16_t>(frame.version);
  out->PutStatus(frame.status);
  out->PutArray(frame.owner_nonce);
  out->Put<uint64_t>(frame.owner.incarnation.value);
  out->PutText(frame.owner.node.value, kNameBytesMax);
  out->PutText(frame.refusal, kRefusalBytesMax);
}

void Put(Writer* out, const OpenGrantFrame& frame) {
  out->Put<uint64_t>(frame.grant);
  out->PutArray(frame.proof);
}

void Put(Writer* out, const GrantOpenedFrame& frame) {
  out->Put<uint64_t>(frame.grant);
  out->PutArray(frame.proof);
  out->PutStatus(frame.status);
}

void Put(Writer* out, const ReadFrame& frame) {
  out->Put<uint64_t>(frame.read);
  out->Put<uint64_t>(frame.grant);
  out->Put<uint64_t>(frame.offset_bytes);
  out->Put<uint32_t>(frame.size_bytes);
}

void Put(Writer* out, const DataFrame& frame) {
  out->Put<uint64_t>(frame.read);
  out->Put<uint32_t>(frame.size_bytes);
}

void Put(Writer* out, const ReadEndFrame& frame) {
  out->Put<uint64_t>(frame.read);
  out->Put<uint32_t>(frame.valid_bytes);
  out->PutStatus(frame.status);
}

void Put(Writer* out, const ReleaseFrame& frame) { out->Put<uint64_t>(frame.grant); }

HelloFrame TakeHello(Reader* in) {
  HelloFrame frame;
  frame.version = in->Take<uint16_t>();
  if (in->Take<uint16_t>() != 0) in->Refuse();
  frame.reader_nonce = in->TakeArray<kNonceBytes>();
  frame.reader.incarnation = Incarnation(in->Take<uint64_t>());
  frame.owner.incarnation = Incarnation(in->Take<uint64_t>());
  frame.store = StoreId(in->TakeText(kNameBytesMax));
  frame.reader.node = NodeId(in->TakeText(kNameBytesMax));
  frame.owner.node = NodeId(in->TakeText(kNameBytesMax));
  return frame;
}

HelloReplyFrame TakeHelloReply(Reader* in) {
  HelloReplyFrame frame;
  frame.version = in->Take<uint16_t>();
  frame.status = in->TakeStatus();
  frame.owner_nonce = in->TakeArray<kNonceBytes>();
  frame.owner.incarnation = Incarnation(in->Take<uint64_t>());
  frame.owner.node = NodeId(in->TakeText(kNameBytesMax));
  frame.refusal = in->TakeText(kRefusalBytesMax);
  return frame;
}

OpenGrantFrame TakeOpenGrant(Reader* in) {
  OpenGrantFrame frame;
  frame.grant = in->Take<uint64_t>();
  frame.proof = in->TakeArray<kProofBytes>();
  return frame;
}

GrantOpenedFrame TakeGrantOpened(Reader* in) {
  GrantOpenedFrame frame;
  frame.grant = in->Take<uint64_t>();
  frame.proof = in->TakeArray<kProofBytes>();
  frame.status = in->TakeStatus();
  return frame;
}

ReadFrame TakeRead(Reader* in) {
  ReadFrame frame;
  frame.read = in->Take<uint64_t>();
  frame.grant = in->Take<uint64_t>();
  frame.offset_bytes = in->Take<uint64_t>();
  frame.size_bytes = in->Take<uint32_t>();
  if (frame.size_bytes == 0 || frame.size_bytes > kReadBytesMax) in->Refuse();
  return frame;
}

DataFrame TakeData(Reader* in) {
  DataFrame frame;
  frame.read = in->Take<uint64_t>();
  frame.size_bytes = in->Take<uint32_t>();
  if (frame.size_bytes == 0 || frame.size_bytes > kReadBytesMax) in->Refuse();
  return frame;
}

ReadEndFrame TakeReadEnd(Reader* in) {
  ReadEndFrame frame;
  frame.read = in->Take<uint64_t>();
  frame.valid_bytes = in->Take<uint32_t>();
  frame.status = in->TakeStatus();
  if (frame.valid_bytes > kReadBytesMax) in->Refuse();
  return frame;
}

std::optional<Frame> TakeFrame(FrameType type, Reader* in) {
  switch (type) {
    case FrameType::kHello:
      return TakeHello(in);
    case FrameType::kHelloReply:
      return TakeHelloReply(in);
    case FrameType::kOpenGrant:
      return TakeOpenGrant(in);
    case FrameType::kGrantOpened:
      return TakeGrantOpened(in);
    case FrameType::kRead:
      return TakeRead(in);
    case FrameType::kData:
      return TakeData(in);
    case FrameType::kReadEnd:
      return TakeReadEnd(in);
    case FrameType::kRelease:
      return ReleaseFrame{in->Take<uint64_t>()};
  }
  return std::nullopt;
}

}  // namespace

void EncodeFrame(const Frame& frame, std::string* out) {
  const size_t begin = out->size();
  Writer writer(out);
  writer.Put<uint32_t>(kFrameMagic);
  writer.Put<uint8_t>(static_cast<uint8_t>(TypeOf(frame)));
  writer.Put<uint8_t>(0);
  writer.Put<uint16_t>(0);  // The body's size, set below.
  std::visit([&](const auto& body) { Put(&writer, body); }, frame);
  const size_t body_bytes = out->size() - begin - kFrameHeaderBytes;
  BACKSTAY_CHECK(body_bytes <= kFrameBodyBytesMax, "the longest frame is bounded at compile time");
  (*out)[begin + 6] = static_cast<char>(body_bytes);
  (*out)[begin + 7] = static_cast<char>(body_bytes >> 8);
}

Result<std::optional<DecodedFrame>> DecodeFrame(std::span<const std::byte> bytes) {
  // The magic first, byte by byte: a peer of another protocol is told apart by its first bytes,
  // however few.
  for (size_t i = 0; i < std::min<size_t>(bytes.size(), 4); ++i) {
    if (bytes[i] != static_cast<std::byte>(kFrameMagic >> (8 * i))) {
      return InvalidArgument("not a frame of the data plane: wrong magic");
    }
  }
  if (bytes.size() < kFrameHeaderBytes) return std::optional<DecodedFrame>();
  Reader header(bytes.subspan(4, kFrameHeaderBytes - 4));
  const auto type = static_cast<FrameType>(header.Take<uint8_t>());
  const auto reserved = header.Take<uint8_t>();
  const auto body_bytes = header.Take<uint16_t>();
  if (reserved != 0 || body_bytes > kFrameBodyBytesMax) {
    return InvalidArgument("malformed frame header");
  }
  if (type < FrameType::kHello || type > FrameType::kRelease) {
    return InvalidArgument("unknown frame type " + std::to_string(static_cast<int>(type)));
  }
  if (bytes.size() < kFrameHeaderBytes + body_bytes) return std::optional<DecodedFrame>();
  Reader body(bytes.subspan(kFrameHeaderBytes, body_bytes));
  std::optional<Frame> frame = TakeFrame(type, &body);
  if (!frame.has_value() || !body.Finished()) {
    return InvalidArgument("malformed frame of type " + std::to_string(static_cast<int>(type)));
  }
  return std::optional<DecodedFrame>(
      DecodedFrame{*std::move(frame), kFrameHeaderBytes + body_bytes});
}

}  // namespace backstay::transport
