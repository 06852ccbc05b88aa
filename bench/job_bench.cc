// One rank of job_bench.py: a trainer with nothing but state. It obeys lines on its standard input
// and answers each with one line of JSON on its standard output, over libbackstay's public API
// only. All instants are nanoseconds of CLOCK_MONOTONIC, so that the driver can compare ranks.
//
//   register                   claims the shard
//   reconfigure UUID           decides, fetches, reads into the second buffer, finishes
//   fence                      as after a fault of the communicator
//   new_attempt                a token for all ranks' reconfigure
//   memcpy THREADS AT          the state into the second buffer, at instant AT
//   save STEP THREADS AT       changes the state a little, then saves it and waits for each stage
//   overlap STEP THREADS AT MS the same, but computes for MS milliseconds between start and wait
//   read THREADS               the newest committed shard into the second buffer
//   finish                     ends the job and drops its state
//   quit
#include <CLI/CLI.hpp>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "backstay.hpp"
#include "base/hash.h"
#include "base/units.h"

namespace {

using backstay::Client;
using backstay::Decision;
using backstay::Save;
using backstay::Shard;
using nlohmann::json;
using std::chrono::steady_clock;

constexpr uint32_t kTensorCount = 32;
constexpr uint32_t kStageTimeoutMs = 60'000;

struct Options {
  std::string service, job;
  uint32_t rank = 0, world_size = 1, replicas = 1, read_threads = 2;
  uint64_t mib = 512;
};

int64_t Now() { return steady_clock::now().time_since_epoch().count(); }

void SleepUntil(int64_t at) {
  std::this_thread::sleep_until(steady_clock::time_point(std::chrono::nanoseconds(at)));
}

// Ends the process: a measurement of something that failed is worth nothing.
void Check(const backstay::Status& status, const std::string& doing) {
  if (status.ok()) return;
  std::cout << json{{"error", doing + ": " + status.ToString()}}.dump() << std::endl;
  std::_Exit(1);
}

template <typename T>
T Take(backstay::Result<T> result, const std::string& doing) {
  Check(result.status(), doing);
  return std::move(result).value();
}

std::string DigestOf(const std::vector<float>& values) {
  return backstay::HashBytes(std::as_bytes(std::span(values))).ToHex();
}

class Rank {
 public:
  explicit Rank(const Options& options)
      : options_(options),
        client_(Take(Client::Connect(options.service), "connecting")),
        state_(options.mib * backstay::kMiB / sizeof(float)),
        second_(state_.size(), 1.0F) {  // Touched: a trainer's memory is warm.
    std::mt19937 random(options.rank + 1);
    std::uniform_real_distribution<float> weight(-1, 1);
    for (float& value : state_) value = weight(random);
  }

  json Register() {
    backstay::RegisterOptions claim = Client::DefaultRegisterOptions();
    claim.job = options_.job.c_str();
    claim.token = "bench";
    claim.rank = options_.rank;
    claim.world_size = options_.world_size;
    claim.replicas = options_.replicas;
    claim.versions = 1;
    claim.size_bytes = Take(Client::Plan(Tensors()), "planning");
    const auto registration = Take(client_.Register(claim), "registering");
    json replicas = json::array();
    for (uint32_t i = 0; i < registration.replica_node_count; ++i)
      replicas.push_back(std::string(registration.replica_nodes[i]));
    return {{"replica_nodes", replicas}, {"registered", Now()}};
  }

  json Fence() {
    Check(client_.Fence("a peer is lost"), "fencing");
    return {{"fenced", Now()}};
  }

  json Finish() {
    Check(client_.Finish(/*drop_state=*/true), "finishing");
    return {{"finished", Now()}};
  }

  json NewAttempt() { return {{"uuid", Take(client_.NewAttempt(), "asking for an attempt")}}; }

  json Reconfigure(const std::string& uuid) {
    backstay::DecideOptions decide = Client::DefaultDecideOptions();
    decide.uuid = uuid.c_str();
    decide.rank = options_.rank;
    decide.world_size = options_.world_size;
    const int64_t called = Now();
    const Decision decision = Take(client_.Decide(decide), "deciding");
    json reply = {{"called", called},
                  {"decided", Now()},
                  {"fresh", decision.fresh != 0},
                  {"local", true},
                  {"step", decision.base_step}};
    std::optional<Shard> shard;
    if (!decision.fresh) {
      shard = Take(client_.Fetch(decision), "fetching");
      reply["fetched"] = Now();
      ReadAll(*shard, options_.read_threads);
      reply["read"] = Now();
      const auto info = Take(shard->Info(), "asking about the shard");
      reply["local"] = info.local != 0;
      reply["bytes"] = info.used_bytes;
    }
    const auto next = Take(client_.FinishRestore(decision, {}, 0), "finishing the restore");
    if (next) Check({backstay::Code::kUnavailable, "another attempt was needed"}, "restoring");
    reply["finished"] = Now();
    if (shard) reply["digest"] = DigestOf(second_);
    return reply;
  }

  json Memcpy(uint32_t threads, int64_t at) {
    std::barrier start(threads + 1);
    std::vector<std::jthread> copying;
    const size_t share = state_.size() / threads;
    for (uint32_t i = 0; i < threads; ++i) {
      copying.emplace_back([&, i] {
        start.arrive_and_wait();
        std::memcpy(second_.data() + i * share, state_.data() + i * share, share * sizeof(float));
      });
    }
    SleepUntil(at);
    const int64_t begin = Now();
    start.arrive_and_wait();
    copying.clear();
    return {{"begin", begin}, {"end", Now()}};
  }

