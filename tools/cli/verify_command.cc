// `backstay verify`.

#include <map>
#include <set>

#include "base/units.h"
#include "tools/cli/commands.h"
#include "tools/cli/names.h"
#include "tools/cli/table.h"

namespace backstay::tools {
namespace {

bool IsGood(const wire::VerifyProgress& answer) {
  return answer.error().empty() && answer.bad_chunks().empty();
}

std::string ResultText(const wire::VerifyProgress& answer) {
  if (!answer.error().empty()) return ShowText(answer.error());
  if (answer.bad_chunks().empty()) return "good";
  std::string text = Count(static_cast<uint64_t>(answer.bad_chunks_size()), "bad chunk") + ":";
  for (const uint32_t chunk : answer.bad_chunks()) text += " " + std::to_string(chunk);
  return text;
}

}  // namespace

View ShowVerify(const CommandLine& line, const std::vector<wire::VerifyProgress>& answers) {
  View view;
  Json replicas = Json::array();
  Table table({">RANK", "SHARD", "NODE", ">CHUNKS", ">BYTES", "RESULT"});
  std::map<std::pair<uint32_t, std::string>, uint32_t> good_copies;
  uint32_t wanted = 0;
  uint64_t generation = line.generation;
  size_t bad = 0;
  for (const wire::VerifyProgress& answer : answers) {
    wanted = std::max(wanted, answer.wanted_replicas());
    generation = answer.generation();
    bad += IsGood(answer) ? 0 : 1;
    const bool has_shard = !answer.shard_id().empty();
    const bool has_rank = has_shard || answer.no_holder();
    if (has_shard) {
      good_copies[{answer.rank(), answer.shard_id()}] += IsGood(answer) ? 1 : 0;
    }
    replicas.push_back(
        {{"shard", has_shard ? Json(ShowName(answer.shard_id())) : Json()},
         {"rank", has_rank ? Json(answer.rank()) : Json()},
         {"node", answer.node_id().empty() ? Json() : Json(ShowName(answer.node_id()))},
         {"ok", IsGood(answer)},
         {"chunks", answer.chunks()},
         {"bad_chunks", answer.bad_chunks()},
         {"bytes", answer.bytes()},
         {"error", answer.error().empty() ? Json() : Json(ShowText(answer.error()))}});
    table.Add({has_rank ? std::to_string(answer.rank()) : "-",
               has_shard ? ShowName(answer.shard_id()) : "-",
               answer.node_id().empty() ? "-" : ShowName(answer.node_id()),
               std::to_string(answer.chunks()), FormatBytes(answer.bytes()), ResultText(answer)});
  }
  Json short_of = Json::array();
  std::string short_text;
  for (const auto& [shard, copies] : good_copies) {
    if (copies >= wanted) continue;
    short_of.push_back({{"shard", ShowName(shard.second)},
                        {"rank", shard.first},
                        {"good", copies},
                        {"wanted", wanted}});
    short_text += "shard " + ShowName(shard.second) + " has " + std::to_string(copies) + " of " +
                  std::to_string(wanted) + " good copies\n";
  }
  const bool ok = bad == 0 && short_of.empty() && !answers.empty();
  view.json = {{"job", ShowName(line.job)}, {"generation", generation},
               {"step", line.step},         {"ok", ok},
               {"replicas", replicas},      {"too_few", short_of}};
  view.text = (answers.empty() ? "no node holds a shard of it\n" : table.Render()) + short_text;
  view.text += ok ? "every replica is good\n" : "";
  view.exit_code = ok ? kExitFine : kExitData;
  return view;
}

Result<View> RunVerify(const CommandLine& line, const Console& console, AdminClient& client) {
  wire::VerifyRequest request;
  request.set_job(line.job);
  request.set_step(line.step);
  request.set_generation(line.generation);
  std::vector<wire::VerifyProgress> answers;
  uint64_t bytes = 0;
  const Status status = client.Verify(request, [&](const wire::VerifyProgress& answer) {
    answers.push_back(answer);
    bytes += answer.bytes();
    if (!console.err_is_terminal) return;
    console.err << "\r\033[K" << answer.replicas_done() << " of " << answer.replicas_total()
                << " replicas, " << FormatBytes(bytes) << std::flush;
  });
  if (console.err_is_terminal) console.err << "\r\033[K" << std::flush;
  if (!status.ok()) return status;
  return ShowVerify(line, answers);
}

}  // namespace backstay::tools
