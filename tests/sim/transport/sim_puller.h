#pragma once

#include <map>

#include "base/executor.h"
#include "tests/sim/transport/sim_transport.h"
#include "transport/transport.h"

namespace backstay::sim {

// The pulls of one start of a simulated node. See SimNetworkTransport.
class SimPuller : public transport::Puller {
 public:
  SimPuller(SimNetworkTransport* network, const NodeInstance& node);
  ~SimPuller() override;

  transport::PullId Pull(transport::PullRequest request, transport::PullCompletion done) override;
  void Cancel(transport::PullId id) override;
  void Release(const transport::Grant& grant) override;

  // Pulls that wait for a silent source try again.
  void RetryWaiting();

 private:
  struct ActivePull {
    transport::PullRequest request;
    transport::PullResult result;
    transport::PullCompletion done;
    uint64_t next_chunk = 0;
    TimerId deadline_timer = kNoTimer;
    TimerId stall_timer = kNoTimer;  // Set while the source is silent.
  };

  void StartChunk(transport::PullId id);
  void OnChunkArrived(transport::PullId id);
  void WaitForSource(transport::PullId id, ActivePull* pull);
  // Moves one chunk's bytes and records what came of it.
  void TakeChunk(ActivePull* pull, std::span<const std::byte> source);
  void Finish(transport::PullId id, Status status);

  SimNetworkTransport* const network_;
  const NodeInstance node_;
  transport::PullId last_id_ = 0;
  std::map<transport::PullId, ActivePull> pulls_;
  Lifetime lifetime_;
};

}  // namespace backstay::sim