  // `compute_ms`: 0 waits at once.
  json SaveStep(uint64_t step, uint32_t threads, int64_t at, int64_t compute_ms) {
    for (size_t i = 0; i < state_.size(); i += 1024) state_[i] = static_cast<float>(step + i);
    const std::string digest = DigestOf(state_);
    SleepUntil(at);
    json reply = {{"begin", Now()}};
    Save save = Take(client_.Begin(step, kStageTimeoutMs), "beginning the save");
    for (const backstay::Tensor& tensor : Tensors()) Check(save.AddTensor(tensor), "adding");
    reply["start_called"] = Now();
    Check(save.StartCopy(threads), "starting the copy");
    reply["started"] = Now();
    if (compute_ms > 0) Compute(Now() + compute_ms * 1'000'000);
    reply["wait_called"] = Now();
    Check(save.WaitCopied(kStageTimeoutMs), "waiting for the copy");
    reply["copied"] = Now();
    Check(save.WaitSealed(kStageTimeoutMs), "waiting for the seal");
    reply["sealed"] = Now();
    Check(save.WaitProtected(kStageTimeoutMs), "waiting for protection");
    reply["protected"] = Now();
    Check(save.WaitCommitted(kStageTimeoutMs), "waiting for the commit");
    reply["committed"] = Now();
    const auto stats = Take(save.Stats(), "asking about the save");
    reply["copy_ns"] = stats.copy_ns;
    reply["bytes"] = stats.used_bytes;
    reply["digest"] = digest;
    return reply;
  }

  json ReadNewest(uint32_t threads) {
    const int64_t begin = Now();
    Shard shard = Take(client_.OpenShard({}), "opening the newest shard");
    const int64_t opened = Now();
    ReadAll(shard, threads);
    const int64_t end = Now();
    const auto info = Take(shard.Info(), "asking about the shard");
    return {{"begin", begin},           {"opened", opened},         {"end", end},
            {"local", info.local != 0}, {"bytes", info.used_bytes}, {"digest", DigestOf(second_)}};
  }

 private:
  std::span<float> Part(std::vector<float>& values, uint32_t index) const {
    const size_t share = values.size() / kTensorCount;
    return std::span(values).subspan(index * share, share);
  }
  std::vector<backstay::Tensor> Tensors() {
    std::vector<backstay::Tensor> tensors;
    for (uint32_t i = 0; i < kTensorCount; ++i) {
      const std::span<float> part = Part(state_, i);
      tensors.push_back({.name = "layer" + std::to_string(i),
                         .dtype = backstay::Dtype::kFp32,
                         .data = part.data(),
                         .shape = {part.size()}});
    }
    return tensors;
  }
  void ReadAll(Shard& shard, uint32_t threads) {
    for (uint32_t i = 0; i < kTensorCount; ++i) {
      Check(shard.Read("layer" + std::to_string(i), backstay::MemoryOf(Part(second_, i)),
                       {.thread_count = threads}),
            "reading");
    }
  }
  // One thread's arithmetic in its own cache, as a training step has on the host.
  static void Compute(int64_t until) {
    std::vector<float> values(2048, 1.5F);
    while (Now() < until) {
      for (float& value : values) value = value * 0.999F + 0.001F;
      asm volatile("" : : "r"(values.data()) : "memory");
    }
  }

  const Options options_;
  Client client_;
  std::vector<float> state_;
  std::vector<float> second_;
};

json Obey(Rank& rank, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  if (verb == "register") return rank.Register();
  if (verb == "fence") return rank.Fence();
  if (verb == "finish") return rank.Finish();
  if (verb == "new_attempt") return rank.NewAttempt();
  if (verb == "reconfigure") {
    std::string uuid;
    words >> uuid;
    return rank.Reconfigure(uuid);
  }
  uint64_t step = 0;
  uint32_t threads = 0;
  int64_t at = 0;
  int64_t compute_ms = 0;
  if (verb == "memcpy" && words >> threads >> at && threads > 0) return rank.Memcpy(threads, at);
  if (verb == "read" && words >> threads && threads > 0) return rank.ReadNewest(threads);
  if (verb == "save" && words >> step >> threads >> at) return rank.SaveStep(step, threads, at, 0);
  if (verb == "overlap" && words >> step >> threads >> at >> compute_ms)
    return rank.SaveStep(step, threads, at, compute_ms);
  Check({backstay::Code::kInvalidArgument, "not understood: " + line}, "reading a line");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("One rank of job_bench.py");
  app.add_option("--service", options.service, "the node's socket")->required();
  app.add_option("--job", options.job, "name of the job")->required();
  app.add_option("--rank", options.rank, "rank");
  app.add_option("--world-size", options.world_size, "ranks");
  app.add_option("--replicas", options.replicas, "copies on other nodes")->check(CLI::Range(0, 3));
  app.add_option("--read-threads", options.read_threads, "threads that read a restored shard")
      ->check(CLI::Range(1, 64));
  app.add_option("--mib", options.mib, "size of the state")->check(CLI::Range(1, 65536));
  CLI11_PARSE(app, argc, argv);

  Rank rank(options);
  std::cout << json{{"ready", true}}.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";)
    std::cout << Obey(rank, line).dump() << std::endl;
  return 0;
}
