#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/units.h"
#include "tests/support/manual_executor.h"
#include "transport/transport.h"

namespace backstay::transport {

inline const NodeInstance kOwner{NodeId("owner"), Incarnation(3)};
inline const NodeInstance kReader{NodeId("reader"), Incarnation(7)};

// One owner, one reader, and the network between them, of some transport. The suite knows only
// this.
class PullWorld {
 public:
  virtual ~PullWorld() = default;

  Exporter& exporter() { return *exporter_; }
  Puller& puller() { return *puller_; }
  testing::ManualExecutor& executor() { return executor_; }
  void DestroyExporter() { exporter_.reset(); }
  void DestroyPuller() { puller_.reset(); }

  // Exports a region so that its grant leads through the network.
  virtual Grant Export(Region region, Deadline expiry, std::function<void()> on_ended) = 0;
  // Runs the executor until `predicate` holds. False: it did not in any sensible time.
  [[nodiscard]] virtual bool RunUntil(const std::function<bool()>& predicate) = 0;
  // Lets everything happen that still can.
  virtual void Settle() = 0;

  // The network falls silent once about so many bytes have arrived at the reader.
  virtual void HoldAfter(uint64_t bytes) = 0;
  [[nodiscard]] virtual bool RunUntilHeld() = 0;
  virtual void LetGo() = 0;
  // Every connection breaks and none can be made.
  virtual void Break() = 0;

 protected:
  testing::ManualExecutor executor_;
  std::unique_ptr<Exporter> exporter_;
  std::unique_ptr<Puller> puller_;
};

struct WorldFactory {
  std::string name;
  std::function<std::unique_ptr<PullWorld>()> make;
};

WorldFactory SimulatedWorld();
WorldFactory TcpWorld();

// How printed in test names and messages.
inline std::ostream& operator<<(std::ostream& out, const WorldFactory& factory) {
  return out << factory.name;
}

}  // namespace backstay::transport
