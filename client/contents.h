#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "client/limits.h"
#include "client/tensor.h"
#include "client/wire.h"

namespace backstay::client {

struct BlobSpec {
  std::string name;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// What is in a shard, and where: tensors in the order in which they were added, then blobs, each at
// a multiple of kEntryAlignmentBytes.
class Contents {
 public:
  // Checks and places a tensor; returns its index. kInvalidArgument names it.
  Result<size_t> AddTensor(TensorSpec tensor);
  // Blobs are placed by Finish(), behind the tensors.
  Result<size_t> AddBlob(std::string name, uint64_t size_bytes);
  Status AddTag(std::string name, std::string value);
  // Places the blobs. Nothing can be added after.
  void Finish();

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<BlobSpec>& blobs() const { return blobs_; }
  const std::map<std::string, std::string>& tags() const { return tags_; }
  // With all blobs, whether placed or not. Never 0: a shard has at least one chunk.
  uint64_t SizeBytes() const { return std::max(tensor_bytes_ + blob_bytes_, kEntryAlignmentBytes); }
  // kNotFound names the nearest names.
  Result<size_t> FindTensor(const std::string& name) const;
  Result<size_t> FindBlob(const std::string& name) const;
  Result<std::string_view> FindTag(const std::string& name) const;

  // wire.ShardContents of store/manifest.proto.
  std::string Encode() const;

 private:
  friend struct ContentsReader;

  std::vector<TensorSpec> tensors_;
  std::vector<BlobSpec> blobs_;
  std::map<std::string, std::string> tags_;
  std::map<std::string, size_t> tensor_index_;
  std::map<std::string, size_t> blob_index_;
  uint64_t tensor_bytes_ = 0;
  uint64_t blob_bytes_ = 0;
};

// A sealed shard's manifest.
struct ShardManifest {
  std::string job;
  local::SnapshotRef snapshot;
  std::string shard_id;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t size_bytes = 0;
  uint32_t chunk_bytes = 0;
  std::vector<Hash128> chunk_checksums;
  Contents contents;
};

// An encoded wire.Manifest. The client only reads what the service has checked, but trusts none of
// it: every range lies in the shard, every size agrees with its shape. kCorrupt, or
// kInvalidArgument for a newer format version.
Result<ShardManifest> DecodeManifest(std::string_view bytes);

// ", the nearest are a, b and c" of `candidates`, which are sorted; empty without any.
std::string NearestNames(const std::string& name, const std::vector<std::string_view>& candidates);

}  // namespace backstay::client
