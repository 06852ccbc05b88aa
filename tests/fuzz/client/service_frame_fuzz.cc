// The client's decoder of service frames takes any bytes, and where the generated code takes them
// too, both see the same message. The manifests inside go through the client's manifest decoder.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "client/contents.h"
#include "client/local.pb.h"
#include "client/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace backstay::client;  // NOLINT(google-build-using-namespace)
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const backstay::Result<local::ServiceFrame> decoded = local::DecodeServiceFrame(bytes);
  wire::ServiceFrame generated;
  const bool generated_ok = generated.ParseFromArray(data, static_cast<int>(size));
  if (decoded.ok() && generated_ok) {
    if (decoded->request != generated.request()) std::abort();
    if (decoded->status.ok() != (generated.status().code() == 0)) std::abort();
    const bool body = generated.body_case() != wire::ServiceFrame::BODY_NOT_SET;
    if (std::holds_alternative<std::monostate>(decoded->body) == body) std::abort();
  }
  if (decoded.ok()) {
    if (const auto* fetched = std::get_if<local::FetchReply>(&decoded->body)) {
      const auto manifest = DecodeManifest(fetched->manifest);
      // What is accepted must lie inside of the shard, or reads would leave its memory.
      if (manifest.ok()) {
        for (const TensorSpec& tensor : manifest->contents.tensors()) {
          if (tensor.offset_bytes + tensor.size_bytes > manifest->size_bytes) std::abort();
        }
      }
    }
  }
  static_cast<void>(DecodeManifest(bytes).ok());
  return 0;
}
