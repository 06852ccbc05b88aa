#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "replication/peer.pb.h"

namespace backstay::tools {

// The service's figures for Prometheus, over HTTP at /metrics. Names are stable:
// docs/operations.md.
//
// Memory:  one series of each kind for each peer and job of the last Update(): those of a job that
//          the node has forgotten go with it.
// Thread:  Update() from the control executor; scrapes are answered by threads of the HTTP server
//          and see the figures of the last Update().
class Metrics {
 public:
  // kUnavailable: the address is in use.
  static Result<std::unique_ptr<Metrics>> Listen(const std::string& address,
                                                 const std::string& node_id);
  ~Metrics();

  void Update(const replication::wire::NodeStatusReply& status);
  // That is listened on; for an address with port 0.
  int port() const;

 private:
  struct Figures;
  void UpdateJobs(const replication::wire::NodeStatusReply& status);

  explicit Metrics(std::unique_ptr<Figures> figures);

  std::unique_ptr<Figures> figures_;
};

}  // namespace backstay::tools
