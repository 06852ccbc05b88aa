#include "transport/tcp/tcp_exporter.h"

#include <sys/epoll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/socket.h"
#include "transport/tcp/tcp_puller.h"

namespace backstay::transport {

static_assert(kConnectionIdleTimeout > kLaneIdleTimeout, "the reader closes an idle lane first");

namespace {

// How often connections are looked at for silence.
constexpr Duration kSweepInterval = std::chrono::seconds(1);
// How long accepting rests when the process has no descriptor left.
constexpr Duration kAcceptRest = std::chrono::milliseconds(100);

}  // namespace

Result<std::unique_ptr<TcpExporter>> TcpExporter::Listen(Executor* executor, Random* random,
                                                         TcpExporterOptions options) {
  std::unique_ptr<TcpExporter> exporter(new TcpExporter(executor, random, std::move(options)));
  BACKSTAY_RETURN_IF_ERROR(exporter->Start());
  return exporter;
}

TcpExporter::TcpExporter(Executor* executor, Random* random, TcpExporterOptions options)
    : executor_(executor), random_(random), options_(std::move(options)) {
  context_.store = options_.store;
  context_.node = options_.node;
  context_.grants = &grants_;
  context_.on_served = [this](const NodeId& reader, uint64_t bytes) { CountServed(reader, bytes); };
  context_.on_refused = [this](StatusCode) {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.readers_refused;
  };
}

Status TcpExporter::Start() {
  BACKSTAY_ASSIGN_OR_RETURN(const HostPort endpoint, HostPort::Parse(options_.listen_address));
  BACKSTAY_ASSIGN_OR_RETURN(const SocketAddress literal, ParseLiteral(endpoint));
  BACKSTAY_ASSIGN_OR_RETURN(Listener listener, ListenTcp(literal));
  listener_ = std::move(listener.fd);
  const std::string host =
      options_.advertised_host.empty() ? endpoint.host : options_.advertised_host;
  address_ = HostPort{host, listener.address.port()}.ToString();

  const uint32_t server_count = std::max<uint32_t>(options_.serving_thread_count, 1);
  for (uint32_t i = 0; i < server_count; ++i) servers_.push_back(std::make_unique<Server>());
  BACKSTAY_RETURN_IF_ERROR(servers_.front()->loop.WatchFd(
      listener_.get(), EPOLLIN, [this](uint32_t) { AcceptConnections(); }));
  for (uint32_t i = 0; i < server_count; ++i) {
    Server* const server = servers_[i].get();
    server->loop.RunAfter(kSweepInterval, [this, server] { Sweep(server); });
    server->loop.Start("data-serve-" + std::to_string(i));
  }
  return Status::Ok();
}

TcpExporter::~TcpExporter() {
  for (const auto& server : servers_) server->loop.Stop();
  // No thread is left that could touch a region, so every grant ends here and now.
  servers_.clear();
  grants_.RevokeAll();
}

Grant TcpExporter::Export(Region region, Deadline expiry, std::function<void()> on_ended) {
  Grant grant;
  grant.id = ++last_id_;
  grant.owner = options_.node;
  grant.address = address_;
  grant.key = random_->Bytes(kGrantKeyBytes);
  grant.size_bytes = region.bytes.size();
  if (expiry != kNoDeadline) {
    expiry_timers_[grant.id] =
        executor_->RunAt(expiry, lifetime_.Wrap([this, id = grant.id] { Revoke(id); }));
  }
  auto ended = [on_ended = std::move(on_ended),
                forget = lifetime_.Wrap([this, id = grant.id] { ForgetExpiry(id); })]() mutable {
    forget();
    on_ended();
  };
  grants_.Add(
      std::make_shared<ServedRegion>(grant.id, region, grant.key, executor_, std::move(ended)));
  return grant;
}

void TcpExporter::Revoke(GrantId id) { grants_.Revoke(id); }

void TcpExporter::ForgetExpiry(GrantId id) {
  const auto timer = expiry_timers_.find(id);
  if (timer == expiry_timers_.end()) return;
  executor_->CancelTimer(timer->second);
  expiry_timers_.erase(timer);
}

TcpExporterStats TcpExporter::Stats() const {
  const std::lock_guard lock(stats_mutex_);
  TcpExporterStats stats = stats_;
  stats.grants_open = grants_.size();
  return stats;
}

void TcpExporter::CountServed(const NodeId& reader, uint64_t bytes) {
  const std::lock_guard lock(stats_mutex_);
  auto& by_reader = stats_.bytes_served;
  const bool counted = by_reader.contains(reader) || by_reader.size() < kReadersCountedMax;
  by_reader[counted ? reader : NodeId()] += bytes;
}

void TcpExporter::AcceptConnections() {
  while (true) {
    Result<std::optional<Accepted>> accepted = options_.accept(listener_.get());
    if (!accepted.ok()) {
      if (!std::exchange(accepting_fails_, true)) {
        Log(LogLevel::kWarning, "cannot accept data connections for the moment",
            {{"address", address_}, {"why", accepted.status().message()}});
      }
      PauseAccepting();
      return;
    }
    if (std::exchange(accepting_fails_, false)) {
      Log(LogLevel::kInfo, "accepts data connections again", {{"address", address_}});
    }
    if (!accepted->has_value()) return;
    {
      const std::lock_guard lock(stats_mutex_);
      if (stats_.connections_open >= options_.connection_count_max) {
        ++stats_.connections_refused;
        continue;  // Closes it: its reader goes to another source.
      }
      ++stats_.connections_open;
    }
    Server* const server = servers_[next_server_++ % servers_.size()].get();
    // In a shared pointer because tasks must be copyable.
    auto fd = std::make_shared<UniqueFd>(std::move((*accepted)->fd));
    server->loop.Post([this, server, fd, peer = (*accepted)->peer.ToString()] {
      Adopt(server, std::move(*fd), peer);
    });
  }
}

void TcpExporter::PauseAccepting() {
  EventLoop& loop = servers_.front()->loop;
  loop.UpdateFd(listener_.get(), 0);
  loop.RunAfter(kAcceptRest, [this, &loop] { loop.UpdateFd(listener_.get(), EPOLLIN); });
}

void TcpExporter::Adopt(Server* server, UniqueFd fd, const std::string& peer_address) {
  const int number = fd.get();
  // Without these two it only runs slower, so a kernel that refuses is not worth an error.
  (void)SetNoDelay(number);
  if (options_.send_buffer_bytes > 0) {
    // The receiving side, a few requests, stays as the kernel has it.
    const int bytes = static_cast<int>(options_.send_buffer_bytes);
    setsockopt(number, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  }
  auto connection = std::make_unique<ServedConnection>(std::move(fd), peer_address, &context_,
                                                       &server->random, server->loop.Now());
  ServedConnection* const raw = connection.get();
  server->connections[number] = std::move(connection);
  const Status watched = server->loop.WatchFd(
      number, EPOLLIN,
      [this, server, raw](uint32_t epoll_events) { OnEvents(server, raw, epoll_events); });
  BACKSTAY_CHECK(watched.ok(), watched.message());  // A socket can always be polled.
}

void TcpExporter::OnEvents(Server* server, ServedConnection* connection, uint32_t epoll_events) {
  const Instant now = server->loop.Now();
  Status status;
  if ((epoll_events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && connection->wants_input()) {
    status = connection->Receive(now);
  } else if ((epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    status = Unavailable("the connection broke");
  }
  if (status.ok() && connection->wants_output()) status = connection->Send(now);
  if (!status.ok()) {
    Close(server, connection->fd());
    return;
  }
  const uint32_t wanted = (connection->wants_input() ? uint32_t{EPOLLIN} : 0) |
                          (connection->wants_output() ? uint32_t{EPOLLOUT} : 0);
  server->loop.UpdateFd(connection->fd(), wanted);
}

void TcpExporter::Close(Server* server, int fd) {
  server->loop.UnwatchFd(fd);
  server->connections.erase(fd);
  const std::lock_guard lock(stats_mutex_);
  --stats_.connections_open;
}

void TcpExporter::Sweep(Server* server) {
  const Instant now = server->loop.Now();
  std::vector<int> silent;
  for (const auto& [fd, connection] : server->connections) {
    if (now >= connection->closes_at()) silent.push_back(fd);
  }
  for (const int fd : silent) Close(server, fd);
  server->loop.RunAfter(kSweepInterval, [this, server] { Sweep(server); });
}

}  // namespace backstay::transport
