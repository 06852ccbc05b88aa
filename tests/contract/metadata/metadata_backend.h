#pragma once

#include <functional>
#include <memory>
#include <string>

#include "replication/metadata_store.h"
#include "tests/support/manual_executor.h"

namespace backstay::testing {

// One implementation of the metadata store under test: a service with two clients of it. Time is
// the executor's, virtual, also for leases; threads and sockets of the implementation run in real
// time.
class MetadataBackend {
 public:
  virtual ~MetadataBackend() = default;

  ManualExecutor& executor() { return executor_; }
  // `index` is 0 or 1; an embedded store has only itself and returns it for both.
  virtual replication::MetadataStore& client(int index) = 0;
  // Ends the service and starts it on what it made durable. Clients reconnect by themselves or are
  // made anew.
  virtual void Restart() = 0;
  // Puts an empty store in the service's place. False: the store lives in this process, there is
  // nothing to mix up.
  virtual bool Replace() = 0;

 protected:
  ManualExecutor executor_;
};

struct MetadataBackendFactory {
  std::string name;
  std::function<std::unique_ptr<MetadataBackend>()> make;
};

std::unique_ptr<MetadataBackend> MakeMemoryBackend();
std::unique_ptr<MetadataBackend> MakeEmbeddedBackend();
std::unique_ptr<MetadataBackend> MakeGrpcBackend();

}  // namespace backstay::testing
