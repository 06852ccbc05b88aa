#include "client/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/units.h"

namespace backstay::client {
namespace {

// Never destroyed: the handlers may run while the process ends.
std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::set<int>& Descriptors() {
  static auto* descriptors = new std::set<int>;
  return *descriptors;
}

void BeforeFork() { Mutex().lock(); }
void AfterForkInParent() { Mutex().unlock(); }
void AfterForkInChild() {
  for (const int fd : Descriptors()) ::close(fd);
  Descriptors().clear();
  Mutex().unlock();
}

std::mutex& MutexWithHandlers() {
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(registered);  // Only fails without memory; API calls in a child still fail.
  return Mutex();
}

}  // namespace

ForkGuard::ForkGuard() : lock_(MutexWithHandlers()) {}

bool IsForeignProcess(pid_t owner) { return ::getpid() != owner; }

GuardedFd::GuardedFd(const ForkGuard&, int fd) : fd_(fd), owner_(::getpid()) {
  if (fd >= 0) Descriptors().insert(fd);
}

GuardedFd& GuardedFd::operator=(GuardedFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    owner_ = other.owner_;
  }
  return *this;
}

void GuardedFd::Reset() {
  // In a child the number is closed already and may be somebody else's now.
  if (fd_ >= 0 && !IsForeignProcess(owner_)) {
    const ForkGuard guard;
    Descriptors().erase(fd_);
    ::close(fd_);
  }
  fd_ = -1;
}

Mapping Mapping::Map(int fd, size_t size_bytes, bool writable) {
  Mapping mapping;
  // A file of huge pages is mapped, and unmapped, in whole pages: its preferred block.
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return mapping;
  size_bytes = RoundUp(size_bytes, static_cast<uint64_t>(std::max<blksize_t>(info.st_blksize, 1)));
  const ForkGuard guard;
  void* data =
      ::mmap(nullptr, size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return mapping;
  if (::madvise(data, size_bytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    ::munmap(data, size_bytes);
    errno = error;
    return mapping;
  }
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_bytes_ = size_bytes;
  mapping.owner_ = ::getpid();
  return mapping;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = other.size_bytes_;
    owner_ = other.owner_;
  }
  return *this;
}

void Mapping::Reset() {
  // In a child nothing is mapped there, or something of its own.
  if (data_ != nullptr && !IsForeignProcess(owner_)) ::munmap(data_, size_bytes_);
  data_ = nullptr;
}

}  // namespace backstay::client
