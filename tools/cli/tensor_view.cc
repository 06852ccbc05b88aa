// `backstay show`, and what other answers say of tensors.

#include <map>
#include <set>
#include <variant>

#include "base/units.h"
#include "tools/cli/names.h"
#include "tools/cli/table.h"
#include "tools/cli/view.h"

namespace backstay::tools {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

std::string BoxText(const store::Box& box, const std::vector<uint64_t>& global_shape) {
  std::string text;
  for (size_t i = 0; i < box.offsets.size(); ++i) {
    const bool whole = i < global_shape.size() && box.sizes[i] == global_shape[i];
    text += (i == 0 ? "" : ", ");
    text += whole ? std::string(":")
                  : std::to_string(box.offsets[i]) + ":" +
                        std::to_string(box.offsets[i] + box.sizes[i]);
  }
  return "[" + text + "]";
}

Json ShardJson(const wire::ShardReplicas& shard) {
  Json holders = Json::array();
  for (const auto& holder : shard.holders()) holders.push_back(ShowName(holder.node_id()));
  return {{"shard", ShowName(shard.shard_id())},
          {"rank", shard.rank()},
          {"digest", Hex(shard.digest())},
          {"bytes", shard.size_bytes()},
          {"holders", holders},
          {"error", shard.error().empty() ? Json() : Json(ShowText(shard.error()))}};
}

// One rank: everything in its shard, in the order of its bytes.
std::string OneRankText(const store::Manifest& manifest) {
  Table table({"TENSOR", "DTYPE", "SHAPE", "GLOBAL SHAPE", "SLICE", ">OFFSET", ">BYTES"});
  for (const store::TensorEntry& tensor : manifest.contents.tensors) {
    table.Add({ShowName(tensor.name), std::string(DtypeName(tensor.dtype)), ShapeText(tensor.shape),
               ShapeText(tensor.global_shape), SliceText(tensor),
               std::to_string(tensor.offset_bytes), FormatBytes(tensor.size_bytes)});
  }
  std::string text = table.empty() ? "no tensors\n" : table.Render();
  Table blobs({"BLOB", ">OFFSET", ">BYTES"});
  for (const store::BlobEntry& blob : manifest.contents.blobs) {
    blobs.Add(
        {ShowName(blob.name), std::to_string(blob.offset_bytes), FormatBytes(blob.size_bytes)});
  }
  if (!blobs.empty()) text += "\n" + blobs.Render();
  Table tags({"TAG", "VALUE"});
  for (const store::Tag& tag : manifest.contents.tags) {
    tags.Add({ShowName(tag.name), ShowName(tag.value)});
  }
  if (!tags.empty()) text += "\n" + tags.Render();
  return text;
}

// All ranks: each tensor once, with who has a part of it.
std::string MergedText(const std::vector<store::Manifest>& manifests) {
  struct Merged {
    const store::TensorEntry* first = nullptr;
    std::set<uint64_t> ranks;
    uint64_t bytes = 0;
  };
  std::map<std::string, Merged> tensors;
  std::vector<std::string> order;
  for (const store::Manifest& manifest : manifests) {
    for (const store::TensorEntry& tensor : manifest.contents.tensors) {
      Merged& merged = tensors[tensor.name];
      if (merged.first == nullptr) {
        merged.first = &tensor;
        order.push_back(tensor.name);
      }
      merged.ranks.insert(manifest.rank.value);
      merged.bytes += tensor.size_bytes;
    }
  }
  Table table({"TENSOR", "DTYPE", "GLOBAL SHAPE", "SLICE", ">RANKS", ">BYTES"});
  for (const std::string& name : order) {
    const Merged& merged = tensors[name];
    table.Add(
        {ShowName(name), std::string(DtypeName(merged.first->dtype)),
         ShapeText(merged.first->global_shape),
         merged.ranks.size() == 1 ? SliceText(*merged.first) : SliceText(*merged.first) + ", ...",
         std::to_string(merged.ranks.size()), FormatBytes(merged.bytes)});
  }
  return table.empty() ? "no tensors\n" : table.Render();
}

}  // namespace

