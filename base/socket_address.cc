// Names and numbers of sockets: parsing, printing, resolving.

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/os_error.h"
#include "base/socket.h"

namespace backstay {
namespace {

// The longest name that DNS knows (RFC 1035, 2.3.4).
constexpr size_t kHostBytesMax = 255;

Result<SocketAddress> FromSockaddr(const sockaddr* address, socklen_t size_bytes) {
  SocketAddress result;
  if (size_bytes > sizeof(result.storage)) return InvalidArgument("socket address too long");
  std::memcpy(&result.storage, address, size_bytes);
  result.size_bytes = size_bytes;
  return result;
}

Result<std::vector<SocketAddress>> GetAddresses(const HostPort& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  const std::string what = "resolve " + endpoint.ToString();
  if (error == EAI_SYSTEM) return OsError(errno, what);
  if (error == EAI_NONAME || error == EAI_NODATA)
    return NotFound(what + ": " + gai_strerror(error));
  if (error != 0) return Unavailable(what + ": " + gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    BACKSTAY_ASSIGN_OR_RETURN(SocketAddress address,
                              FromSockaddr(entry->ai_addr, entry->ai_addrlen));
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace

Result<HostPort> HostPort::Parse(std::string_view text) {
  const auto wrong = [text](const char* why) {
    return InvalidArgument("address '" + std::string(text) + "': " + why);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("needs a port, as in host:7070");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == std::string_view::npos) return wrong("brackets hold an IPv6 address");
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return wrong("an IPv6 address goes into brackets, as in [::1]:7070");
  }
  if (host.empty()) return wrong("needs a host before the colon");
  if (host.size() > kHostBytesMax) return wrong("the host name is too long");
  if (host.find('\0') != std::string_view::npos) return wrong("the host name holds a NUL byte");
  HostPort parsed{.host = std::string(host)};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), parsed.port);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
    return wrong("the port must be a number from 0 to 65535");
  }
  return parsed;
}

std::string HostPort::ToString() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 ==
           IN_LOOPBACKNET;
  }
  if (family() != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  const int error = getnameinfo(get(), size_bytes, host, sizeof(host), service, sizeof(service),
                                NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return "an address of family " + std::to_string(family());
  return HostPort{.host = host, .port = port()}.ToString();
}

Result<std::vector<SocketAddress>> Resolve(const HostPort& endpoint) {
  return GetAddresses(endpoint, 0);
}

Result<SocketAddress> ParseLiteral(const HostPort& endpoint) {
  const Result<std::vector<SocketAddress>> addresses = GetAddresses(endpoint, AI_NUMERICHOST);
  if (addresses.ok()) return addresses->front();
  return InvalidArgument("'" + endpoint.host + "' is not an IPv4 or IPv6 address");
}

}  // namespace backstay
