#include "base/random.h"
#include "tests/contract/pull/pull_world.h"
#include "tests/sim/transport/sim_transport.h"

namespace backstay::transport {

namespace {

class SimWorld : public PullWorld {
 public:
  SimWorld() : network_(&executor_, &random_) {
    exporter_ = network_.MakeExporter(kOwner);
    puller_ = network_.MakePuller(kReader);
  }
  ~SimWorld() override {
    puller_.reset();
    exporter_.reset();
  }

  Grant Export(Region region, Deadline expiry, std::function<void()> on_ended) override {
    return exporter_->Export(region, expiry, std::move(on_ended));
  }
  bool RunUntil(const std::function<bool()>& predicate) override {
    return executor_.RunUntil(predicate, std::chrono::minutes(1));
  }
  void Settle() override { executor_.RunFor(std::chrono::seconds(1)); }

  void HoldAfter(uint64_t bytes) override {
    hold_at_bytes_ = network_.counters().bytes_moved + bytes;
  }
  bool RunUntilHeld() override {
    const bool reached =
        RunUntil([this] { return network_.counters().bytes_moved >= hold_at_bytes_; });
    network_.SetPartitioned(kOwner.node, kReader.node, true);
    return reached;
  }
  void LetGo() override { network_.SetPartitioned(kOwner.node, kReader.node, false); }
  void Break() override {
    LetGo();
    network_.SetDown(kOwner.node, true);
  }

 private:
  SeededRandom random_{1};
  sim::SimNetworkTransport network_;
  uint64_t hold_at_bytes_ = 0;
};

}  // namespace

WorldFactory SimulatedWorld() {
  return {"Simulated", [] { return std::make_unique<SimWorld>(); }};
}

}  // namespace backstay::transport
