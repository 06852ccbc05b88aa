#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/unit/client/client_fixture.h"

namespace backstay::tests {
namespace {

// What a descriptor refers to: "socket:[123]", "/memfd:fake-slot (deleted)".
std::multiset<std::string> Descriptors() {
  std::multiset<std::string> targets;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    targets.insert(std::filesystem::read_symlink(entry.path(), error).string());
  return targets;
}

size_t MappedSlots() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

// Runs `body` in a forked child without exec; returns its exit code.
int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

class ForkTest : public ClientTest {};

// Goal:   a data loader's process keeps nothing of its rank, and cannot disturb it.
// Method:  fork with a save under way and a shard open; look at the child's maps and descriptors,
//          call everything there, and go on in the parent.
TEST_F(ForkTest, AChildHoldsNothing) {
  // The fake service lives in this process and has mappings of its own: count those of the client.
  const size_t mapped_by_service_before = MappedSlots();
  SaveAndCommit(1, 5000, 1);
  const std::vector<float> data = Numbers(5000, 2);
  Result<Save> save = client_->Begin(2, kLongMs);
  ASSERT_OK(save.status());
  Result<Shard> shard = client_->OpenShard({});
  ASSERT_OK(shard.status());
  const size_t mapped = MappedSlots();
  const std::multiset<std::string> open = Descriptors();
  ASSERT_GT(mapped, mapped_by_service_before);

  const int code = InChild([&] {
    // Each slot is mapped by the service's side, which a fork inherits, and by the client's.
    if (MappedSlots() * 2 != mapped) return 1;
    const std::multiset<std::string> inherited = Descriptors();
    // The client's socket, its event descriptor, and the one that wakes its thread.
    if (inherited.size() + 3 != open.size()) return 2;
    if (client_->NewestCommitted(10).status().code() != Code::kPermission) return 3;
    if (save->AddTensor(Contiguous("w", data)).code() != Code::kPermission) return 4;
    std::vector<float> read(5000);
    if (shard->Read("w", MemoryOf<float>(read)).code() != Code::kPermission) return 5;
    if (client_->Fence("child").code() != Code::kPermission) return 6;
    if (client_->EventDescriptor() != -1) return 7;
    { const Save gone = std::move(*save); }  // Forgets, and touches nothing.
    { const Shard gone = std::move(*shard); }
    client_.reset();
    return 0;
  });
  EXPECT_EQ(code, 0);

  ASSERT_OK(save->AddTensor(Contiguous("w", data)));
  ASSERT_OK(save->StartCopy(2));
  ASSERT_OK(save->WaitCommitted(kLongMs));
  std::vector<float> read(5000);
  ASSERT_OK(shard->Read("w", MemoryOf<float>(read)));
  EXPECT_EQ(read, Numbers(5000, 1));
  EXPECT_EQ(service_.Received(ClientBody::kFence).size(), 0u);
  EXPECT_EQ(service_.Received(ClientBody::kAbandon).size(), 0u);
}

TEST_F(ForkTest, ForkingWhileDescriptorsArriveLeaksNone) {
  SaveAndCommit(1, 5000, 1);
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    while (!stop) {
      Result<Shard> shard = client_->OpenShard({});
      EXPECT_TRUE(shard.ok()) << shard.status().ToString();
    }
  });
  for (int i = 0; i < 30; ++i) {
    // A client's mapping that a fork inherited would be more than the service's two per slot and
    // shard; a memfd of the client's would be open twice.
    EXPECT_EQ(InChild([] {
                const std::multiset<std::string> open = Descriptors();
                std::multiset<std::string> sockets;
                for (const std::string& target : open) {
                  if (target.starts_with("anon_inode:[eventfd]")) sockets.insert(target);
                }
                return sockets.size() == 1 ? 0 : 1;  // The fake service's own.
              }),
              0);
  }
  stop = true;
  opener.join();
}

}  // namespace
}  // namespace backstay::tests
