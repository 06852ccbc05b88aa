#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/ids.h"
#include "store/manifest.h"
#include "tools/admin/admin.pb.h"
#include "tools/cli/verdict.h"

namespace backstay::tools {

// Keys stay in the order in which they are documented.
using Json = nlohmann::ordered_json;

// docs/command.md
inline constexpr int kExitFine = 0;
inline constexpr int kExitData = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreachable = 3;

// One answer in both of its forms. docs/command.md describes every field.
struct View {
  std::string text;  // For people, with a line end.
  Json json;
  int exit_code = kExitFine;
};

// What to do about an error: whose fault it is.
int ExitCode(const Status& status);

View ShowStatus(const wire::ClusterReply& cluster, const wire::JobsReply& jobs,
                int64_t now_unix_ms);
View ShowJobs(const wire::JobsReply& jobs, int64_t now_unix_ms);
// Snapshots of a job.
View ShowSnapshots(const wire::JobReply& job);
struct WhyOptions {
  bool timeline = false;
};
View ShowWhy(const wire::JobReply& job, const wire::ClusterReply& cluster, WhyOptions options);
// Tensors of a snapshot: of one rank, or merged over all ranks by name.
// `rank`: the only one that was asked for.
View ShowTensors(const JobName& job, const wire::SnapshotReply& snapshot,
                 std::optional<uint32_t> rank);

// A digest or root as hexadecimal digits; "" for none.
std::string Hex(const std::string& bytes);
Json SliceJson(const store::Slice& slice);
// Tensors, blobs and tags.
Json ContentsJson(const store::Manifest& manifest);
Json TensorJson(const store::TensorEntry& tensor);
// "[256, 1024]"
std::string ShapeText(const std::vector<uint64_t>& shape);
// A slice in a few words: "rows 0-63 of 256", "elements 0-999", "whole".
std::string SliceText(const store::TensorEntry& tensor);

}  // namespace backstay::tools
