#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "replication/peer.pb.h"

namespace backstay::tools {

// The service's figures for Prometheus, over HTTP at /metrics. Names are stable:
// docs/operations.md.
//
// Thread:  Update() from the control executor; scrapes are answered by threads of the HTTP server
//          and see the figures of the last Update().
class Metrics {
 public:
  // kUnavailable: the address is in use.
  static Result<std::unique_ptr<Metrics>> Listen(const std::string& address,
                                                 const std::string& node_id);
  ~Metrics();

  void Update(const replication::wire::NodeStatusReply& status);

 private:
  struct Figures;
  explicit Metrics(std::unique_ptr<Figures> figures);

  std::unique_ptr<Figures> figures_;
};

}  // namespace backstay::tools
