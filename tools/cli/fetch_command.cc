// `backstay fetch`: its own reader of the data plane.

#include <memory>

#include "base/event_loop.h"
#include "base/units.h"
#include "replication/wire_convert.h"
#include "tools/cli/commands.h"
#include "tools/cli/names.h"
#include "tools/cli/output_file.h"
#include "tools/cli/shard_fetch.h"
#include "tools/nearest.h"
#include "transport/tcp/tcp_puller.h"

namespace backstay::tools {
namespace {

using store::Manifest;
using store::TensorEntry;

// The tensor that has the bytes of `name`.
Result<TensorEntry> FindTensor(const Manifest& manifest, const std::string& name) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : manifest.contents.tensors) {
    if (tensor.name == name) {
      const auto* alias = std::get_if<store::AliasSlice>(&tensor.slice);
      return alias == nullptr ? Result<TensorEntry>(tensor) : FindTensor(manifest, alias->of);
    }
    names.push_back(tensor.name);
  }
  const std::string nearest = NearestName(name, names);
  return NotFound("shard " + ShowName(manifest.name.shard.value) + " has no tensor '" +
                  ShowName(name) + "'" +
                  (nearest.empty() ? "; backstay show lists its " + std::to_string(names.size())
                                   : "; did you mean '" + ShowName(nearest) + "'?"));
}

Json ManifestJson(const Manifest& manifest, const std::string& digest) {
  Json checksums = Json::array();
  for (const Hash128& checksum : manifest.chunk_checksums) checksums.push_back(checksum.ToHex());
  Json json = {{"format_version", store::kManifestFormatVersion},
               {"job", ShowName(manifest.name.job.value)},
               {"generation", manifest.name.snapshot.generation.value},
               {"step", manifest.name.snapshot.step.value},
               {"shard", ShowName(manifest.name.shard.value)},
               {"rank", manifest.rank.value},
               {"world_size", manifest.world_size},
               {"digest", Hex(digest)},
               {"bytes", manifest.size_bytes},
               {"chunk_bytes", manifest.chunk_bytes},
               {"chunk_checksums", checksums}};
  json.update(ContentsJson(manifest));
  return json;
}

// Runs the pull on a loop of its own and waits for its end.
FetchOutcome PullBytes(const wire::OpenShardReply& opened, FetchSpec spec) {
  EventLoop loop;
  transport::TcpPullerOptions options;
  options.store = StoreId(opened.store_id());
  options.node = replication::FromWire(opened.reader());
  auto puller = std::make_unique<transport::TcpPuller>(&loop, options);
  const std::vector<transport::Grant> grants = spec.sources;
  FetchOutcome outcome;
  ShardFetch fetch(&loop, puller.get(), std::move(spec), [&](FetchOutcome result) {
    outcome = std::move(result);
    for (const transport::Grant& grant : grants) puller->Release(grant);
    loop.Stop();
  });
  loop.Post([&] { fetch.Start(); });
  loop.Run();
  puller.reset();  // Waits for its lanes.
  return outcome;
}

Status WriteWhole(const std::string& path, const std::string& text, bool replace) {
  BACKSTAY_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                            OutputFile::Create(path, text.size(), replace));
  BACKSTAY_RETURN_IF_ERROR(file->Write(0, std::as_bytes(std::span(text))));
  return file->Publish();
}

Result<Manifest> CheckOpened(const wire::OpenShardReply& opened, FetchSpec& spec) {
  if (store::ManifestDigest(opened.manifest()).ToByteString() != opened.digest()) {
    return Corrupt("the manifest that the service sent does not match the shard's digest");
  }
  for (const auto& grant : opened.grants()) {
    Result<transport::Grant> source = replication::FromWire(grant);
    if (!source.ok()) return source.status();
    spec.sources.push_back(std::move(*source));
  }
  return store::DecodeManifest(opened.manifest());
}

std::string ManifestFile(const CommandLine& line) { return line.file + ".manifest.json"; }

