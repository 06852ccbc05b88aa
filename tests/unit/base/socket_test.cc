#include "base/socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

namespace backstay {
namespace {

using ::testing::HasSubstr;

constexpr int kWaitMillisMax = 30'000;

bool WaitFor(int fd, short events) {
  pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
  return poll(&poll_fd, 1, kWaitMillisMax) == 1;
}

bool IsCloseOnExec(int fd) { return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

SocketAddress Loopback(uint16_t port) { return *ParseLiteral({.host = "127.0.0.1", .port = port}); }

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "backstay-socket-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string File(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::pair<UniqueFd, UniqueFd> SocketPair() {
  std::array<int, 2> fds;
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(HostPort, ReadsWhatItPrints) {
  for (const char* text : {"127.0.0.1:7070", "[::1]:0", "[fe80::1%lo]:65535", "node-3.cluster:1"}) {
    const Result<HostPort> parsed = HostPort::Parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), text);
  }
}

TEST(HostPort, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "needs a port"},
      {"host", "needs a port"},
      {":80", "needs a host"},
      {"host:", "0 to 65535"},
      {"host:65536", "0 to 65535"},
      {"host:-1", "0 to 65535"},
      {"host:80x", "0 to 65535"},
      {"::1:80", "brackets"},
      {"[::1:80", "brackets"},
      {"[name]:80", "IPv6"},
      {std::string("a\0b:80", 6), "NUL"},
      {std::string(300, 'a') + ":80", "too long"},
  };
  for (const auto& [text, why] : cases) {
    const Result<HostPort> parsed = HostPort::Parse(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr(why));
  }
}

TEST(SocketAddress, KnowsLoopback) {
  const auto is_loopback = [](const char* host) {
    return ParseLiteral({.host = host, .port = 1})->IsLoopback();
  };
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_TRUE(is_loopback("127.8.9.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_TRUE(is_loopback("::ffff:127.0.0.1"));
  EXPECT_FALSE(is_loopback("0.0.0.0"));
  EXPECT_FALSE(is_loopback("::"));
  EXPECT_FALSE(is_loopback("128.0.0.1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
}

TEST(SocketAddress, LiteralsNeedNoResolver) {
  EXPECT_EQ(ParseLiteral({.host = "::1", .port = 9})->ToString(), "[::1]:9");
  EXPECT_EQ(ParseLiteral({.host = "localhost", .port = 9}).status().code(),
            StatusCode::kInvalidArgument);
  const Result<std::vector<SocketAddress>> resolved = Resolve({.host = "localhost", .port = 9});
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_TRUE(resolved->front().IsLoopback());
  EXPECT_EQ(resolved->front().port(), 9);
}

TEST(Tcp, ConnectsAndAccepts) {
  Result<Listener> listener = ListenTcp(Loopback(0));
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_NE(listener->address.port(), 0);
  EXPECT_FALSE(Accept(listener->fd.get())->has_value());

  const Result<UniqueFd> client = StartConnectTcp(listener->address);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(WaitFor(client->get(), POLLOUT));
  EXPECT_TRUE(FinishConnect(client->get(), "peer").ok());

  ASSERT_TRUE(WaitFor(listener->fd.get(), POLLIN));
  Result<std::optional<Accepted>> accepted = Accept(listener->fd.get());
  ASSERT_TRUE(accepted.ok() && accepted->has_value());
  EXPECT_TRUE((*accepted)->peer.IsLoopback());
  for (const int fd : {listener->fd.get(), client->get(), (*accepted)->fd.get()}) {
    EXPECT_TRUE(IsCloseOnExec(fd));
    EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  }
}

TEST(Tcp, ErrorsNameTheAddress) {
  Result<Listener> listener = ListenTcp(Loopback(0));
  ASSERT_TRUE(listener.ok());
  const std::string name = listener->address.ToString();
  const Result<Listener> second = ListenTcp(listener->address);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(name));

  listener->fd.Reset();
  const Result<UniqueFd> client = StartConnectTcp(listener->address);
  Status refused = client.status();
  if (client.ok()) {
    ASSERT_TRUE(WaitFor(client->get(), POLLOUT));
    refused = FinishConnect(client->get(), name);
  }
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr(name));
}

TEST(UnixSocket, ListensWithTheModeAndReplacesOnlyTheDead) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("socket");
  EXPECT_EQ(ConnectUnix(path).status().code(), StatusCode::kNotFound);
  const mode_t old_umask = umask(077);
  Result<UniqueFd> listener = ListenUnix(path, 0666);
  umask(old_umask);
  ASSERT_TRUE(listener.ok()) << listener.status();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
  EXPECT_EQ(ListenUnix(path, 0600).status().code(), StatusCode::kUnavailable) << "somebody listens";

  const Result<UniqueFd> client = ConnectUnix(path);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(fcntl(client->get(), F_GETFL) & O_NONBLOCK, 0);
  const Result<PeerCredentials> credentials = GetPeerCredentials(client->get());
  ASSERT_TRUE(credentials.ok());
  EXPECT_EQ(credentials->pid, getpid());
  EXPECT_EQ(credentials->uid, getuid());

  listener->Reset();
  EXPECT_EQ(ConnectUnix(path).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(ListenUnix(path, 0600).ok());
}

TEST(UnixSocket, RefusesOtherFilesAndLongPaths) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("notes.txt");
  std::ofstream(path) << "precious";
  EXPECT_EQ(ListenUnix(path, 0600).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_THAT(ListenUnix("/tmp/" + std::string(200, 'x'), 0600).status().message(),
              HasSubstr("107"));
  EXPECT_EQ(ConnectUnix("").status().code(), StatusCode::kInvalidArgument);
}

TEST(PassedFds, ArriveWithTheirBytes) {
  auto [left, right] = SocketPair();
  const UniqueFd file(memfd_create("passed", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "hello", 5), 5);
  const std::array<int, 2> fds = {file.get(), file.get()};
  const Result<Sent> sent = SendWithFds(left.get(), Bytes("two files"), fds);
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->size_bytes, 9u);

  std::array<std::byte, 64> buffer;
  Result<Received> received = ReceiveWithFds(right.get(), buffer);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->state, IoState::kBytes);
  EXPECT_EQ(received->size_bytes, 9u);
  EXPECT_TRUE(received->fds_status.ok());
  ASSERT_EQ(received->fds.size(), 2u);
  EXPECT_TRUE(IsCloseOnExec(received->fds[1].get()));
  std::array<char, 5> text;
  EXPECT_EQ(pread(received->fds[1].get(), text.data(), text.size(), 0), 5);
  EXPECT_EQ(std::string_view(text.data(), 5), "hello");
}

