#include "base/random.h"
#include "tests/contract/pull/lossy_relay.h"
#include "tests/contract/pull/pull_world.h"
#include "transport/tcp/tcp_exporter.h"
#include "transport/tcp/tcp_puller.h"

namespace backstay::transport {

namespace {

// Real time that a test may take before it is called stuck; nothing waits for it to pass.
constexpr Duration kStuckTimeout = std::chrono::seconds(30);
// Shorter than in production, so that the test of a silent peer is quick.
constexpr Duration kTestStallTimeout = std::chrono::seconds(3);

class TcpPullWorld : public PullWorld {
 public:
  TcpPullWorld() {
    const StoreId store("store");
    TcpExporterOptions options;
    options.store = store;
    options.node = kOwner;
    auto exporter = TcpExporter::Listen(&executor_, &random_, options).value();
    relay_ = std::make_unique<LossyRelay>(exporter->address());
    exporter_ = std::move(exporter);
    puller_ = std::make_unique<TcpPuller>(
        &executor_,
        TcpPullerOptions{.store = store, .node = kReader, .stall_timeout = kTestStallTimeout});
  }

  Grant Export(Region region, Deadline expiry, std::function<void()> on_ended) override {
    Grant grant = exporter_->Export(region, expiry, std::move(on_ended));
    grant.address = relay_->address();
    return grant;
  }
  // Virtual time stands still; what the lanes and serving threads post runs.
  bool RunUntil(const std::function<bool()>& predicate) override {
    return executor_.RunUntilPosted(predicate, kStuckTimeout);
  }
  void Settle() override {
    LetGo();
    executor_.RunUntilIdle();
    puller_.reset();  // Waits for the lanes' threads: nothing can be written after it.
    executor_.RunUntilIdle();
  }

  void HoldAfter(uint64_t bytes) override { relay_->HoldAfter(bytes); }
  bool RunUntilHeld() override {
    const auto give_up = std::chrono::steady_clock::now() + kStuckTimeout;
    while (!relay_->holding() && std::chrono::steady_clock::now() < give_up) {
      executor_.RunUntilIdle();
      std::this_thread::yield();
    }
    return relay_->holding();
  }
  void LetGo() override { relay_->LetGo(); }
  void Break() override { relay_->Break(); }

 private:
  SeededRandom random_{1};
  std::unique_ptr<LossyRelay> relay_;
};

}  // namespace

WorldFactory TcpWorld() {
  return {"Tcp", [] { return std::make_unique<TcpPullWorld>(); }};
}

}  // namespace backstay::transport