View Describe(const CommandLine& line, const FetchSpec& spec, const wire::OpenShardReply& opened,
              const std::vector<std::string>& problems) {
  Json sources = Json::array();
  for (const transport::Grant& grant : spec.sources) {
    sources.push_back(ShowName(grant.owner.node.value));
  }
  View view;
  Json problem_list = Json::array();
  for (const std::string& problem : problems) {
    problem_list.push_back(ShowText(problem));
    view.text += "warning: " + ShowText(problem) + "\n";
  }
  const uint64_t bytes = spec.end_bytes - spec.begin_bytes;
  view.json = {{"job", ShowName(line.job)},
               {"generation", opened.snapshot().generation()},
               {"step", opened.snapshot().step()},
               {"shard", ShowName(line.shard)},
               {"tensor", line.tensor.empty() ? Json() : Json(ShowName(line.tensor))},
               {"file", ShowName(line.file)},
               {"bytes", bytes},
               {"digest", Hex(opened.digest())},
               {"sources", sources},
               {"problems", problem_list}};
  view.text += FormatBytes(bytes) + " verified and written to " + ShowText(line.file) + "\n";
  if (line.tensor.empty()) {
    view.text += "what lies where in it: " + ShowText(ManifestFile(line)) + "\n";
  }
  // The bytes are right; that some copy of them is not is worth a look.
  view.exit_code = problems.empty() ? kExitFine : kExitData;
  return view;
}

}  // namespace

Result<View> RunFetch(const CommandLine& line, const Console& console, AdminClient& client) {
  wire::OpenShardRequest request;
  request.set_job(line.job);
  request.set_step(line.step);
  request.set_generation(line.generation);
  request.set_shard_id(line.shard);
  BACKSTAY_ASSIGN_OR_RETURN(const wire::OpenShardReply opened, client.OpenShard(request));
  FetchSpec spec;
  BACKSTAY_ASSIGN_OR_RETURN(spec.manifest, CheckOpened(opened, spec));
  spec.end_bytes = spec.manifest.size_bytes;
  spec.timeout = client.TimeLeft();
  Json tensor_json;
  if (!line.tensor.empty()) {
    BACKSTAY_ASSIGN_OR_RETURN(const TensorEntry tensor, FindTensor(spec.manifest, line.tensor));
    spec.begin_bytes = tensor.offset_bytes;
    spec.end_bytes = tensor.offset_bytes + tensor.size_bytes;
    tensor_json = TensorJson(tensor);
  }
  const uint64_t bytes = spec.end_bytes - spec.begin_bytes;
  BACKSTAY_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                            OutputFile::Create(line.file, bytes, line.force));
  spec.write = [&file](uint64_t offset, std::span<const std::byte> chunk) {
    return file->Write(offset, chunk);
  };
  if (console.err_is_terminal) {
    spec.on_progress = [&console, bytes](uint64_t done) {
      console.err << "\r\033[K" << FormatBytes(done) << " of " << FormatBytes(bytes) << std::flush;
    };
  }
  FetchOutcome outcome = PullBytes(opened, spec);
  if (console.err_is_terminal) console.err << "\r\033[K" << std::flush;
  for (const wire::SilentNode& failed : opened.failed()) {
    outcome.problems.push_back(failed.node_id() + ": " + failed.error());
  }
  if (!outcome.status.ok()) {
    std::string text = outcome.status.message();
    for (const std::string& problem : outcome.problems) text += "; " + problem;
    return Status(outcome.status.code(), text);
  }
  BACKSTAY_RETURN_IF_ERROR(file->Publish());
  if (line.tensor.empty()) {
    BACKSTAY_RETURN_IF_ERROR(WriteWhole(ManifestFile(line),
                                        ManifestJson(spec.manifest, opened.digest()).dump(2) + "\n",
                                        line.force));
  }
  View view = Describe(line, spec, opened, outcome.problems);
  if (!tensor_json.is_null()) view.json["contents"] = tensor_json;
  return view;
}

}  // namespace backstay::tools