TEST(PassedFds, StatesAreToldApart) {
  auto [left, right] = SocketPair();
  std::array<std::byte, 8> buffer;
  EXPECT_EQ(ReceiveWithFds(right.get(), buffer)->state, IoState::kWouldBlock);
  const std::vector<std::byte> block(65536);
  while (SendWithFds(left.get(), block, {})->state == IoState::kBytes) {
  }
  right.Reset();
  const Result<Sent> sent = SendWithFds(left.get(), block, {});
  EXPECT_EQ(sent.status().code(), StatusCode::kUnavailable);

  auto [one, other] = SocketPair();
  one.Reset();
  EXPECT_EQ(ReceiveWithFds(other.get(), buffer)->state, IoState::kClosed);
}

// Goal:   a descriptor that the kernel drops is named as such, and the bytes arrive all the same.
// Method: a receiver that may open nothing more.
TEST(PassedFds, DroppedDescriptorsAreNamed) {
  auto [left, right] = SocketPair();
  const std::array<int, 1> fds = {left.get()};
  ASSERT_TRUE(SendWithFds(left.get(), Bytes("x"), fds).ok());
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::array<std::byte, 8> buffer;
  const Result<Received> received = ReceiveWithFds(right.get(), buffer);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->size_bytes, 1u);
  EXPECT_TRUE(received->fds.empty());
  EXPECT_EQ(received->fds_status.code(), StatusCode::kPermission);
  EXPECT_THAT(received->fds_status.message(), HasSubstr("MSG_CTRUNC"));
}

TEST(PidFd, BecomesReadableWhenTheProcessEnds) {
  std::array<int, 2> gate;
  ASSERT_EQ(pipe2(gate.data(), O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(gate[1]);
    char byte;
    [[maybe_unused]] const ssize_t end = read(gate[0], &byte, 1);
    _exit(0);
  }
  const Result<UniqueFd> pid_fd = OpenPidFd(child);
  ASSERT_TRUE(pid_fd.ok()) << pid_fd.status();
  EXPECT_TRUE(IsCloseOnExec(pid_fd->get()));
  pollfd now{.fd = pid_fd->get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&now, 1, 0), 0) << "alive";
  close(gate[1]);
  EXPECT_TRUE(WaitFor(pid_fd->get(), POLLIN));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(gate[0]);
  EXPECT_EQ(OpenPidFd(child).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace backstay
