// The blocking save of host tensors beside a plain memcpy of the same bytes into warm memory with
// the same threads: what a trainer that waits for the copy at once would see. Rounds alternate, so
// that both meet the same machine.
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "client/copy_engine.h"
#include "client/copy_threads.h"

namespace {

using namespace backstay;          // NOLINT(google-build-using-namespace)
using namespace backstay::client;  // NOLINT(google-build-using-namespace)
using std::chrono::steady_clock;

struct Options {
  uint64_t mib = 512;
  uint32_t threads = 2;
  int rounds = 7;
};

std::shared_ptr<const MappedSlot> MakeSlot(uint64_t size_bytes) {
  auto slot = std::make_shared<MappedSlot>();
  slot->geometry = {.size_bytes = size_bytes, .chunk_bytes = kChunkBytesDefault};
  for (const auto& [mapping, bytes] : {std::pair(&slot->data, size_bytes),
                                       std::pair(&slot->control, slot->geometry.ControlBytes())}) {
    const int fd = ::memfd_create("save-bench", MFD_CLOEXEC);
    BACKSTAY_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0, "memfd");
    *mapping = Mapping::Map(fd, bytes, /*writable=*/true);
    ::close(fd);
    BACKSTAY_CHECK(mapping->valid(), "mmap");
    std::memset(mapping->data(), 1, bytes);  // Touched once, as the service does.
  }
  SlotControlWriter(slot->page(), slot->geometry).Reset(1);
  return slot;
}

double MillisecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

double Save(const std::shared_ptr<const MappedSlot>& slot, const std::vector<CopyPiece>& pieces,
            const Options& options, CopyThreads& threads) {
  SlotControlWriter(slot->page(), slot->geometry).Reset(1);
  const auto start = steady_clock::now();
  auto job =
      std::make_shared<CopyJob>(slot, slot->geometry.size_bytes, pieces, [](const Status&) {});
  BACKSTAY_CHECK(threads.Run(options.threads, [job] { job->Work(); }).ok(), "no threads");
  job->Wait(CopyJob::kAllGroups, steady_clock::time_point::max());
  return MillisecondsSince(start);
}

// Each thread copies its share in one call.
double Memcpy(std::byte* target, const std::byte* source, uint64_t bytes, const Options& options,
              CopyThreads& threads) {
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    uint32_t next = 0;
    uint32_t left = 0;
  };
  auto state = std::make_shared<State>();
  state->left = options.threads;
  const uint64_t share = bytes / options.threads;
  const auto start = steady_clock::now();
  const Status running = threads.Run(options.threads, [=] {
    std::unique_lock lock(state->mutex);
    const uint64_t at = state->next++ * share;
    lock.unlock();
    std::memcpy(target + at, source + at, share);
    lock.lock();
    if (--state->left == 0) state->done.notify_all();
  });
  BACKSTAY_CHECK(running.ok(), "no threads");
  std::unique_lock lock(state->mutex);
  state->done.wait(lock, [&] { return state->left == 0; });
  return MillisecondsSince(start);
}

std::vector<CopyPiece> Pieces(std::byte* data, uint64_t bytes, uint64_t piece_bytes) {
  std::vector<CopyPiece> pieces;
  for (uint64_t at = 0; at < bytes; at += piece_bytes) {
    const uint64_t shape[] = {std::min(piece_bytes, bytes - at)};
    pieces.push_back(
        {.offset_bytes = at, .memory = *StridedMemory::Make("piece", data + at, 1, shape, {})});
  }
  return pieces;
}

// One matrix, transposed in blocks of 256 columns of fp32.
std::vector<CopyPiece> Strided(std::byte* data, uint64_t bytes) {
  const uint64_t rows = bytes / 4096;
  const uint64_t shape[] = {4, rows, 256};
  const int64_t strides[] = {256, 1024, 1};
  return {{.memory = *StridedMemory::Make("strided", data, 4, shape, strides)}};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Blocking save of host tensors beside memcpy");
  app.add_option("--mib", options.mib, "size of the state")->check(CLI::Range(1, 65536));
  app.add_option("--threads", options.threads, "copy threads")->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "rounds, of which the median counts")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  const uint64_t bytes = options.mib * kMiB;
  std::vector<std::byte> source(bytes, std::byte{7});
  std::vector<std::byte> warm(bytes, std::byte{1});
  const auto slot = MakeSlot(bytes);
  CopyThreads threads;
  nlohmann::json results = nlohmann::json::array();
  const std::vector<std::pair<const char*, std::vector<CopyPiece>>> shapes = {
      {"one tensor", Pieces(source.data(), bytes, bytes)},
      {"tensors of 3 MiB and 64 B", Pieces(source.data(), bytes, 3 * kMiB + 64)},
      {"tensors of 10 KiB", Pieces(source.data(), bytes, 10 * kKiB)},
      {"a strided tensor, runs of 1 KiB", Strided(source.data(), bytes)}};
  for (const auto& [name, pieces] : shapes) {
    std::vector<double> save_ms;
    std::vector<double> memcpy_ms;
    for (int round = 0; round <= options.rounds; ++round) {
      const double plain = Memcpy(warm.data(), source.data(), bytes, options, threads);
      const double saved = Save(slot, pieces, options, threads);
      if (round == 0) continue;  // Warms up.
      memcpy_ms.push_back(plain);
      save_ms.push_back(saved);
    }
    const double megabytes = static_cast<double>(bytes) / 1e6;
    results.push_back({{"state", name},
                       {"mib", options.mib},
                       {"threads", options.threads},
                       {"memcpy_ms", Median(memcpy_ms)},
                       {"save_ms", Median(save_ms)},
                       {"memcpy_gb_per_s", megabytes / Median(memcpy_ms)},
                       {"save_gb_per_s", megabytes / Median(save_ms)},
                       {"ratio", Median(save_ms) / Median(memcpy_ms)}});
  }
  std::printf("%s\n", results.dump(2).c_str());
  return 0;
}
