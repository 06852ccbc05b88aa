#include "tools/cli/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/cli/names.h"

namespace backstay::tools {
namespace {

Status Failed(const std::string& what, const std::string& path, int error) {
  const std::string text = what + " " + ShowText(path) + ": " + std::strerror(error);
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? NoSpace(text)
                                                              : InvalidArgument(text);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path, uint64_t size_bytes,
                                                       bool replace) {
  if (!replace && access(path.c_str(), F_OK) == 0) {
    return InvalidArgument(ShowText(path) + " exists; add --force to replace it");
  }
  // A name of its own: two commands that write to one place must not share what is not whole yet.
  std::string part_path = path + ".part-XXXXXX";
  UniqueFd fd(mkostemp(part_path.data(), O_CLOEXEC));
  if (fd.get() < 0) return Failed("cannot create", part_path, errno);
  std::unique_ptr<OutputFile> file(new OutputFile(path, part_path, replace, std::move(fd)));
  if (size_bytes > 0) {
    const int error = posix_fallocate(file->fd_.get(), 0, static_cast<off_t>(size_bytes));
    if (error != 0) return Failed("cannot reserve room for", part_path, error);
  }
  return file;
}

OutputFile::OutputFile(std::string path, std::string part_path, bool replace, UniqueFd fd)
    : path_(std::move(path)),
      part_path_(std::move(part_path)),
      replace_(replace),
      fd_(std::move(fd)) {}

OutputFile::~OutputFile() {
  if (!published_) unlink(part_path_.c_str());
}

Status OutputFile::Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("cannot write", part_path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset_bytes += static_cast<uint64_t>(written);
  }
  return Status::Ok();
}

// Without replacing, also when somebody else made the file meanwhile. Returns errno.
int OutputFile::Rename() {
  const unsigned flags = replace_ ? 0 : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, part_path_.c_str(), AT_FDCWD, path_.c_str(), flags) == 0) return 0;
  // NFS, and others, know no such flag, and a link that never replaces does the same.
  if (replace_ || (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)) return errno;
  if (link(part_path_.c_str(), path_.c_str()) != 0) return errno;
  unlink(part_path_.c_str());
  return 0;
}

Status OutputFile::Publish() {
  if (fsync(fd_.get()) != 0) return Failed("cannot flush", part_path_, errno);
  if (const int error = Rename(); error != 0) return Failed("cannot rename to", path_, error);
  published_ = true;
  const UniqueFd folder(open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || fsync(folder.get()) != 0) {
    return Failed("cannot flush the folder of", path_, errno);
  }
  return Status::Ok();
}

}  // namespace backstay::tools
