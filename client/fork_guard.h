#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <utility>

namespace backstay::client {

// A forked child (a data loader) holds nothing of this library: its descriptors are closed in the
// child, its mappings are not inherited. fork() waits while a ForkGuard lives, so that there is no
// moment between receiving a descriptor or making a mapping and marking it so.
//
// Thread: any; hold it for system calls that do not wait.
class ForkGuard {
 public:
  ForkGuard();

 private:
  std::unique_lock<std::mutex> lock_;
};

// True in a process that was forked, or cloned, off the one with id `owner`.
bool IsForeignProcess(pid_t owner);

// Owns a descriptor that a forked child closes. In a child it is empty.
//
// Thread: one at a time.
class GuardedFd {
 public:
  GuardedFd() = default;
  // Under a ForkGuard that has been held since before `fd` was made.
  GuardedFd(const ForkGuard& guard, int fd);
  GuardedFd(GuardedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), owner_(other.owner_) {}
  GuardedFd& operator=(GuardedFd&& other) noexcept;
  ~GuardedFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
  pid_t owner_ = 0;
};

// Memory of a descriptor, shared, not inherited by forked children.
//
// Thread: one at a time; the memory itself any.
class Mapping {
 public:
  Mapping() = default;
  // At least the first `size_bytes` of `fd`; an empty Mapping and errno when the system refuses.
  static Mapping Map(int fd, size_t size_bytes, bool writable);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_bytes_(other.size_bytes_),
        owner_(other.owner_) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { Reset(); }

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool valid() const { return data_ != nullptr; }
  void Reset();

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  pid_t owner_ = 0;
};

}  // namespace backstay::client
