#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/event_loop.h"
#include "base/executor.h"
#include "base/ids.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/units.h"
#include "transport/tcp/grant_table.h"
#include "transport/tcp/served_connection.h"
#include "transport/transport.h"

namespace backstay::transport {

// Readers that are counted by name; the rest are counted together, under an empty name.
inline constexpr size_t kReadersCountedMax = 1024;

// Asked for in the kernel, which doubles it, for each lane. Small enough that what is copied into
// the socket is still in the shared cache when the reader copies it out: bench/pull_bench takes
// 0.28 CPU seconds per GB with it, and 0.32 to 0.38 with 1 MiB or the kernel's own choice. Two
// lanes still cover 0.3 ms of round trip at 5 GB/s. Less where net.core.wmem_max is less.
inline constexpr uint32_t kSendBufferBytes = 384 * kKiB;

struct TcpExporterOptions {
  StoreId store;
  NodeInstance node;
  std::string listen_address = "127.0.0.1:0";  // A literal with a port; 0: any free one.
  std::string advertised_host;                 // As peers reach it; empty: the listening address.
  uint32_t serving_thread_count = 2;           // Lanes are spread over them.
  uint32_t connection_count_max = 1024;        // More are closed at once.
  uint32_t send_buffer_bytes = kSendBufferBytes;  // 0: as the kernel thinks best.
  // Of base/socket.h, for tests that let it fail as it does in a process without descriptors.
  std::function<Result<std::optional<Accepted>>(int listener_fd)> accept = Accept;
};

struct TcpExporterStats {
  uint64_t grants_open = 0;
  uint64_t connections_open = 0;
  uint64_t connections_refused = 0;         // Over the limit.
  uint64_t readers_refused = 0;             // Wrong hello, wrong proof, broken protocol.
  std::map<NodeId, uint64_t> bytes_served;  // By reader.
};

// Serves this node's grants over TCP: frames as in docs/formats/data_plane.md, grants as in
// ServedConnection.
//
// Thread:  the owning executor, Stats() any. Serving threads of its own move the bytes; a slow
//          reader delays only its own lane.
// Memory:  borrows regions until their grants have ended. Everything queued has a limit.
// Failure: whatever a peer does ends at worst its connection. The destructor closes all
//          connections, ends all grants and posts their `on_ended`; the executor must outlive those
//          tasks.
class TcpExporter : public Exporter {
 public:
  static Result<std::unique_ptr<TcpExporter>> Listen(Executor* executor, Random* random,
                                                     TcpExporterOptions options);
  ~TcpExporter() override;

  Grant Export(Region region, Deadline expiry, std::function<void()> on_ended) override;
  void Revoke(GrantId id) override;

  // Where peers connect to: "host:port".
  const std::string& address() const { return address_; }
  TcpExporterStats Stats() const;

 private:
  // A serving thread and its connections, which nobody else touches.
  struct Server {
    EventLoop loop;
    SystemRandom random;  // For nonces.
    std::map<int, std::unique_ptr<ServedConnection>> connections;
  };

  TcpExporter(Executor* executor, Random* random, TcpExporterOptions options);

  Status Start();
  void ForgetExpiry(GrantId id);
  // On the first serving thread.
  void AcceptConnections();
  void PauseAccepting();
  // On the connection's serving thread.
  void Adopt(Server* server, UniqueFd fd, const std::string& peer_address);
  void OnEvents(Server* server, ServedConnection* connection, uint32_t epoll_events);
  void Close(Server* server, int fd);
  void Sweep(Server* server);

  void CountServed(const NodeId& reader, uint64_t bytes);

  Executor* const executor_;
  Random* const random_;
  const TcpExporterOptions options_;
  std::string address_;
  GrantId last_id_ = 0;
  std::unordered_map<GrantId, TimerId> expiry_timers_;  // Of grants that have not ended.
  GrantTable grants_;
  ServeContext context_;
  UniqueFd listener_;
  std::vector<std::unique_ptr<Server>> servers_;
  size_t next_server_ = 0;        // Of the first serving thread, as is:
  bool accepting_fails_ = false;  // Said once, until it works again.

  mutable std::mutex stats_mutex_;  // Guards what follows.
  TcpExporterStats stats_;

  Lifetime lifetime_;
};

}  // namespace backstay::transport
