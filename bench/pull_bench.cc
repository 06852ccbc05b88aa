// Pulls a region over loopback, checksums on.
//
//   pull_bench [--mib 512] [--lanes 2] [--repeat 5]
//
// Prints one line of JSON: the medians in GB/s and their ratio (docs/performance.md).

#include <sys/mman.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/units.h"
#include "transport/tcp/tcp_exporter.h"
#include "transport/tcp/tcp_puller.h"

namespace backstay::transport {
namespace {

struct BenchOptions {
  uint64_t mib = 512;
  uint32_t chunk_kib = 1024;
  uint32_t lanes = 2;
  int repeat = 5;
  uint32_t send_buffer_kib = TcpExporterOptions().send_buffer_bytes / kKiB;
  uint32_t receive_buffer_kib = 0;
};

// Prefaulted shared memory, as slots are.
class Memory {
 public:
  explicit Memory(uint64_t bytes) : fd_(memfd_create("pull_bench", MFD_CLOEXEC)) {
    BACKSTAY_CHECK(fd_.valid() && ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0, "memfd");
    void* const at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), 0);
    BACKSTAY_CHECK(at != MAP_FAILED, "mmap");
    bytes_ = {static_cast<std::byte*>(at), bytes};
  }
  ~Memory() { munmap(bytes_.data(), bytes_.size()); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

// Of all threads of this process, in user and kernel: the figure that a busy machine disturbs
// least.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

class PullBench {
 public:
  explicit PullBench(const BenchOptions& options)
      : chunk_bytes_(options.chunk_kib * 1024),
        source_(options.mib * kMiB),
        target_(options.mib * kMiB) {
    SeededRandom random(1);
    for (size_t i = 0; i < source_.bytes().size(); i += 8) {
      const uint64_t word = random.Next();
      std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, source_.bytes().begin() + i);
    }
    for (size_t at = 0; at < source_.bytes().size(); at += chunk_bytes_) {
      const size_t size = std::min<size_t>(chunk_bytes_, source_.bytes().size() - at);
      expected_.push_back(HashBytes(std::span<const std::byte>(source_.bytes().subspan(at, size))));
    }
    TcpExporterOptions exporter;
    exporter.store = StoreId("bench");
    exporter.node = {NodeId("owner"), Incarnation(1)};
    exporter.send_buffer_bytes = options.send_buffer_kib * 1024;
    TcpPullerOptions puller;
    puller.store = exporter.store;
    puller.node = {NodeId("reader"), Incarnation(1)};
    puller.lane_count = options.lanes;
    puller.receive_buffer_bytes = options.receive_buffer_kib * 1024;
    exporter_ = TcpExporter::Listen(&loop_, &random_, exporter).value();
    puller_ = std::make_unique<TcpPuller>(&loop_, puller);
    grant_ = exporter_->Export({.bytes = source_.bytes()}, kNoDeadline, [] {});
    loop_.Start("bench");
  }
  ~PullBench() {
    loop_.Stop();
    puller_.reset();
    exporter_.reset();
  }

  // GB/s of one pull, from the call to the completion on the executor.
  double Run() {
    std::promise<PullResult> done;
    PullRequest request;
    request.source = grant_;
    request.target = target_.bytes();
    request.chunk_bytes = chunk_bytes_;
    request.expected = expected_;
    const double cpu_begin = CpuSeconds();
    const Instant begin = clock_.Now();
    loop_.Post([&] {
      puller_->Pull(std::move(request),
                    [&](PullResult result) { done.set_value(std::move(result)); });
    });
    const PullResult result = done.get_future().get();
    const Duration took = clock_.Now() - begin;
    cpu_seconds_per_gb_ =
        (CpuSeconds() - cpu_begin) / (static_cast<double>(target_.bytes().size()) / 1e9);
    const auto verified =
        std::count(result.chunks.begin(), result.chunks.end(), ChunkOutcome::kVerified);
    BACKSTAY_CHECK(result.status.ok() && static_cast<size_t>(verified) == result.chunks.size(),
                   "the pull failed: " + result.status.ToString());
    return static_cast<double>(target_.bytes().size()) / static_cast<double>(took.count());
  }

  // Sender's and receiver's together, of the last Run().
  double cpu_seconds_per_gb() const { return cpu_seconds_per_gb_; }

 private:
  const uint32_t chunk_bytes_;
  double cpu_seconds_per_gb_ = 0;
  SystemClock clock_;
  SystemRandom random_;
  Memory source_;
  Memory target_;
  std::vector<Hash128> expected_;
  EventLoop loop_;
  std::unique_ptr<TcpExporter> exporter_;
  std::unique_ptr<TcpPuller> puller_;
  Grant grant_;
};

int Main(const BenchOptions& options) {
  PullBench bench(options);
  bench.Run();  // Connects the lanes and warms the caches.
  std::vector<double> pull;
  std::vector<double> cpu;
  for (int i = 0; i < options.repeat; ++i) {
    pull.push_back(bench.Run());
    cpu.push_back(bench.cpu_seconds_per_gb());
  }
  const nlohmann::json report = {{"bytes", options.mib * kMiB},
                                 {"lanes", options.lanes},
                                 {"pull_gb_per_s", Median(pull)},
                                 {"cpu_s_per_gb", Median(cpu)}};
  std::cout << report.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace backstay::transport

int main(int argc, char** argv) {
  backstay::transport::BenchOptions options;
  CLI::App app("Pulls over loopback TCP, checksums on.");
  app.add_option("--mib", options.mib, "size of the region")->check(CLI::Range(1, 65536));
  app.add_option("--chunk-kib", options.chunk_kib, "size of a chunk")->check(CLI::Range(4, 65536));
  app.add_option("--lanes", options.lanes, "connections")->check(CLI::Range(1, 64));
  app.add_option("--repeat", options.repeat, "medians of so many")->check(CLI::Range(1, 1000));
  app.add_option("--send-buffer-kib", options.send_buffer_kib, "0: as the kernel thinks best");
  app.add_option("--receive-buffer-kib", options.receive_buffer_kib,
                 "0: as the kernel thinks best");
  CLI11_PARSE(app, argc, argv);
  return backstay::transport::Main(options);
}
