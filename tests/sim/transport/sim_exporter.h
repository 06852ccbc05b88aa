#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/executor.h"
#include "tests/sim/transport/sim_transport.h"
#include "transport/transport.h"

namespace backstay::sim {

// The regions that one start of a simulated node serves. See SimNetworkTransport.
class SimExporter : public transport::Exporter {
 public:
  SimExporter(SimNetworkTransport* network, const NodeInstance& node);
  ~SimExporter() override;

  transport::Grant Export(transport::Region region, Deadline expiry,
                          std::function<void()> on_ended) override;
  void Revoke(transport::GrantId id) override;

  // What a reader's proof and range would be answered.
  Status Check(const transport::Grant& grant, uint64_t offset_bytes, uint64_t size_bytes) const;
  // Bytes of a range that Check() has just accepted.
  std::span<const std::byte> Read(transport::GrantId id, uint64_t offset_bytes,
                                  uint64_t size_bytes);
  void OnRelease(const transport::Grant& grant);

 private:
  struct Granted {
    transport::Region region;
    std::string key;
    std::function<void()> on_ended;
    TimerId expiry_timer = kNoTimer;
    bool revoked = false;
  };

  void End(transport::GrantId id);

  SimNetworkTransport* const network_;
  const NodeInstance node_;
  transport::GrantId last_id_ = 0;
  std::map<transport::GrantId, Granted> grants_;
  Lifetime lifetime_;
};

}  // namespace backstay::sim
