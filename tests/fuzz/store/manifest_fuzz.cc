// Goal:   no bytes trip a manifest decoder, and what it accepts means one thing.
// Method:  what is decoded encodes and decodes to the same manifest, in the same bytes from then
//          on; a sealed frame gives back exactly what was sealed.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "store/manifest.h"

namespace backstay::store {
namespace {

void FuzzManifest(std::string_view bytes) {
  const Result<Manifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return;
  const Result<std::string> encoded = EncodeManifest(*manifest);
  BACKSTAY_CHECK(encoded.ok(), "what was accepted cannot be encoded");
  const Result<Manifest> again = DecodeManifest(*encoded);
  BACKSTAY_CHECK(again.ok() && *again == *manifest, "another manifest after a round trip");
  BACKSTAY_CHECK(*EncodeManifest(*again) == *encoded, "two encodings of one manifest");
}

void FuzzContents(std::string_view bytes) {
  constexpr uint64_t kShardBytes = 1 << 20;
  const Result<ShardContents> contents = DecodeContents(bytes, kShardBytes);
  if (!contents.ok()) return;
  const Result<ShardContents> again = DecodeContents(EncodeContents(*contents), kShardBytes);
  BACKSTAY_CHECK(again.ok() && *again == *contents, "other contents after a round trip");
}

void FuzzSealed(std::string_view bytes) {
  const Result<std::string_view> opened = OpenManifest(bytes);
  if (opened.ok()) {
    BACKSTAY_CHECK(SealManifest(*opened) == bytes, "two frames of one manifest");
    FuzzManifest(*opened);
  }
  BACKSTAY_CHECK(*OpenManifest(SealManifest(bytes)) == bytes, "a frame lost its bytes");
}

}  // namespace
}  // namespace backstay::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  backstay::store::FuzzManifest(bytes);
  backstay::store::FuzzContents(bytes);
  backstay::store::FuzzSealed(bytes);
  return 0;
}