std::string Hex(const std::string& bytes) {
  const std::optional<Hash128> hash = Hash128::FromBytes(bytes);
  return hash.has_value() ? hash->ToHex() : "";
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string SliceText(const store::TensorEntry& tensor) {
  return std::visit(
      Overloaded{
          [](const store::WholeSlice&) { return std::string("whole"); },
          [&](const store::BoxSlice& slice) {
            std::string text;
            for (const store::Box& box : slice.boxes) {
              text += (text.empty() ? "" : " ") + BoxText(box, tensor.global_shape);
            }
            return text;
          },
          [](const store::FlatSlice& flat) {
            return "elements " + std::to_string(flat.start) + ":" +
                   std::to_string(flat.start + flat.length) +
                   (flat.padding == 0 ? ""
                                      : " and " + std::to_string(flat.padding) + " of padding");
          },
          [](const store::EmptySlice&) { return std::string("nothing of it"); },
          [](const store::AliasSlice& alias) { return "alias of " + ShowName(alias.of); },
      },
      tensor.slice);
}

Json SliceJson(const store::Slice& slice) {
  return std::visit(Overloaded{
                        [](const store::WholeSlice&) {
                          return Json{{"kind", "whole"}};
                        },
                        [](const store::BoxSlice& boxes) {
                          Json list = Json::array();
                          for (const store::Box& box : boxes.boxes) {
                            list.push_back(Json{{"offsets", box.offsets}, {"sizes", box.sizes}});
                          }
                          return Json{{"kind", "boxes"}, {"boxes", list}};
                        },
                        [](const store::FlatSlice& flat) {
                          return Json{{"kind", "flat"},
                                      {"start", flat.start},
                                      {"length", flat.length},
                                      {"padding", flat.padding}};
                        },
                        [](const store::EmptySlice&) {
                          return Json{{"kind", "empty"}};
                        },
                        [](const store::AliasSlice& alias) {
                          return Json{{"kind", "alias"}, {"of", ShowName(alias.of)}};
                        },
                    },
                    slice);
}

Json TensorJson(const store::TensorEntry& tensor) {
  return {{"name", ShowName(tensor.name)},
          {"dtype", DtypeName(tensor.dtype)},
          {"shape", tensor.shape},
          {"global_shape", tensor.global_shape},
          {"slice", SliceJson(tensor.slice)},
          {"offset", tensor.offset_bytes},
          {"bytes", tensor.size_bytes}};
}

Json ContentsJson(const store::Manifest& manifest) {
  Json tensors = Json::array();
  for (const auto& tensor : manifest.contents.tensors) tensors.push_back(TensorJson(tensor));
  Json blobs = Json::array();
  for (const auto& blob : manifest.contents.blobs) {
    blobs.push_back(
        {{"name", ShowName(blob.name)}, {"offset", blob.offset_bytes}, {"bytes", blob.size_bytes}});
  }
  Json tags = Json::array();
  for (const auto& tag : manifest.contents.tags) {
    tags.push_back({{"name", ShowName(tag.name)}, {"value", ShowName(tag.value)}});
  }
  return {{"created_unix_ms", manifest.created_unix_ms},
          {"tensors", tensors},
          {"blobs", blobs},
          {"tags", tags}};
}

View ShowTensors(const JobName& job, const wire::SnapshotReply& snapshot,
                 std::optional<uint32_t> rank) {
  View view;
  std::vector<store::Manifest> manifests;
  Json shards = Json::array();
  std::string problems;
  std::set<uint32_t> ranks;
  for (const wire::ShardReplicas& shard : snapshot.shards()) {
    ranks.insert(shard.rank());
    Json json = ShardJson(shard);
    const Result<store::Manifest> manifest = shard.manifest().empty()
                                                 ? Unavailable(ShowText(shard.error()))
                                                 : store::DecodeManifest(shard.manifest());
    if (manifest.ok()) {
      json.update(ContentsJson(*manifest));
      manifests.push_back(*manifest);
    } else {
      json["error"] = ShowText(manifest.status().ToString());
      problems += "rank " + std::to_string(shard.rank()) + ": " +
                  ShowText(manifest.status().ToString()) + "\n";
    }
    shards.push_back(std::move(json));
  }
  Json silent = Json::array();
  for (const auto& node : snapshot.silent()) {
    silent.push_back({{"node", ShowName(node.node_id())}, {"error", ShowText(node.error())}});
    problems += ShowName(node.node_id()) + " did not answer: " + ShowText(node.error()) + "\n";
  }
  // One that is not committed may have ranks that never saved.
  Json missing = Json::array();
  for (uint32_t absent = 0; absent < snapshot.world_size() && snapshot.committed(); ++absent) {
    if (ranks.contains(absent) || absent != rank.value_or(absent)) continue;
    missing.push_back(absent);
    problems += "rank " + std::to_string(absent) + ": no node that answered holds its shard\n";
  }
  if (snapshot.shards().empty() && missing.empty()) {
    problems += "no node that answered holds a shard of it\n";
  }
  view.exit_code = problems.empty() ? kExitFine : kExitData;
  view.json = {{"job", ShowName(job.value)},
               {"generation", snapshot.snapshot().generation()},
               {"step", snapshot.snapshot().step()},
               {"committed", snapshot.committed()},
               {"world_size", snapshot.world_size()},
               {"wanted_copies", snapshot.wanted_replicas()},
               {"shards", shards},
               {"missing_ranks", missing},
               {"silent_nodes", silent}};
  view.text = "step " + std::to_string(snapshot.snapshot().step()) + " of generation " +
              std::to_string(snapshot.snapshot().generation()) +
              (snapshot.committed() ? ", committed" : ", not committed") + "\n\n";
  if (manifests.size() == 1) view.text += OneRankText(manifests.front());
  if (manifests.size() > 1) view.text += MergedText(manifests);
  if (!problems.empty()) view.text += "\n" + problems;
  return view;
}

}  // namespace backstay::tools
